"""Report of measured models: HTML, Markdown, JSON and figures."""

from fairjax.report.comparison import KnownBias, ModelRow
from fairjax.report.differences import compare_reports, read_report
from fairjax.report.report import write_report
from fairjax.report.sections import select_model

__all__ = [
  'KnownBias', 'ModelRow', 'compare_reports', 'read_report', 'select_model', 'write_report',
]
