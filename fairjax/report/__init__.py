"""Report of measured models: HTML, Markdown, JSON and figures."""

from fairjax.report.comparison import KnownBias, ModelRow
from fairjax.report.differences import compare_reports, read_report
from fairjax.report.figures import (
  plot_curves,
  plot_fairness,
  plot_tradeoff,
  plot_values,
)
from fairjax.report.page import (
  Distributions,
  collect_distributions,
  stored_distributions,
  stored_scores,
)
from fairjax.report.report import write_report
from fairjax.report.sections import (
  PairedSample,
  brief_table,
  paired_samples,
  read_human,
  select_model,
  spread_of_trainings,
)

__all__ = [
  'Distributions', 'KnownBias', 'ModelRow', 'PairedSample', 'brief_table', 'collect_distributions',
  'compare_reports', 'paired_samples', 'plot_curves', 'plot_fairness',
  'plot_tradeoff', 'plot_values', 'read_human', 'read_report', 'select_model',
  'spread_of_trainings', 'stored_distributions', 'stored_scores', 'write_report',
]
