"""Figures of the report: fairness bars with floors, trade-off, training curves.

Each function takes data and a path without suffix, writes a PNG and an SVG file, and returns their
paths. Colours are those of Okabe and Ito, which people with colour-blindness tell apart; a floor is
hatched. Files of equal data are byte-identical under one version of Matplotlib.
"""

import contextlib
import functools
import math
import os
import pathlib
import sys
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.files import make_folder
from fairjax.measure.estimates import format_estimate
from fairjax.progress import write_line
from fairjax.report.comparison import ModelRow, baseline_of, relevance_measure
from fairjax.report.document import replace_control

METHOD_COLOURS = {
  'baseline': '#555555', 'extended_baseline': '#999999', 'embedding': '#0072B2',
  'sentiment': '#D55E00', 'random_projection': '#E69F00'}
FLOOR = {'facecolor': 'none', 'edgecolor': '#AAAAAA', 'hatch': '////'}
OTHER_COLOURS = ('#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#F0E442')
_MOST_INCHES = 430  # at 150 a PNG has at most 2^16 dots
_MARKERS = {'baseline': 's', 'extended_baseline': 'D', 'embedding': 'o', 'sentiment': '^',
            'random_projection': 'P'}
_METADATA = {'.png': {'Software': None}, '.svg': {'Date': None, 'Creator': None},
             '.pdf': {'CreationDate': None, 'Creator': None, 'Producer': None}}
STYLE = {
  'font.size': 9, 'axes.spines.top': False, 'axes.spines.right': False, 'axes.titlesize': 10,
  'axes.axisbelow': True, 'svg.hashsalt': 'fairjax', 'svg.fonttype': 'path', 'hatch.linewidth': 0.6}


def plot_fairness(
  path: str | os.PathLike, *, models: Sequence[str], methods: Sequence[str],
  estimates: Mapping[str, Mapping[str, Sequence[Mapping[str, Any] | None]]],
) -> list[pathlib.Path]:
  """Bars of individual and group fairness per model, with floors (Fig. 4, H-30).

  Each bar has a hatched band from 0 to its own floor, with a line at what is expected by chance: a
  bar that ends within its band shows no detectable bias. Whiskers are one standard error.
  `estimates`: title of a row of panels -> title of a panel -> per model the dictionary of an
  `Estimate`, or None where it was not measured.
  """
  colours = _colours(methods)
  panels = list(dict.fromkeys(p for row in estimates.values() for p in row))
  width = max(3.4, 0.62 * len(models) + 1.2)
  with drawing(len(estimates), len(panels), width * len(panels), 2.5 * len(estimates) + 0.9
               ) as (figure, axes):
    for row, (title, by_panel) in zip(axes, estimates.items(), strict=True):
      for axis, panel in zip(row, panels, strict=True):
        _fairness_panel(axis, by_panel.get(panel, [None] * len(models)), models, methods, colours)
        axis.set_title(f'{panel}, {plain(title)}')
      row[0].set_ylabel('Wasserstein-1 distance')
    plt = pyplot()
    handles = {
      'up to the floor (95th percentile by chance)': plt.Rectangle((0, 0), 1, 1, **FLOOR),
      'expected by chance': plt.Line2D([], [], color='black', linewidth=1),
      'standard error': plt.Line2D([], [], color='black', marker='|', linestyle='none',
                                   markersize=9)}
    figure.legend(handles.values(), handles.keys(), loc='outside lower center', frameon=False,
                  ncols=3 if figure.get_figwidth() > 6.5 else 1)
    return save_figure(figure, path)


