"""One text in the tokens of several agents."""
