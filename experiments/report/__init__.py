"""`hacpo report`: a grid's tables with one's own numbers beside the printed ones."""

from experiments.report.pages import write_report

__all__ = ["write_report"]
