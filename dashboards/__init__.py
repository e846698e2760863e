"""The dashboard: progress of a grid, failures, comparisons of methods, and the agents' responses."""
