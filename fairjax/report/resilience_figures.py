"""Figures of resilience: accuracy and correlation by step and by frozen layers; I.F. re-learned."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.report.figures import METHOD_COLOURS, OTHER_COLOURS, STYLE, pyplot, save_figure

_PANELS = {'dev_pearson': 'accuracy: Pearson on dev', 'r': 'correlation: r with share of women'}
_LINES = ('#0072B2', '#D55E00', *OTHER_COLOURS, '#555555')
_BAND = {'alpha': 0.15, 'linewidth': 0}


def plot_resilience(path: str | os.PathLike, *, runs: Sequence[Mapping[str, Any]]
                    ) -> list[pathlib.Path]:
  """Curves by step, one line a freeze, and the ends by freeze (Webster et al. 2020, figures 1, 2).

  Bands and whiskers are one standard deviation over the restarts.

  Args:
    path: of the files, without suffix.
    runs: results of `measure_stsb`: `freeze`, `curves`, `steps`, `dev_pearson`, `r`.

  Returns:
    The PNG and the SVG file.
  """
  plt = pyplot()
  with plt.rc_context(STYLE):
    figure, axes = plt.subplots(2, 2, squeeze=False, layout='constrained', figsize=(7.0, 5.2))
    for row, (key, title) in zip(axes, _PANELS.items(), strict=True):
      for number, run in enumerate(runs):
        colour = _LINES[number % len(_LINES)]
        points = [(p['step'], p[key]) for p in run['curves']] + [(run['steps'], run[key])]
        _line(row[0], points, colour, run['freeze'])
        if run[key]['mean'] is not None:
          row[1].errorbar([number], [run[key]['mean']], yerr=run[key]['sd'] or 0.0, color=colour,
                          marker='o', capsize=3)
      row[0].set_title(f'{title}, by step')
      row[0].set_xlabel('step of fine-tuning (0: head on the frozen model)')
      row[1].set_title('at the end, by what is frozen')
      row[1].set_xticks(range(len(runs)), [run['freeze'] for run in runs])
      row[1].set_xlabel('frozen')
      row[1].margins(x=0.2)
    axes[1][0].axhline(0, color='#AAAAAA', linewidth=0.8)
    axes[1][1].axhline(0, color='#AAAAAA', linewidth=0.8)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, [f'frozen: {x}' for x in labels], loc='outside lower center', ncols=4,
                  frameon=False)
    return save_figure(figure, path)


def plot_relearning(path: str | os.PathLike, *, result: Mapping[str, Any]) -> list[pathlib.Path]:
  """I.F. of a debiased model that is trained on, with the baseline, the floor and the half-life.

  Whiskers are one standard error.

  Args:
    path: of the files, without suffix.
    result: of `job.relearning.relearn`.

  Returns:
    The PNG and the SVG file.
  """
  plt = pyplot()
  curve, base, found = result['curve'], result['baseline'], result['half_life']
  steps = [p['step'] for p in curve]
  with plt.rc_context(STYLE):
    figure, axis = plt.subplots(layout='constrained', figsize=(4.6, 3.2))
    axis.errorbar(steps, [p['individual_fairness'] for p in curve],
                  yerr=[p['std_error'] for p in curve], color='#0072B2', marker='o', markersize=4,
                  capsize=2, label=result['model'])
    axis.plot(steps, [p['null_p95'] for p in curve], color='#AAAAAA', linestyle=':',
              label='floor (95th percentile by chance)')
    axis.axhline(base['individual_fairness'], color=METHOD_COLOURS['baseline'], linestyle='--',
                 label='baseline')
    if found['reached']:
      axis.axvline(found['value'], color='#D55E00', linewidth=1.0, label='half-life')
      end = found['last_step'] if found['high'] is None else found['high']
      low = end if found['low'] is None else found['low']
      axis.axvspan(low, end, color='#D55E00', **_BAND)
    axis.set_xlabel('steps of further training on biased text')
    axis.set_ylabel(f"I.F., scorer {result['scorer']}")
    axis.set_ylim(bottom=0)
    figure.legend(loc='outside lower center', ncols=2, frameon=False)
    return save_figure(figure, path)


def _line(axis, points, colour: str, label: str) -> None:
  """A line of means with a band of deviations; steps without a mean are gaps."""
  whole = [(step, p['mean'], p['sd'] or 0.0) for step, p in points if p['mean'] is not None]
  if not whole:
    return
  steps, means, sds = zip(*whole, strict=True)
  axis.plot(steps, means, color=colour, marker='o', markersize=3, label=label)
  axis.fill_between(steps, [m - s for m, s in zip(means, sds, strict=True)],
                    [m + s for m, s in zip(means, sds, strict=True)], color=colour, **_BAND)
