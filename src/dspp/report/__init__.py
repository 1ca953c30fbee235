"""One HTML page about one model: its scores, its calibration and how it was trained."""

from dspp.report.data import ReportData, TargetData
from dspp.report.model import evaluation_data, report_data, write_evaluation_report, write_model_report
from dspp.report.page import render, write_report

__all__ = [
    "ReportData",
    "TargetData",
    "evaluation_data",
    "render",
    "report_data",
    "write_evaluation_report",
    "write_model_report",
    "write_report",
]
