"""Figures of the trade-off that people read off curves: measures by lambda, the floor by n."""

import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairjax.report.comparison import ModelRow, baseline_of
from fairjax.report.figures import METHOD_COLOURS, STYLE, plain, pyplot, save_figure

_FLOOR = {'color': '#AAAAAA', 'linestyle': ':', 'linewidth': 1.4}
_REFERENCE = {'color': METHOD_COLOURS['baseline'], 'linestyle': '--', 'linewidth': 1.0}
_HATCH = {'facecolor': 'none', 'edgecolor': '#BBBBBB', 'hatch': '////', 'linewidth': 0.0}


def plot_weights(
  path: str | os.PathLike, *, rows: Sequence[ModelRow], scorer: str
) -> list[pathlib.Path]:
  """What lambda buys and what it costs: one panel a measure, one line a method (H-31, H-35).

  Dashed lines are the baseline's values, dotted ones a model's own floor.
  Measures that no model has get no panel.

  Args:
    path: of the files, without suffix.
    rows: a baseline, and models with a fairness weight; others (controls) are not shown.
    scorer: of I.F.

  Returns:
    The PNG and the SVG file.

  Raises:
    ValueError: no baseline, or no model with a fairness weight.
  """
  baseline, models = baseline_of(rows), [row for row in rows if row.weight is not None]
  if baseline is None or not models:
    raise ValueError('curves by lambda need a baseline and models with a fairness weight')
  panels = {name: read for name, read in _readers(scorer).items()
            if any(read(row) is not None for row in models)}
  weights = sorted({row.weight for row in models if row.weight is not None})
  plt = pyplot()
  with plt.rc_context(STYLE):
    figure, axes = plt.subplots(-(-len(panels) // 2), 2, squeeze=False, layout='constrained',
                                figsize=(6.6, 2.3 * -(-len(panels) // 2) + 0.5))
    handles: dict[str, Any] = {}
    for axis, (name, read) in zip(axes.flat, panels.items(), strict=False):
      for method in dict.fromkeys(row.method for row in models):
        found = sorted((weights.index(row.weight or 0.0), *values) for row in models
                       if row.method == method and (values := read(row)) is not None)
        x, y, floor = zip(*found, strict=True) if found else ((), (), ())
        (handles[plain(method)],) = axis.plot(
          x, y, color=METHOD_COLOURS.get(method, '#009E73'), marker='o', markersize=4,
          linewidth=1.3)
        if None not in floor:
          (handles['floor (95th percentile by chance)'],) = axis.plot(x, floor, **_FLOOR)
      if (reference := read(baseline)) is not None:
        handles['baseline'] = axis.axhline(reference[0], **_REFERENCE)
      axis.set_title(name)
      axis.set_xticks(range(len(weights)), [f'{w:g}' for w in weights])
      axis.set_xlabel('\u03bb')
      axis.margins(x=0.08, y=0.2)
      axis.set_ylim(bottom=0)
    for axis in axes.flat[len(panels):]:
      axis.set_visible(False)
    figure.legend(handles.values(), handles.keys(), loc='outside lower center', ncols=3,
                  frameon=False)
    return save_figure(figure, path)


def plot_floors(
  path: str | os.PathLike, *, models: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[pathlib.Path]:
  """I.F. and its floor for growing samples: one panel a model.

  The hatched area ends at the floor, the black line is what is expected by chance; a hollow mark is
  within noise. Whiskers are one standard error.

  Args:
    path: of the files, without suffix.
    models: name -> dictionaries of `fairness_by_samples`.

  Returns:
    The PNG and the SVG file.
  """
  plt = pyplot()
  with plt.rc_context(STYLE):
    figure, axes = plt.subplots(1, len(models), squeeze=False, layout='constrained',
                                figsize=(3.3 * len(models), 3.0))
    for axis, (name, estimates) in zip(axes[0], models.items(), strict=True):
      n = [e['n_min'] for e in estimates]
      band = axis.fill_between(n, [e['null_p95'] for e in estimates], **_HATCH)
      (mean,) = axis.plot(n, [e['null_mean'] for e in estimates], color='black', linewidth=1)
      found = axis.errorbar(n, [e['value'] for e in estimates], color='#0072B2', linewidth=1.2,
                            yerr=[e['std_error'] or 0.0 for e in estimates], elinewidth=0.7)
      for within, face in ((False, '#0072B2'), (True, 'white')):
        chosen = [e for e in estimates if e['within_floor'] == within]
        axis.plot([e['n_min'] for e in chosen], [e['value'] for e in chosen], linestyle='none',
                  marker='o', markersize=5, color='#0072B2', markerfacecolor=face, zorder=3)
      axis.set_xscale('log')
      axis.set_xticks(n, [str(v) for v in n])
      axis.minorticks_off()
      axis.set_title(plain(name))
      axis.set_xlabel('samples of a prefix')
      axis.set_ylim(bottom=0)
    axes[0][0].set_ylabel('I.F.')
    figure.legend([found, band, mean], ['I.F. (hollow: within noise)',
                                        'up to the floor (95th percentile by chance)',
                                        'expected by chance'],
                  loc='outside lower center', ncols=2, frameon=False)
    return save_figure(figure, path)


def _readers(scorer: str) -> dict[str, Callable[[ModelRow], tuple[float, float | None] | None]]:
  """Title of a panel -> (value, floor or None) of a model, or None."""
  def fairness(row):
    found = row.estimate(scorer, 'individual_fairness')
    return None if found is None else (found['value'], found['null_p95'])

  def perplexity(row):
    found = row.perplexity
    return None if found is None or found['word'] is None else (found['word'], None)

  def divergence(row):
    found = row.content('next_token_divergence')
    return None if found is None else (found['kl'], None)

  def words(row):
    found = row.content('distinct_word_divergence')
    return None if found is None or found['value'] is None else (found['value'], found['null_p95'])

  return {f'I.F. ({plain(scorer)})': fairness, 'word perplexity': perplexity,
          'bits a word tells about the value': words, 'KL of the next token (nats)': divergence}
