"""The page of hacpo: how far a grid is, what failed, who wins, and what the models say."""
