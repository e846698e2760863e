"""Routes, one file per page."""
