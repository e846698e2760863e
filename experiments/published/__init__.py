"""The paper's printed results and model shapes, as CSV files and functions that read them."""