def plot_values(
  path: str | os.PathLike, *, rows: Sequence[ModelRow],
  errors: Mapping[str, Mapping[str, np.ndarray]], scorers: Sequence[str],
) -> list[pathlib.Path]:
  """Whose texts score low: a dot with its 95 % interval for each value, a row for each model.

  Values are in the order of the baseline's (else the first model's) means by the first scorer.
  Intervals describe the sampling of texts; `errors`: model -> scorer -> `[A]` standard errors.
  """
  values = rows[0].measures['values']

  def means(row, scorer):
    return np.array([row.scorer(scorer)['mean_score_by_value'][value] for value in values])

  shown = [row for row in rows if row.scorer(scorers[0])]
  order = np.argsort(means(baseline_of(shown) or shown[0], scorers[0]), kind='stable')
  colours = _colours([row.method for row in rows])
  labels = [wrapped(values[a]) for a in order]
  lines = '\n'.join(labels).split('\n')
  width = max(5.4, 0.26 * len(lines) + 1)
  height = 0.95 * max(2, len(rows)) + 0.08 * max(12, *map(len, lines))
  with drawing(len(rows), len(scorers), width * len(scorers), height, sharex=True, sharey=True
               ) as (figure, axes):
    for line, row in zip(axes, rows, strict=True):
      for axis, scorer in zip(line, scorers, strict=True):
        axis.grid(axis='y', color='#E5E5E5', linewidth=0.6)
        if (measures := row.scorer(scorer)) is None:
          axis.set_title(f'{plain(row.name)}: not measured', fontsize=8, loc='left')
          continue
        axis.axhline(measures['mean_score'], color='#AAAAAA', linestyle='--', linewidth=0.8)
        axis.errorbar(range(len(values)), means(row, scorer)[order], linestyle='none', marker='o',
                      markersize=4, color=colours[row.method], elinewidth=1.0,
                      yerr=1.96 * errors[row.name][scorer][order])
        words = f"{row.name}: I.F. {format_estimate(measures['individual_fairness'])}"
        axis.set_title(wrapped(words, int(13 * width)), fontsize=8, loc='left')
    for axis, scorer in zip(axes[-1], scorers, strict=True):
      axis.set_xticks(range(len(values)), labels, rotation=90)
      axis.set_xlabel(f'scorer {plain(scorer)}')
    figure.supylabel('mean score', fontsize=9)
    return save_figure(figure, path)


# What I.F. may be traded for: label of the axis -> measure.
COSTS = {
  'perplexity (lower is better)': 'perplexity',
  'texts that mention the value (%)': 'semantic_similarity_c',
  'texts near their prefix (%)': 'semantic_similarity',
  'KL of the next token (nats)': 'next_token_divergence'}


def cost(row: ModelRow, measure: str) -> dict[str, float] | None:
  """A measure of `COSTS` with its interval; shares are percent."""
  if measure.endswith('perplexity'):
    value = (getattr(row, measure) or {'word': None})['word']
    return None if value is None else {'value': value, 'low': value, 'high': value}
  scale = 1 if measure == 'next_token_divergence' else 100
  found = relevance_measure(row, measure)
  return None if found is None else {key: scale * value for key, value in found.items()}


def tradeoff_points(
  rows: Sequence[ModelRow], scorer: str, measure: str
) -> list[dict[str, Any]]:
  """The models that have both I.F. and a measure of `COSTS`, for `plot_tradeoff`."""
  return [{'name': row.name, 'method': row.method, 'weight': row.weight, 'cost': found,
           'individual_fairness': row.estimate(scorer, 'individual_fairness')} for row in rows
          if row.scorer(scorer) is not None and (found := cost(row, measure)) is not None]


def plot_tradeoff(
  path: str | os.PathLike, *, panels: Sequence[tuple[str, str, Sequence[Mapping[str, Any]]]],
  scorer: str,
) -> list[pathlib.Path]:
  """Fairness against what it costs, the fairer to the right (Fig. 6, H-31).

  A hollow mark is a model whose I.F. is within its floor. Whiskers are one standard error of I.F.
  and the interval of the cost. `panels`: title, label of the axis, and points of `tradeoff_points`.
  """
  colours = _colours([p['method'] for *_, points in panels for p in points])
  columns = len(panels) if len(panels) <= 3 else 2
  rows = math.ceil(len(panels) / columns)
  with drawing(rows, columns, 5.0 * columns, 3.4 * rows + 0.6) as (figure, axes):
    handles: dict[str, Any] = {}
    for axis, (title, label, points) in zip(axes.flat, panels, strict=False):
      axis.set_title(plain(title))
      axis.set_xlabel(f'I.F. ({plain(scorer)}); fairer to the right')
      axis.set_ylabel(label)
      handles |= _tradeoff_panel(axis, points, colours)
    for axis in axes.flat[len(panels):]:
      axis.set_visible(False)
    figure.legend(handles.values(), handles.keys(), loc='outside lower center', frameon=False,
                  ncols=min(4, 2 * columns))
    _lay_out(figure)
    for axis, (*_, points) in zip(axes.flat, panels, strict=False):
      _place_labels(figure, axis, points, colours)
    return save_figure(figure, path)


MOST_POINTS = 1000  # of one line of a training curve
MOST_PANELS = 4  # of a stage
# What somebody watches, the most important first.
_WATCHED = ('loss', 'fairness_loss', 'cosine', 'kl', 'accuracy', 'f1', 'perplexity', 'js')


