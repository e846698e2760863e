"""`hacpo report`: a grid's results beside the paper's."""

from experiments.report.pages import write_report

__all__ = ["write_report"]
