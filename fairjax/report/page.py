"""The report as one HTML file that needs nothing else: no server, no network, no other file.

The sections are plain HTML. A script draws the map of all pairs of values, and for a chosen cell
its scores and sentences. It reads its data from a JSON element and shows them as text. A
Content-Security-Policy allows this script and the style sheet by their hashes and nothing else.
"""

import base64
import dataclasses
import hashlib
import importlib.resources
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.counterfactual.attributes import AND
from fairjax.counterfactual.word_forms import WordFinder
from fairjax.errors import UserError
from fairjax.measure.columns import Generations
from fairjax.measure.scorers.base import RecordedScorer
from fairjax.measure.scorers.cache import score_file, score_generations
from fairjax.report.comparison import ModelRow, scorer_names
from fairjax.report.document import Document, attribute_html, escape_html, html_section, span

# The distributions and sentences that the numbers of one model come from.
#
# Letters: M templates, A attribute values, k samples of a prefix that are kept.

BINS = 20  # ranges of the score in a histogram
MOST_SAMPLES = 20  # of a prefix


@dataclasses.dataclass(frozen=True)
class Distributions:
  """Distributions and sentences of one model."""

  values: tuple[str, ...]  # [A] names
  prefixes: str  # SHA-256 of all prefixes: equal for records that answer the same prompts
  # [M][k] sample numbers, drawn with equal noise for every value; None: samples are not coupled
  numbers: list[list[int]] | None
  # [M][A][k] pairs of prefix and continuation. The k smallest sample numbers (the first records
  # where there are none), so the choice does not depend on the texts.
  texts: list[list[list[tuple[str, str]]]]
  scores: dict[str, list[list[list[float]]]]  # scorer -> [M][A][k] scores of those texts
  histograms: dict[str, np.ndarray]  # scorer -> [M, A, BINS] int, counts of all samples
  means: dict[str, np.ndarray]  # scorer -> [M, A] float64, means of all samples
  # scorer -> [A] float64, standard errors of the values' means over templates; NaN where a prefix
  # has one sample
  errors: dict[str, np.ndarray]


def stored_scores(
  generations: Generations, measures: Mapping[str, Any], scores_directory: str | os.PathLike
) -> dict[str, np.ndarray]:
  """Scorer -> `[R]` scores in the score files of what was measured; asks no scorer."""
  scores = {}
  for name, found in measures['scorers'].items():
    kind, _, key = name.partition(':')
    scorer = (RecordedScorer(key or None) if kind == 'recorded'
              else _StoredScorer(name, found['fingerprint']))
    path = score_file(scores_directory, measures['attribute'], scorer)
    scores[name] = score_generations(generations, scorer, path, scored=measures['scored_text'])
  return scores


class _StoredScorer:
  """In place of a scorer that has scored all texts already."""

  def __init__(self, name: str, fingerprint: str):
    self.name, self.fingerprint = name, fingerprint

  def score(self, texts: Sequence[str]) -> np.ndarray:
    """Refuses: it knows no text."""
    raise UserError(f'{len(texts)} texts have no score of {self.name} in its score file, which the '
                    'measures had: score and measure the records again')


def collect_distributions(
  generations: Generations, scores: Mapping[str, np.ndarray], *, coupled: bool,
) -> Distributions:
  """Collects the distributions of one model from its R records and `[R]` scores by scorer."""
  # `coupled` is that of the measures. Of a prefix `MOST_SAMPLES` samples keep their texts;
  # histograms and means are over all.
  index = generations.cells()
  kept = [[cell[:MOST_SAMPLES] for cell in row] for row in index]
  numbers = [generations.sample[row[0]].tolist() for row in kept] if coupled else None
  prefixes = sorted({(repr(generations.templates[t]), int(v), p) for t, v, p in zip(
    generations.template_index, generations.value_index, generations.prefixes, strict=True)})
  names = generations.attribute.value_texts
  content = json.dumps([[t, names[v], p] for t, v, p in prefixes])
  histograms, means, errors = {}, {}, {}
  for name, column in scores.items():
    ranges = np.minimum((column * BINS).astype(np.int64), BINS - 1)
    histograms[name] = np.array([[np.bincount(ranges[c], minlength=BINS) for c in row]
                                 for row in index])
    means[name] = np.array([[column[c].mean() for c in row] for row in index])
    squares = [[column[c].var(ddof=1) / len(c) if len(c) > 1 else np.nan for c in row]
               for row in index]
    errors[name] = np.sqrt(np.sum(squares, 0)) / len(index)
  return Distributions(
    values=names,
    prefixes=hashlib.sha256(content.encode('utf-8', 'surrogatepass')).hexdigest(), numbers=numbers,
    texts=[[[(generations.prefixes[i], generations.continuations[i]) for i in c] for c in row]
           for row in kept],
    scores={name: [[column[c].tolist() for c in row] for row in kept]
            for name, column in scores.items()},
    histograms=histograms, means=means, errors=errors)


