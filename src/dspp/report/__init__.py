"""One HTML page about one model: its scores, its calibration and how it was trained."""

from dspp.report.model import report, write_evaluation_report, write_model_report
from dspp.report.page import render, write_page

__all__ = ["render", "report", "write_evaluation_report", "write_model_report", "write_page"]
