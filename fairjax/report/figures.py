"""Figures of the report: fairness bars with floors, trade-off, training curves.

Each function takes data and a path without suffix, and writes a PNG and an SVG. Colours are those
of Okabe and Ito, which people with colour-blindness tell apart; a floor is hatched. Files of
equal data are byte-identical under one version of Matplotlib.
"""

import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

METHOD_COLOURS = {
  'baseline': '#555555', 'extended_baseline': '#999999', 'embedding': '#0072B2',
  'sentiment': '#D55E00', 'random_projection': '#E69F00'}
OTHER_COLOURS = ('#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#F0E442')
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
  row_word: str = 'scorer ',
) -> list[pathlib.Path]:
  """Bars of individual and group fairness per model, with floors (Fig. 4, H-30).

  Each bar has a hatched band from 0 to its own floor, with a line at what is expected by chance: a
  bar that ends within its band shows no detectable bias. Whiskers are one standard error.

  Args:
    path: of the files, without suffix.
    models: names, in order.
    methods: the method of each model; decides the colour.
    estimates: scorer -> title of a panel (e.g. 'I.F.') -> per model the dictionary of an
      `Estimate`, or None where it was not measured. One row of panels per scorer.
    row_word: what stands before a row's name in the titles.

  Returns:
    The PNG and the SVG file.
  """
  plt = pyplot()
  colours = _colours(methods)
  panels = list(dict.fromkeys(p for row in estimates.values() for p in row))
  width = max(3.4, 0.62 * len(models) + 1.2)
  with plt.rc_context(STYLE):
    figure, axes = plt.subplots(len(estimates), len(panels), squeeze=False, layout='constrained',
                                figsize=(width * len(panels), 2.5 * len(estimates) + 0.9))
    for row, (scorer, by_panel) in zip(axes, estimates.items(), strict=True):
      for axis, panel in zip(row, panels, strict=True):
        _fairness_panel(axis, by_panel.get(panel, [None] * len(models)), models, methods, colours)
        axis.set_title(f'{panel}, {row_word}{plain(scorer)}')
      row[0].set_ylabel('Wasserstein-1 distance')
    handles, labels = _floor_legend(plt)
    figure.legend(handles, labels, loc='outside lower center', ncols=3, frameon=False)
    return save_figure(figure, path)


def plot_tradeoff(
  path: str | os.PathLike, *, points: Sequence[Mapping[str, Any]], scorer: str,
  relevance: str = 'S.S.c: continuations that mention the value (%)',
) -> list[pathlib.Path]:
  """Fairness against relevance, the fairer to the right (Fig. 6, H-31).

  A hollow mark is a model whose I.F. is within its floor. Whiskers are one standard error of I.F.
  and the 95% interval of the relevance.

  Args:
    path: of the files, without suffix.
    points: one mapping a model: `name`, `method`, `weight` (number or None), `individual_fairness`
      (dictionary of an `Estimate`) and `relevance` (dictionary of a `Share`).
    scorer: name of the scorer, for the axis.
    relevance: name of the relevance, for the axis.

  Returns:
    The PNG and the SVG file.
  """
  return plot_tradeoffs(path, panels={'': points}, scorer=scorer, relevance=relevance)


def plot_tradeoffs(
  path: str | os.PathLike, *, panels: Mapping[str, Sequence[Mapping[str, Any]]], scorer: str,
  relevance: str,
) -> list[pathlib.Path]:
  """As `plot_tradeoff`, title -> points: one panel each, e.g. one an attribute (Fig. 6)."""
  plt = pyplot()
  colours = _colours([p['method'] for points in panels.values() for p in points])
  with plt.rc_context(STYLE):
    figure, axes = plt.subplots(1, len(panels), squeeze=False, layout='constrained',
                                figsize=(5.6 * len(panels), 4.2))
    handles: dict[str, Any] = {}
    for axis, (title, points) in zip(axes[0], panels.items(), strict=True):
      handles |= _tradeoff_panel(axis, points, colours)
      axis.set_title(plain(title))
      axis.set_xlabel(f'I.F. ({plain(scorer)}); fairer to the right')
    axes[0][0].set_ylabel(relevance)
    figure.legend(handles.values(), handles.keys(), loc='outside lower center', ncols=2,
                  frameon=False)
    for axis, points in zip(axes[0], panels.values(), strict=True):
      _place_labels(figure, axis, points)
    return save_figure(figure, path)