MOST_BYTES = 4_500_000  # of the page
_UNIT = 10_000  # numbers of cells are whole multiples of its inverse: shorter than decimals
MOST_CHARACTERS = 1000  # of one text; the rest is counted
_UNSAFE = re.compile('[<>&\u2028\u2029\ud800-\udfff]')


def make_page(
  document: Document, rows: Sequence[ModelRow], distributions: Mapping[str, Distributions]
) -> str:
  """Makes the page, without what makes it too large."""
  # Sentences go first, those with the largest sample numbers; then pairs of values, those with the
  # smallest distances. The page says how many are left out.
  (template, parts), order = _frame(document), _pair_order(rows)
  measured = rows[0].measures
  fixed = {
    'scorers': scorer_names(rows), 'models': [row.name for row in rows],
    'values': measured['values'], 'templates': list(map(str, measured['templates'])),
    'noise_rules': [_noise_rule(row.measures) for row in rows],
    'examples': _examples(distributions[rows[0].name])}

  def page(pairs, samples):
    data = fixed | _variable_parts(rows, distributions, order[:pairs], samples)
    data['left_out'] = _left_out(data, distributions, len(order))
    filled = parts | {'data': embed(data)}
    return re.sub(r'\{\{(\w+)\}\}', lambda match: filled[match[1]], template)

  def first_that_fits(sizes):
    for size in sizes:
      text = page(*size)
      if len(text.encode('utf-8')) <= MOST_BYTES:
        return text
    return ''

  pairs = len(order)
  if text := first_that_fits([(pairs, MOST_SAMPLES)]):
    return text
  if least := first_that_fits([(pairs, 1)]):
    return first_that_fits([(pairs, samples) for samples in (12, 8, 5, 3, 2)]) or least
  halves = [(pairs >> halved, 1) for halved in range(1, pairs.bit_length())]
  return first_that_fits(halves) or page(1, 0)


def embed(data: Any) -> str:
  r"""JSON for a script element, safe for any text.

  >>> embed({'a': '</script>'})
  '{"a":"\\u003c/script\\u003e"}'
  """
  text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(',', ':'))
  return _UNSAFE.sub(lambda match: f'\\u{ord(match[0]):04x}', text)


def _frame(document: Document) -> tuple[str, dict[str, str]]:
  """The page with names in place of its parts, and those that every size of it holds."""
  assets = importlib.resources.files('fairjax.report') / 'assets'
  page, style, script = (
    (assets / name).read_text(encoding='utf-8') for name in ('page.html', 'page.css', 'map.js'))
  first, *rest = [section for section in document.sections if not section.folded]
  folded = ''.join(section.html() for section in document.sections if section.folded)
  links = [(first.anchor, first.heading), ('map', 'Where the differences are'),
           *((section.anchor, section.heading) for section in rest),
           *([('details', 'Details')] if folded else [])]
  return page, {
    'policy': f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
              "base-uri 'none'; form-action 'none'",
    'title': attribute_html(document.title), 'heading': escape_html(document.title),
    'style': style, 'script': script,
    'contents': '\n'.join(f'<a href="#{anchor}">{escape_html(heading)}</a>'
                          for anchor, heading in links),
    'head': '\n'.join(part.html(document.title) for part in document.head),
    'first': first.html(), 'rest': ''.join(section.html() for section in rest) + (
      html_section('details', 'Details', folded) if folded else '')}


def _hash(text: str) -> str:
  """Source expression of a Content-Security-Policy for one inline element."""
  digest = hashlib.sha256(text.encode('utf-8')).digest()
  return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _noise_rule(measures: Mapping[str, Any]) -> str:
  """How the noise of one cell was found."""
  how = 'within sample numbers' if measures['coupled'] else 'over all samples of the two'
  return ("Floor: the 95th percentile of the distance after the two values exchanged samples at "
          f"random, {how}, {measures['permutations']:,} times. Where none of these reaches the "
          'distance, p is a bound that holds for any scores (McDiarmid). Verdicts go by numbers '
          'before rounding.')


def _pair_order(rows: Sequence[ModelRow]) -> list[int]:
  """Numbers of the pairs, the largest distance under any model and scorer first."""
  # Distances of a scorer count in shares of its largest, so that scorers count alike.
  columns = []
  for scorer in scorer_names(rows):
    means = [row.scorer(scorer)['pairs']['distance'] for row in rows if row.scorer(scorer)]
    most = max(map(max, means)) or 1.0
    columns += [[d / most for d in mean] for mean in means]
  largest = list(map(max, zip(*columns, strict=True)))
  return sorted(range(len(largest)), key=lambda p: (-largest[p], p))