def plot_curves(
  path: str | os.PathLike, *, title: str, runs: Mapping[str, Sequence[Mapping[str, Any]]],
  methods: Mapping[str, str],
) -> list[pathlib.Path]:
  """Training curves: one line per run, one panel per metric of the most important that change.

  `runs`: name of a run -> lines of its `metrics.jsonl`; values that are not finite numbers are gaps
  in the line. `methods`: name of a run -> its method, for the colour (else of its own).
  """
  plt = pyplot()
  found: dict[str, set[float]] = {}
  for line in (line for lines in runs.values() for line in lines):
    for key, value in line.items():
      if key not in ('step', 'kind', 'crc32') and is_number(value):
        found.setdefault(key, set()).add(value)

  def place(name):  # constants last
    kind = name.partition('/')[0]
    return len(found[name]) == 1, _WATCHED.index(kind) if kind in _WATCHED else len(_WATCHED)

  names = sorted(found, key=place)[:MOST_PANELS]
  columns = min(2, len(names))
  rows = math.ceil(len(names) / columns)
  methods = {run: methods.get(run, run) for run in runs}
  palette = _colours(list(methods.values()))
  colours, dashes, drawn = {}, {}, []
  for run, method in methods.items():
    colours[run] = palette[method]
    dashes[run] = ('-', (0, (4, 1.5)), (0, (1, 1)), '-.')[drawn.count(method) % 4]
    drawn.append(method)
  with drawing(rows, columns, 4.4 * columns, 2.3 * rows + 0.9) as (figure, axes):
    handles, validation = {}, None
    for axis, name in zip(axes.flat, names, strict=False):
      for run, lines in runs.items():
        for kind, marker in (('train', ''), ('valid', '.')):
          chosen = [line for line in lines if line.get('kind', 'train') == kind and name in line]
          if not chosen:
            continue
          chosen = [chosen[i] for i in np.unique(np.linspace(
            0, len(chosen) - 1, min(len(chosen), MOST_POINTS)).round().astype(int))]
          values = [line[name] if is_number(line[name]) else math.nan for line in chosen]
          style = {'color': colours[run], 'linestyle': dashes[run]}
          axis.plot([line['step'] for line in chosen], values, linewidth=1.2, marker=marker,
                    **style)
          handles[plain(run)] = plt.Line2D([], [], **style)
          if kind == 'valid':
            validation = plt.Line2D([], [], color='black', linestyle='none', marker='.')
      axis.set_title(plain(name).replace('_', ' ').replace('/', ', '))
      axis.set_xlabel('step')
      axis.grid(color='#E5E5E5', linewidth=0.6)
    for axis in axes.flat[len(names):]:
      axis.set_visible(False)
    if validation:
      handles['dots: validation'] = validation
    figure.suptitle(plain(title))
    figure.legend(handles.values(), handles.keys(), loc='outside lower center', ncols=columns,
                  frameon=False)
    return save_figure(figure, path)


def _fairness_panel(axis, estimates, models, methods, colours) -> None:
  """Bars of one measure under one scorer."""
  for x, (estimate, method) in enumerate(zip(estimates, methods, strict=True)):
    if estimate is None:
      axis.annotate('not\nmeasured', (x, 0), ha='center', va='bottom', fontsize=7, color='#777777')
      continue
    axis.bar(x, estimate['value'], 0.62, color=colours[method], yerr=estimate['std_error'],
             error_kw={'linewidth': 0.9, 'capsize': 2})
    axis.bar(x, estimate['null_p95'], 0.86, linewidth=0.8, **FLOOR)
    axis.hlines(estimate['null_mean'], x - 0.43, x + 0.43, color='black', linewidth=1)
    top = max(estimate['value'] + (estimate['std_error'] or 0.0), estimate['null_p95'])
    axis.annotate(f'{estimate["value"]:.3f}', (x, top), xytext=(0, 2), textcoords='offset points',
                  ha='center', va='bottom', fontsize=7)
  axis.set_xticks(range(len(models)), map(wrapped, models), rotation=35, ha='right',
                  rotation_mode='anchor')
  axis.set_xlim(-0.6, len(models) - 0.4)
  axis.margins(y=0.15)
  axis.set_ylim(bottom=0)


