"""What the paper prints, as data, and the functions that read it."""
