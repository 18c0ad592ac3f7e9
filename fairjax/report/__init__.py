"""Report of measured models: Markdown, JSON and figures."""

from fairjax.report.comparison import KnownBias, ModelRow
from fairjax.report.figures import plot_curves, plot_fairness, plot_tradeoff
from fairjax.report.human import read_human
from fairjax.report.paired import PairedSample, paired_samples
from fairjax.report.report import package_versions, write_report

__all__ = [
  'KnownBias', 'ModelRow', 'PairedSample', 'package_versions', 'paired_samples', 'plot_curves',
  'plot_fairness', 'plot_tradeoff', 'read_human', 'write_report',
]
