"""The figures of Huang et al. 2020 from one's own records: none holds a number that was typed in.

| figure | function |
|---|---|
| 1 | `plot_pair`: two values of a template, their score distributions, W1 and samples |
| 2 | `plot_truncated_gaussians`: what W1 of 0.1 and of 0.01 looks like |
| 3 | docs/pipeline.svg |
| 4, 5, 7 | `plot_improvements` of several corpora, one scorer (BERT, opinion, Google) each |
| 6 | `plot_relevance`: I.F. against S.S., one panel an attribute |
| 8 to 15 | `plot_improvements` of one corpus, several scorers, I.F. or G.F. (Country, Name) |
| 16, 17 | `plot_models`: language models beside each other, by attribute, I.F. or G.F. (H-33) |

Bars and points carry their floors and errors, which the paper does not show. `path` is that of the
files, without suffix; each function gives the files. A name that nothing has is a `UserError`.
"""

import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.errors import UserError, unknown_name
from fairjax.measure import Generations, wasserstein_1
from fairjax.report.comparison import ModelRow, scorer_names
from fairjax.report.differences import FAIRNESS
from fairjax.report.figures import (
  drawing,
  plain,
  plot_fairness,
  plot_tradeoff,
  save_figure,
  tradeoff_points,
)

_PAIR_COLOURS = ('#0072B2', '#D55E00')
_EXAMPLE_CHARACTERS = 90
_EXAMPLES = 3  # continuations of a value
# Means of the Gaussians of Fig. 2; their standard deviation is our choice.
_GAUSSIANS, _SIGMA = ((0.445, 0.555), (0.494, 0.505)), 0.2


def plot_pair(
  path: str | os.PathLike, *, generations: Generations, scores: np.ndarray, template: int | str,
  values: tuple[str, str], scorer: str,
) -> list[pathlib.Path]:
  """Score distributions of two values of one template, W1, and samples (Fig. 1, H-07)."""
  # `scores` are `[R]` of the R records. The examples are at evenly spaced ranks of the score.
  columns = [_cell(generations, template, value) for value in values]
  distance = wasserstein_1(*(scores[rows] for rows in columns))
  with drawing(1, 2, 9, 3.4, gridspec_kw={'width_ratios': (1.3, 1)}) as (figure, ((left, right),)):
    lines = []
    for value, rows, colour in zip(values, columns, _PAIR_COLOURS, strict=True):
      right.hist(scores[rows], bins=np.linspace(0, 1, 21), density=True, alpha=0.5,
                 color=colour, label=f'{plain(value)} (n = {rows.size})')
      lines.append((colour, generations.prefixes[rows[0]]))
      ordered = rows[np.argsort(scores[rows], kind='stable')]
      for i in np.unique(np.linspace(0, rows.size - 1, _EXAMPLES + 2)[1:-1].round().astype(int)):
        text = ' '.join(generations.continuations[ordered[i]].split())
        cut = text[:_EXAMPLE_CHARACTERS] + ('...' if len(text) > _EXAMPLE_CHARACTERS else '')
        lines.append(('black', f'   {cut} ({scores[ordered[i]]:.2f})'))
    left.set_axis_off()
    for i, (colour, text) in enumerate(lines):
      left.text(0, 1 - (i + 0.5) / len(lines), plain(text), color=colour, fontsize=7,
                transform=left.transAxes, wrap=True, va='center')
    right.set_title(f'W1 = {distance:.3f}')
    right.set_xlabel(f'sentiment score ({plain(scorer)})')
    right.set_ylabel('density')
    figure.legend(loc='outside lower right', ncols=2, frameon=False)
    return save_figure(figure, path)


def plot_truncated_gaussians(path: str | os.PathLike) -> list[pathlib.Path]:
  """Pairs of Gaussians truncated to [0, 1], with W1 of each (Fig. 2, H-08)."""
  x = np.linspace(0, 1, 501)
  with drawing(1, 2, 6.8, 2.7) as (figure, axes):
    for axis, pair in zip(axes[0], _GAUSSIANS, strict=True):
      for mean, colour in zip(pair, _PAIR_COLOURS, strict=True):
        axis.plot(x, _truncated(mean, _SIGMA).pdf(x), color=colour, label=f'{mean:g}')
      axis.set_title(f'W1 = {gaussian_distance(*pair, sigma=_SIGMA):.4f}')
      axis.set_xlabel('score')
      axis.legend(frameon=False)
    return save_figure(figure, path)


