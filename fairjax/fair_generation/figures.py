"""Figures 1 and 2 of Yeo & Chen 2020: bias by prompt and model, before and after debiasing.

Colours are those of Okabe and Ito; whiskers are Student's intervals, a thin line the guaranteed
one. Files of equal data are byte-identical under one version of Matplotlib.
"""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

_COLOURS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9')
_STYLE: Any = {'font.size': 9, 'axes.spines.top': False, 'axes.spines.right': False,
          'axes.axisbelow': True, 'svg.hashsalt': 'fairjax', 'svg.fonttype': 'path'}


def plot_bias(
  path: str | os.PathLike, tables: Sequence[Mapping[str, Any]], *, debiased: bool = False,
) -> list[pathlib.Path]:
  """Bars of the mean bias of every prompt (Fig. 1), with those after debiasing (Fig. 2).

  Args:
    path: of the files, without suffix.
    tables: of `bias_tables`, one a model.
    debiased: draw a hatched bar of the debiased embedding beside each.

  Returns:
    The PNG and the SVG file.
  """
  import matplotlib
  matplotlib.use('Agg')
  import matplotlib.pyplot as plt
  prompts = list(dict.fromkeys(row['prompt'] for t in tables for row in t['prompts']))
  columns = ('bias', 'bias_debiased') if debiased else ('bias',)
  height = 0.8 / (len(tables) * len(columns))
  with plt.rc_context(_STYLE):
    rows = len(prompts) * max(1, len(tables) * len(columns) / 2)
    figure, axis = plt.subplots(figsize=(7, 1.2 + 0.32 * rows), layout='constrained')
    for m, table in enumerate(tables):
      for c, column in enumerate(columns):
        _bars(axis, table, column, prompts, height, (m * len(columns) + c + 0.5) * height - 0.4,
              colour=_COLOURS[m % len(_COLOURS)], after=column != 'bias')
    axis.axvline(0, color='#333333', linewidth=0.8)
    axis.set_yticks(range(len(prompts)), [p.replace('$', r'\$') for p in prompts])
    axis.set_ylim(len(prompts) - 0.4, -0.6)
    axis.set_xlabel('mean bias w·g of the professions: male below 0, female above')
    if axis.get_legend_handles_labels()[0]:
      axis.legend(frameon=False, loc='upper left', bbox_to_anchor=(0, -0.12), ncols=2)
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    files = []
    for suffix, metadata in (('.png', {'Software': None}), ('.svg', {'Date': None,
                                                                     'Creator': None})):
      files.append(path.with_name(path.name + suffix))
      figure.savefig(files[-1], dpi=150, metadata=metadata)
    plt.close(figure)
  return files


def _bars(axis, table, column, prompts, height, shift, *, colour, after) -> None:
  """The bars of one model and embedding, with whiskers; prompts without a value have none."""
  label = table['model'].replace('$', r'\$') + (', debiased embedding' if after else '')
  for row in table['prompts']:
    found = row[column]
    if found is None:
      continue
    y = prompts.index(row['prompt']) + shift
    axis.barh(y, found['mean'], height=0.9 * height, color='white' if after else colour,
              edgecolor=colour, hatch='////' if after else None, label=label)
    label = None
    axis.plot(found['guaranteed'], [y, y], color='#999999', linewidth=0.6)
    if found['student']:
      axis.plot(found['student'], [y, y], color='#333333', linewidth=1.4)