def plot_curves(
  path: str | os.PathLike, *, title: str, runs: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[pathlib.Path]:
  """Training curves: one panel per metric, one line per run.

  Args:
    path: of the files, without suffix.
    title: of the figure, e.g. the stage.
    runs: name of a run -> lines of its `metrics.jsonl`: `step`, `kind` (train or valid) and
      numbers by name. Train and valid of one metric share a panel (valid dashed, with dots).
      Values that are not finite numbers are gaps in the line.

  Returns:
    The PNG and the SVG file.

  Raises:
    ValueError: no run holds a number.
  """
  plt = pyplot()
  names = list(dict.fromkeys(
    key for lines in runs.values() for line in lines for key, value in line.items()
    if key not in ('step', 'kind') and _is_number(value)))
  if not names:
    raise ValueError(f'no metric to draw in {title}')
  columns = min(3, len(names))
  rows = math.ceil(len(names) / columns)
  colours = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#555555', '#000000')
  with plt.rc_context(STYLE):
    figure, axes = plt.subplots(rows, columns, squeeze=False, layout='constrained',
                                figsize=(3.3 * columns, 2.3 * rows + 0.9))
    handles, validation = {}, None
    for axis, name in zip(axes.flat, names, strict=False):
      for i, (run, lines) in enumerate(runs.items()):
        for kind, style in (('train', {}), ('valid', {'linestyle': '--', 'marker': '.'})):
          chosen = [line for line in lines if line.get('kind', 'train') == kind and name in line]
          if not chosen:
            continue
          values = [line[name] if _is_number(line[name]) else math.nan for line in chosen]
          axis.plot([line['step'] for line in chosen], values, color=colours[i % len(colours)],
                    linewidth=1.2, **style)
          handles[plain(run)] = plt.Line2D([], [], color=colours[i % len(colours)])
          if kind == 'valid':
            validation = plt.Line2D([], [], color='black', linestyle='--', marker='.')
      axis.set_title(plain(name).replace('_', ' '))
      axis.set_xlabel('step')
      axis.grid(color='#E5E5E5', linewidth=0.6)
    for axis in axes.flat[len(names):]:
      axis.set_visible(False)
    if validation:
      handles['validation'] = validation
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
    axis.bar(x, estimate['null_p95'], 0.86, facecolor='none', edgecolor='#AAAAAA', hatch='////',
             linewidth=0.8)
    axis.hlines(estimate['null_mean'], x - 0.43, x + 0.43, color='black', linewidth=1)
    top = max(estimate['value'] + (estimate['std_error'] or 0.0), estimate['null_p95'])
    axis.annotate(f'{estimate["value"]:.3f}', (x, top), xytext=(0, 2), textcoords='offset points',
                  ha='center', va='bottom', fontsize=7)
  axis.set_xticks(range(len(models)), [plain(m) for m in models], rotation=35, ha='right',
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
    y = [100 * p['relevance']['value'] for p in chosen]
    spread = [[y_ - 100 * p['relevance']['low'] for p, y_ in zip(chosen, y, strict=True)],
              [100 * p['relevance']['high'] - y_ for p, y_ in zip(chosen, y, strict=True)]]
    handles[plain(method).replace('_', ' ')] = axis.errorbar(
      x, y, xerr=[p['individual_fairness']['std_error'] or 0.0 for p in chosen], yerr=spread,
      color=colours[method], marker=_MARKERS.get(method, 'v'), markersize=6, elinewidth=0.6,
      linewidth=1.2 if len(chosen) > 1 else 0)
    fair = [_position(p) for p in chosen if p['individual_fairness']['within_floor']]
    axis.plot([x for x, _ in fair], [y for _, y in fair], linestyle='none', color=colours[method],
              marker=_MARKERS.get(method, 'v'), markersize=6, markerfacecolor='white', zorder=3)
  (handles['hollow: within noise'],) = axis.plot(
    [], [], linestyle='none', marker='o', color='black', markerfacecolor='white')
  axis.margins(x=0.14, y=0.18)
  low, high = axis.get_xlim()
  axis.set_xlim(high, low)  # reversed: fairer to the right
  axis.set_xticks([t for t in axis.get_xticks() if 0 <= t <= high])
  axis.set_yticks([t for t in axis.get_yticks() if 0 <= t <= 100])
  axis.grid(color='#E5E5E5', linewidth=0.6)
  return handles


def _floor_legend(plt) -> tuple[list, list[str]]:
  """Legend entries of the floor and the whisker."""
  from matplotlib.lines import Line2D
  band = plt.Rectangle((0, 0), 1, 1, facecolor='none', edgecolor='#AAAAAA', hatch='////')
  return ([band, Line2D([], [], color='black', linewidth=1),
           Line2D([], [], color='black', marker='|', linestyle='none', markersize=9)],
          ['up to the floor (95th percentile by chance)', 'expected by chance', 'standard error'])


def _place_labels(figure, axis, points) -> None:
  """Writes each point's name where it covers other labels, points and lines least."""
  from matplotlib.patheffects import withStroke
  figure.draw_without_rendering()
  renderer = figure.canvas.get_renderer()
  frame = axis.bbox
  obstacles = _obstacles(axis, points)
  boxes = []
  for point in points:
    best = None
    for dx, dy, ha, va in (
        (7, 5, 'left', 'bottom'), (-7, 5, 'right', 'bottom'), (7, -5, 'left', 'top'),
        (-7, -5, 'right', 'top'), (0, 22, 'center', 'bottom'), (0, -22, 'center', 'top'),
        (18, 18, 'left', 'bottom'), (-18, -18, 'right', 'top'), (-18, 18, 'right', 'bottom'),
        (18, -18, 'left', 'top'), (0, 36, 'center', 'bottom'), (0, -36, 'center', 'top')):
      label = axis.annotate(
        plain(point['name']), _position(point), xytext=(dx, dy), textcoords='offset points', ha=ha,
        va=va, fontsize=8, path_effects=[withStroke(linewidth=2.5, foreground='white')],
        arrowprops={'arrowstyle': '-', 'linewidth': 0.4, 'color': '#999999', 'shrinkB': 4})
      box = label.get_window_extent(renderer).padded(2)
      inside = (frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0
                and box.y1 <= frame.y1)
      cost = 20 * sum(box.overlaps(b) for b in boxes) + 40 * (not inside)
      cost += sum(box.contains(x, y) for x, y in obstacles)
      if best is None or cost < best[0]:
        if best:
          best[1].remove()
        best = (cost, label, box)
      else:
        label.remove()
    boxes.append(best[2])


def _position(point: Mapping[str, Any]) -> tuple[float, float]:
  """Where a model stands in the trade-off."""
  return point['individual_fairness']['value'], 100 * point['relevance']['value']


def _obstacles(axis, points) -> list[tuple[float, float]]:
  """Pixels along the lines of each method and along the whiskers; points count five times."""
  spots = []
  for method in dict.fromkeys(p['method'] for p in points):
    line = sorted((p for p in points if p['method'] == method), key=lambda p: p['weight'] or 0)
    for (x0, y0), (x1, y1) in zip(map(_position, line[:-1]), map(_position, line[1:]), strict=True):
      spots += [(x0 + (x1 - x0) * k / 60, y0 + (y1 - y0) * k / 60) for k in range(61)]
  for point in points:
    x, y = _position(point)
    spots += [(x, y)] * 5
    spots += [(x, y + k / 6 * (100 * point['relevance'][end] - y))
              for end in ('low', 'high') for k in range(7)]
  return [tuple(axis.transData.transform(spot)) for spot in spots]


def _colours(methods: Sequence[str]) -> dict[str, str]:
  """A colour for each method; unknown ones take the spare colours in order."""
  spare = [m for m in dict.fromkeys(methods) if m not in METHOD_COLOURS]
  free = [c for c in OTHER_COLOURS if c not in METHOD_COLOURS.values()]
  return METHOD_COLOURS | {m: free[i % len(free)] for i, m in enumerate(spare)}


def _is_number(value: Any) -> bool:
  """True for finite numbers."""
  return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def plain(text: str) -> str:
  """Text that Matplotlib does not read as mathematics."""
  return text.replace('$', r'\$')


def pyplot():
  """Pyplot without a display."""
  import matplotlib
  matplotlib.use('Agg')
  import matplotlib.pyplot
  return matplotlib.pyplot


def save_figure(figure, path: str | os.PathLike) -> list[pathlib.Path]:
  """Writes PNG and SVG without dates, or the form that the path ends in, and closes the figure."""
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  if path.suffix in _METADATA:
    files = [path]
  else:
    files = [path.with_name(path.name + suffix) for suffix in ('.png', '.svg')]
  for file in files:
    figure.savefig(file, dpi=150, metadata=_METADATA[file.suffix])
  pyplot().close(figure)
  return files
