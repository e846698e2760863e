"""`hacpo report`: a grid's results beside the paper's."""

from dashboards.report.pages import write_report

__all__ = ["write_report"]