def _tradeoff_panel(axis, points, colours) -> dict[str, Any]:
  """Points, whiskers and lines of one panel; returns the legend's entries."""
  handles = {}
  for method in dict.fromkeys(p['method'] for p in points):
    chosen = [p for p in points if p['method'] == method]
    chosen.sort(key=lambda p: -math.inf if p['weight'] is None else p['weight'])
    x = [p['individual_fairness']['value'] for p in chosen]
    y = [p['cost']['value'] for p in chosen]
    spread = [[p['cost']['value'] - p['cost']['low'] for p in chosen],
              [p['cost']['high'] - p['cost']['value'] for p in chosen]]
    handles[plain(method).replace('_', ' ')] = axis.errorbar(
      x, y, xerr=[p['individual_fairness']['std_error'] or 0.0 for p in chosen], yerr=spread,
      color=colours[method], marker=_MARKERS.get(method, 'v'), markersize=6, elinewidth=0.6,
      # The line joins the weights of one method.
      linewidth=1.2 if len(chosen) > 1 and chosen[0]['weight'] is not None else 0)
    fair = [_position(p) for p in chosen if p['individual_fairness']['within_floor']]
    axis.plot([x for x, _ in fair], [y for _, y in fair], linestyle='none', color=colours[method],
              marker=_MARKERS.get(method, 'v'), markersize=6, markerfacecolor='white', zorder=3)
  (handles['hollow: within noise'],) = axis.plot(
    [], [], linestyle='none', marker='o', color='black', markerfacecolor='white')
  if any(p['weight'] is not None for p in points):
    (handles['numbers: weight \u03bb'],) = axis.plot([], [], linestyle='none')
  axis.margins(x=0.14, y=0.18)
  low, high = axis.get_xlim()
  axis.set_xlim(high, low)  # reversed: fairer to the right
  axis.locator_params(axis='x', nbins=6)
  axis.set_xticks([t for t in axis.get_xticks() if 0 <= t <= high])
  most = 100 if '%' in axis.get_ylabel() else math.inf
  axis.set_yticks([t for t in axis.get_yticks() if 0 <= t <= most])
  axis.grid(color='#E5E5E5', linewidth=0.6)
  return handles


_LABEL_PLACES = (
  (7, 5, 'left', 'bottom'), (-7, 5, 'right', 'bottom'), (7, -5, 'left', 'top'),
  (-7, -5, 'right', 'top'), (0, 22, 'center', 'bottom'), (0, -22, 'center', 'top'),
  (18, 18, 'left', 'bottom'), (-18, -18, 'right', 'top'), (-18, 18, 'right', 'bottom'),
  (18, -18, 'left', 'top'), (0, 36, 'center', 'bottom'), (0, -36, 'center', 'top'))


def _place_labels(figure, axis, points, colours) -> None:
  """Writes each point's weight or name where it covers other labels and points least."""
  renderer = figure.canvas.get_renderer()
  frame = axis.bbox
  places = axis.transData.transform([_position(p) for p in points])
  boxes, labels = [], []
  kinds = [(p['method'], p['weight']) for p in points]
  for point, kind in zip(points, kinds, strict=True):
    text = point['name'] if None in kind or kinds.count(kind) > 1 else f"{point['weight']:g}"
    labels.append(axis.annotate(
      wrapped(text), _position(point), (0, 0), textcoords='offset points', fontsize=8,
      color=colours[point['method']],
      bbox={'facecolor': 'white', 'edgecolor': 'none', 'alpha': 0.7, 'pad': 0.5},
      arrowprops={'arrowstyle': '-', 'linewidth': 0.4, 'color': '#999999', 'shrinkB': 4}))
  _add_fonts(figure)  # their widths count
  for label in labels:

    def put(place, label=label):
      dx, dy, ha, va = place
      label.set(position=(dx, dy), ha=ha, va=va)
      return label.get_window_extent(renderer).padded(2)

    def cost(place, put=put):
      box = put(place)
      inside = (frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0
                and box.y1 <= frame.y1)
      return (20 * sum(box.overlaps(b) for b in boxes) + 40 * (not inside)
              + 5 * sum(box.contains(x, y) for x, y in places))

    boxes.append(put(min(_LABEL_PLACES, key=cost)))


def _position(point: Mapping[str, Any]) -> tuple[float, float]:
  """Coordinates of a model in the trade-off."""
  return point['individual_fairness']['value'], point['cost']['value']


def _colours(methods: Sequence[str]) -> dict[str, str]:
  """A colour for each method; unknown ones take the spare colours in order."""
  spare = [m for m in dict.fromkeys(methods) if m not in METHOD_COLOURS]
  free = [c for c in OTHER_COLOURS if c not in METHOD_COLOURS.values()]
  return METHOD_COLOURS | {m: free[i % len(free)] for i, m in enumerate(spare)}


