"""What the notebooks do behind their cells: sizes, tiny models, progress, figures and tables.

Objects know how to show themselves in a notebook; IPython is imported only to update a line of
progress. Nothing here needs TensorFlow.
"""

from fairjax.notebook.devices import Devices, Sizes, find_devices
from fairjax.notebook.evaluation import Evaluation, Texts, evaluate, find_texts
from fairjax.notebook.lessons import (
  bias_table,
  corpus_table,
  curve_figure,
  fairness_table,
  floor_figure,
  pair_figure,
  pair_table,
  selection,
  summary_table,
  weight_figure,
)
from fairjax.notebook.showing import Figure, Progress, Words
from fairjax.notebook.tiny import TinyJob, tiny_config

__all__ = [
  'Devices', 'Evaluation', 'Figure', 'Progress', 'Sizes', 'Texts', 'TinyJob', 'Words',
  'bias_table', 'corpus_table', 'curve_figure', 'evaluate', 'fairness_table', 'find_devices',
  'find_texts', 'floor_figure', 'pair_figure', 'pair_table', 'selection', 'summary_table',
  'tiny_config', 'weight_figure',
]
