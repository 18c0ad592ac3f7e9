"""Report of measured models: HTML, Markdown, JSON and figures."""

from fairjax.report.brief import brief_table
from fairjax.report.comparison import KnownBias, ModelRow
from fairjax.report.differences import compare_reports, read_report
from fairjax.report.evidence import Evidence, collect_evidence, stored_evidence, stored_scores
from fairjax.report.figures import plot_curves, plot_fairness, plot_tradeoff
from fairjax.report.human import read_human
from fairjax.report.paired import PairedSample, paired_samples
from fairjax.report.report import write_report
from fairjax.report.selection import select_model
from fairjax.report.weight_figures import plot_floors, plot_weights

__all__ = [
  'Evidence', 'KnownBias', 'ModelRow', 'PairedSample', 'brief_table', 'collect_evidence',
  'compare_reports', 'paired_samples', 'plot_curves', 'plot_fairness', 'plot_floors',
  'plot_tradeoff', 'plot_weights', 'read_human', 'read_report', 'select_model', 'stored_evidence',
  'stored_scores', 'write_report',
]
