"""`hacpo report`: a grid's results beside the paper's."""

from dashboards.report.pages import Report, write_report
from dashboards.report.results import load_results, read_results, save_results

__all__ = ["Report", "load_results", "read_results", "save_results", "write_report"]
