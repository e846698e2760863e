"""The seams of a method, and what is shipped at each: one file per implementation."""
