"""The report on the experiments: our results and the paper's, as Markdown, CSV, PNG, SVG and one HTML page."""

from experiments.report.page import write_report
from experiments.report.paper import find_paper

__all__ = ["find_paper", "write_report"]