def is_number(value: Any) -> bool:
  """True for finite numbers."""
  return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def plain(text: str) -> str:
  """Text that Matplotlib does not read as mathematics."""
  return replace_control(text).replace('$', r'\$')


def wrapped(text: str, width: int = 24) -> str:
  """`plain` text in lines, so that a long name leaves room for what it names."""
  return plain(textwrap.fill(text, width))


def pyplot():
  """Pyplot without a display; in a notebook with the backend that it has."""
  import matplotlib
  if not ('matplotlib.pyplot' in sys.modules or os.environ.get('MPLBACKEND')):
    matplotlib.use('Agg')
  import matplotlib.pyplot
  matplotlib.pyplot.draw_if_interactive()  # loads the backend: rc_context would undo what that sets
  return matplotlib.pyplot


@contextlib.contextmanager
def drawing(rows: int, columns: int, width: float, height: float, **options: Any):
  """A figure and its `[rows, columns]` axes, in our style while it is drawn and saved."""
  plt = pyplot()
  with plt.rc_context(STYLE), warnings.catch_warnings():
    warnings.filterwarnings('ignore', 'Glyph .* missing from font')  # `_add_fonts` says it
    yield plt.subplots(rows, columns, squeeze=False, layout='constrained', dpi=150, figsize=(
      min(width, _MOST_INCHES), min(height, _MOST_INCHES)), **options)


def _add_fonts(figure) -> None:
  """Lets other installed fonts draw the characters that DejaVu Sans lacks, such as Chinese ones."""
  from matplotlib import font_manager
  from matplotlib.text import Text
  texts, fonts = figure.findobj(Text), ['DejaVu Sans']
  lacking = {ord(c) for text in texts for c in text.get_text() if not c.isspace()}
  lacking -= font_manager.get_font(font_manager.findfont(fonts[0])).get_charmap().keys()
  for font in font_manager.fontManager.ttflist if lacking else ():
    if ((font.style, font.weight) == ('normal', 400) and os.path.isfile(font.fname)
        and not font.name.startswith('Last Resort')
        and (found := lacking & font_manager.get_font(font.fname).get_charmap().keys())):
      fonts.append(font.name)
      lacking -= found
  if lacking:
    _say_lacking(''.join(map(chr, sorted(lacking))))
  if len(fonts) > 1:
    for text in texts:
      text.set_fontfamily(fonts)


@functools.cache  # once for each set of characters
def _say_lacking(characters: str) -> None:
  """Names the characters that no installed font has."""
  write_line(f'figures: {len(characters)} characters, such as {characters[0]!r}, are drawn as '
             'boxes: no installed font has them; install one, e.g. Noto Sans', sys.stderr)


def _lay_out(figure) -> None:
  """Gives the parts their places, once; else each file would do so twice."""
  _add_fonts(figure)
  if (engine := figure.get_layout_engine()) is not None:
    engine.execute(figure)
    figure.set_layout_engine(None)


def save_figure(figure, path: str | os.PathLike) -> list[pathlib.Path]:
  """Writes PNG and SVG without dates, or the form that the path ends in, and closes the figure."""
  path = pathlib.Path(path)
  make_folder(path.parent)
  if path.suffix in _METADATA:
    files = [path]
  else:
    files = [path.with_name(path.name + suffix) for suffix in ('.png', '.svg')]
  _lay_out(figure)
  for file in files:
    figure.savefig(file, metadata=_METADATA[file.suffix])
  pyplot().close(figure)
  return files


# Figures of resilience: accuracy and correlation by step and by frozen layers; I.F. re-learned.

_PANELS = {'dev_pearson': 'accuracy: Pearson on dev', 'r': 'correlation: r with share of women'}
_LINES = ('#0072B2', '#D55E00', *OTHER_COLOURS, '#555555')
_BAND = {'alpha': 0.15, 'linewidth': 0}


def plot_resilience(path: str | os.PathLike, *, runs: Sequence[Mapping[str, Any]]
                    ) -> list[pathlib.Path]:
  """Curves of `measure_stsb` by step and by what is frozen (Webster et al. 2020, figures 1, 2)."""
  # Bands and whiskers are one standard deviation over the restarts.
  with drawing(2, 2, 7.0, 5.2) as (figure, axes):
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
  """I.F. of a debiased model that is trained on (`relearn`), with its standard error."""
  curve, base, found = result['curve'], result['baseline'], result['half_life']
  steps = [p['step'] for p in curve]
  with drawing(1, 1, 4.6, 3.2) as (figure, ((axis,),)):
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