def _variable_parts(
  rows: Sequence[ModelRow], distributions: Mapping[str, Distributions], pairs: Sequence[int],
  samples: int
) -> dict[str, Any]:
  """Cells, histograms and sentences of some pairs, with some samples of each prefix."""
  first = list(itertools.combinations(range(len(rows[0].measures['values'])), 2))
  pairs = sorted(pairs)
  chosen = {i for p in pairs for i in first[p]}
  strings: dict[str, int] = {}
  scorers = scorer_names(rows)
  return {
    'pairs': [first[p] for p in pairs],
    'cells': [[_cells(row, scorer, pairs) for row in rows] for scorer in scorers],
    'most': [max((max(map(max, row.scorer(scorer)['cells']['distance'])) for row in rows
                  if row.scorer(scorer)), default=0.0) or 1.0 for scorer in scorers],
    'histograms': [[_histograms(distributions[row.name], scorer, chosen) for row in rows]
                   for scorer in scorers],
    'distributions': [_sentences(distributions[row.name], scorers, chosen, samples, strings)
                      for row in rows],
    'strings': list(strings)}


def _examples(found: Distributions) -> list[str]:
  """`[M]` the words of every template, with a blank for the value."""
  value = WordFinder(found.values[0].split(AND), ignore_case=True, any_space=True)
  return [value.replace(row[0][0][0], '___')[0][:MOST_CHARACTERS] for row in found.texts]


def _cells(row: ModelRow, scorer: str, pairs: Sequence[int]) -> dict[str, Any] | None:
  """The heat map of one model and scorer."""
  measures = row.scorer(scorer)
  if measures is None:
    return None
  cells, n = measures['cells'], row.measures['n']

  def column(name, kind):
    return [[kind(line[p]) for p in pairs] for line in cells[name]]

  def short(number):
    return round(number * _UNIT)

  return {
    'distance': column('distance', short), 'floor': column('null_p95', short),
    'p': column('p_value', short), 'holm': column('p_holm', short),
    'noise': column('within_floor', int), 'words': _format_cells(cells),
    'n': span(n['min'], n['max'])}


def _format_cells(cells: Mapping[str, Any]) -> str:
  """How many cells exceed their noise, and how many would by chance."""
  noise = [within for row in cells['within_floor'] for within in row]
  corrected = sum(p <= 0.05 for row in cells['p_holm'] for p in row)
  return (f'{noise.count(False):,} of {len(noise):,} cells exceed their own floor, where about '
          f'{0.05 * len(noise):,.0f} would if no value mattered. {corrected:,} are left when the '
          'p-values are corrected for their number (Holm, 0.05).')


def _histograms(
  distributions: Distributions, scorer: str, chosen: set[int]
) -> dict[str, Any] | None:
  """Counts and means of the chosen values; the others are empty."""
  if scorer not in distributions.histograms:
    return None
  return {
    'counts': [[c.tolist() if a in chosen else [] for a, c in enumerate(row)]
               for row in distributions.histograms[scorer]],
    'means': [[round(float(m), 4) for m in row] for row in distributions.means[scorer]]}


def _sentences(
  distributions: Distributions, scorers: Sequence[str], chosen: set[int], samples: int,
  strings: dict[str, int],
) -> dict[str, Any]:
  """The first sentences of the chosen values; texts become numbers into `strings`."""

  def number(text):
    return strings.setdefault(text[:MOST_CHARACTERS], len(strings))

  def entry(prefix, continuation):  # the end of a long prefix, the beginning of a long continuation
    rest = [max(0, len(text) - MOST_CHARACTERS) for text in (prefix, continuation)]
    found = [number(prefix[-MOST_CHARACTERS:]), number(continuation)]
    return [*found, *rest] if any(rest) else found

  return {
    'numbers': distributions.numbers and [n[:samples] for n in distributions.numbers],
    'texts': [[[entry(*text) for text in cell[:samples]] if a in chosen else []
               for a, cell in enumerate(row)] for row in distributions.texts],
    'scores': [[[[round(s, 3) for s in cell[:samples]] if a in chosen else []
                 for a, cell in enumerate(row)] for row in distributions.scores[scorer]]
               if scorer in distributions.scores else None for scorer in scorers]}


def _left_out(
  data: Mapping[str, Any], distributions: Mapping[str, Distributions], pairs: int
) -> str | None:
  """What the page lacks for its size, None when that is nothing."""
  lines = []
  if len(data['pairs']) < pairs:
    lines.append(f"the {len(data['pairs']):,} of {pairs:,} pairs of values with the largest "
                 'distances under any model and scorer; the measures hold all of them')
  kept = max(len(c) for e in data['distributions'] for row in e['texts'] for c in row)
  had = max(len(c) for e in distributions.values() for row in e.texts for c in row)
  if had > kept:
    lines.append(f'{kept} samples of each prefix, where it usually shows {had}')
  cut = sum(len(t) > 2 for e in data['distributions'] for row in e['texts'] for cell in row
            for t in cell)
  if cut:
    lines.append(f'the first {MOST_CHARACTERS:,} characters of {cut:,} longer texts (of a prefix '
                 'the last)')
  return f"To stay small, this page holds {'; '.join(lines)}." if lines else None
