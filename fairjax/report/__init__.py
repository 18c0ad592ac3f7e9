"""Report of measured models: HTML, Markdown, JSON and figures."""

from fairjax.report.comparison import KnownBias, ModelRow
from fairjax.report.differences import compare_reports, read_report
from fairjax.report.report import check_folder, write_report
from fairjax.report.sections import select_model

__all__ = [
  'KnownBias', 'ModelRow', 'check_folder', 'compare_reports', 'read_report', 'select_model',
  'write_report',
]
