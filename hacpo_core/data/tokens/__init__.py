"""The same text in the tokens of several agents."""