def gaussian_distance(first: float, second: float, *, sigma: float) -> float:
  """W1 of two Gaussians truncated to [0, 1], by the integral of Eq. 1 (H-03, H-08).

  >>> round(gaussian_distance(0.445, 0.555, sigma=0.2), 4)
  0.0998
  """
  from scipy.integrate import quad
  one, other = _truncated(first, sigma), _truncated(second, sigma)
  return float(quad(lambda t: abs(one.cdf(t) - other.cdf(t)), 0, 1, epsabs=1e-12)[0])


def plot_improvements(
  path: str | os.PathLike, *, corpora: Mapping[str, Sequence[ModelRow]], scorers: Sequence[str],
  measures: Sequence[str] = tuple(FAIRNESS),
) -> list[pathlib.Path]:
  """Fairness of the baseline and of every lambda (Figs. 4, 5, 7 to 15; H-30)."""
  # One row of panels for each corpus and scorer, a column for each measure.
  _check(scorers, [row for rows in corpora.values() for row in rows])
  models = {row.name: row.method for rows in corpora.values() for row in rows}
  return plot_fairness(path, models=list(models), methods=list(models.values()), estimates={
    f'{corpus}, scorer {scorer}': {
      FAIRNESS[m]: _estimates(rows, models, scorer, m) for m in measures}
    for corpus, rows in corpora.items() for scorer in scorers})


def plot_relevance(
  path: str | os.PathLike, *, attributes: Mapping[str, Sequence[ModelRow]], scorer: str,
) -> list[pathlib.Path]:
  """I.F. against S.S., one panel an attribute, fairer to the right (Fig. 6, H-31)."""
  panels = []
  for attribute, rows in attributes.items():
    _check([scorer], rows)
    without = [row.name for row in rows if row.content('semantic_similarity') is None]
    if without:
      raise UserError(f"no S.S. of {', '.join(without)} ({attribute}): measure with an encoder")
    panels.append(
      (attribute, 'S.S. (%)', tradeoff_points(rows, scorer, 'semantic_similarity')))
  return plot_tradeoff(path, panels=panels, scorer=scorer)


def plot_models(
  path: str | os.PathLike, *, attributes: Mapping[str, Sequence[ModelRow]],
  scorers: Sequence[str], measure: str,
) -> list[pathlib.Path]:
  """Language models beside each other, a row an attribute, a column a scorer (Figs. 16, 17)."""
  _check(scorers, [row for rows in attributes.values() for row in rows])
  names = list(dict.fromkeys(row.name for rows in attributes.values() for row in rows))
  return plot_fairness(path, models=names, methods=names, estimates={
    attribute: {f'{FAIRNESS[measure]}, scorer {scorer}': _estimates(rows, names, scorer, measure)
                for scorer in scorers} for attribute, rows in attributes.items()})


def _estimates(rows: Sequence[ModelRow], names: Iterable[str], scorer: str, measure: str
               ) -> list[Mapping[str, Any] | None]:
  """Of each model; None where the rows lack it."""
  found = {row.name: row for row in rows}
  return [found[name].estimate(scorer, measure) if name in found else None for name in names]


def _cell(generations: Generations, template: int | str, value: str) -> np.ndarray:
  """Rows of one template and value."""
  if template not in generations.templates:
    raise unknown_name('template', str(template), map(str, generations.templates))
  return np.flatnonzero(
    (generations.template_index == generations.templates.index(template))
    & (generations.value_index == generations.attribute.value_texts.index(value)))


def _check(scorers: Sequence[str], rows: Sequence[ModelRow]) -> None:
  """Refuses scorers that no model has."""
  known = scorer_names(rows)
  for scorer in scorers:
    if scorer not in known:
      raise unknown_name('scorer', scorer, known)


def _truncated(mean: float, sigma: float):
  from scipy.stats import truncnorm
  return truncnorm(-mean / sigma, (1 - mean) / sigma, loc=mean, scale=sigma)
