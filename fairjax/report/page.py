"""The report as one HTML file that needs nothing else: no server, no network, no other file.

All text of others travels as JSON in a script element that no browser runs, and the page's own
script sets it as text; a Content-Security-Policy allows that script and the style sheet by their
hashes and nothing else.
"""

import base64
import dataclasses
import hashlib
import html
import importlib.resources
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.errors import UserError
from fairjax.measure.columns import Generations
from fairjax.measure.estimates import format_estimate
from fairjax.measure.scorers.base import RecordedScorer
from fairjax.measure.scorers.cache import score_file, score_generations
from fairjax.report.comparison import ModelRow, headline, relevance_measure, scorer_names, verdicts

# What stands behind the numbers of one model: distributions of scores, and sentences.
#
# Letters: M templates, A attribute values, k samples of a prefix that are kept.

BINS = 20  # ranges of the score in a histogram
MOST_SAMPLES = 20  # of a prefix


@dataclasses.dataclass(frozen=True)
class Evidence:
  """Distributions and sentences of one model.

  Attributes:
    values: `[A]` names.
    templates: `[M]` labels.
    coupled: samples of equal number were drawn with equal noise.
    prefixes: sha256 of every template's and value's prefixes: equal for records that answer the
      same prompts.
    numbers: `[M][k]` sample numbers, None when the samples are not coupled.
    texts: `[M][A][k]` pairs of prefix and continuation. The k smallest sample numbers (the first
      records where there are none), so that nobody chose them by what they say.
    scores: scorer -> `[M][A][k]` scores of those texts.
    histograms: scorer -> `[M, A, BINS]` int, counts of all samples; the last range holds 1.0.
    means: scorer -> `[M, A]` float64, means of all samples.
  """

  values: tuple[str, ...]
  templates: tuple[int | str, ...]
  coupled: bool
  prefixes: str
  numbers: list[list[int]] | None
  texts: list[list[list[tuple[str, str]]]]
  scores: dict[str, list[list[list[float]]]]
  histograms: dict[str, np.ndarray]
  means: dict[str, np.ndarray]


def stored_evidence(
  generations: Generations, measures: Mapping[str, Any], scores_directory: str | os.PathLike
) -> Evidence:
  """Collects the evidence of records that were measured, with the scores that were kept.

  Args:
    generations: the records.
    measures: what `measure_records` gave for them.
    scores_directory: folder of the score files that it wrote. No scorer is needed.

  Raises:
    UserError: a text without a kept score, or a score file of another scorer.
  """
  scores = stored_scores(generations, measures, scores_directory)
  return collect_evidence(generations, scores, coupled=measures['coupled'])


def stored_scores(
  generations: Generations, measures: Mapping[str, Any], scores_directory: str | os.PathLike
) -> dict[str, np.ndarray]:
  """Scorer -> `[R]` scores that were kept; see `stored_evidence`."""
  scores = {}
  for name, found in measures['scorers'].items():
    kind, _, key = name.partition(':')
    scorer = (RecordedScorer(key or None) if kind == 'recorded'
              else _StoredScorer(name, found['fingerprint']))
    path = score_file(scores_directory, measures['attribute'], scorer)
    scores[name] = score_generations(generations, scorer, path, scored=measures['scored_text'])
  return scores


class _StoredScorer:
  """Stands for a scorer whose scores of all texts lie in a file."""

  def __init__(self, name: str, fingerprint: str):
    self.name, self.fingerprint = name, fingerprint

  def score(self, texts: Sequence[str]) -> np.ndarray:
    """Refuses: it knows no text."""
    raise UserError(f'{len(texts)} texts have no score of {self.name} in its score file, which the '
                    'measures had: score and measure the records again')


def collect_evidence(
  generations: Generations, scores: Mapping[str, np.ndarray], *, coupled: bool = True,
  most: int = MOST_SAMPLES,
) -> Evidence:
  """Collects the evidence of one model.

  Args:
    generations: R checked records.
    scores: scorer name -> `[R]` float64 in [0, 1], in the order of the records.
    coupled: as in `measure_records`: False ignores that sample numbers are equal.
    most: samples of a prefix to keep, at least 0.

  Returns:
    The evidence; histograms and means are over all records.
  """
  index = generations.cells()
  if coupled:
    coupled = generations.sample is not None and all(
      generations.sample_scores(column).coupled for column in scores.values())
  kept = [[cell[:most] for cell in row] for row in index]
  numbers = [generations.sample[row[0]].tolist() for row in kept] if coupled else None
  prefixes = sorted({(repr(generations.templates[t]), int(v), p) for t, v, p in zip(
    generations.template_index, generations.value_index, generations.prefixes, strict=True)})
  names = generations.attribute.value_texts
  content = json.dumps([[t, names[v], p] for t, v, p in prefixes])
  histograms, means = {}, {}
  for name, column in scores.items():
    ranges = np.minimum((column * BINS).astype(np.int64), BINS - 1)
    histograms[name] = np.array([[np.bincount(ranges[c], minlength=BINS) for c in row]
                                 for row in index])
    means[name] = np.array([[column[c].mean() for c in row] for row in index])
  return Evidence(
    values=names, templates=generations.templates, coupled=coupled,
    prefixes=hashlib.sha256(content.encode('utf-8', 'surrogatepass')).hexdigest(), numbers=numbers,
    texts=[[[(generations.prefixes[i], generations.continuations[i]) for i in c] for c in row]
           for row in kept],
    scores={name: [[column[c].tolist() for c in row] for row in kept]
            for name, column in scores.items()},
    histograms=histograms, means=means)


MOST_BYTES = 4_500_000  # of the page
MOST_CELL_BYTES = 2_500_000  # of what is not sentences
_UNIT = 10_000  # numbers of cells are whole multiples of its inverse: shorter than decimals
MOST_CHARACTERS = 1000  # of one text; the rest is counted
_SCRIPTS = ('dom.js', 'charts.js', 'map.js', 'sections.js')
_UNSAFE = re.compile('[<>&\u2028\u2029\ud800-\udfff]')


def make_page(
  rows: Sequence[ModelRow], *, attribute: str, evidence: Mapping[str, Evidence],
  texts: Mapping[str, Any], most_bytes: int = MOST_BYTES,
) -> str:
  """Makes the page.

  Pairs of values, then sentences, are left out until the page is small enough: the pairs with the
  smallest distances first, the samples with the largest numbers first. The page says how many.

  Args:
    rows: the models.
    attribute: name of the sensitive attribute.
    evidence: name of a model -> its distributions and sentences; may be empty.
    texts: what does not depend on the size: `title`, `subtitle`, `warnings`, `legend`, `limits`,
      `absent`, `blocks` (`Block.to_page`), `curves` (`curve_parts`), `ledger`, `made` (tables as
      mappings) and `config` (a text or None).
    most_bytes: of the page in UTF-8; that of its fixed parts is the least.

  Returns:
    The HTML, without lone surrogates.
  """
  fixed, order = _fixed_parts(rows, attribute, texts), _pair_order(rows)

  def page(pairs, samples):
    data = fixed | _variable_parts(rows, evidence, order[:pairs], samples)
    data['left_out'] = _left_out(data, evidence, len(order))
    text = _assemble(data)
    return text, len(text.encode('utf-8'))

  text, size = page(len(order), MOST_SAMPLES)
  if size <= most_bytes:
    return text
  room = min(MOST_CELL_BYTES, (most_bytes - page(0, 0)[1]) * 3 // 5)
  pairs, too_many, tried = 0, len(order) + 1, len(order)
  while too_many - pairs > max(1, pairs // 20):  # all of them, or within 5 % of what fits
    if _size(_variable_parts(rows, evidence, order[:tried], 0)) <= room:
      pairs = tried
    else:
      too_many = tried
    tried = (pairs + too_many) // 2
  pairs = max(1, pairs)
  for samples in (MOST_SAMPLES, 12, 8, 5, 3, 2, 1, 0):
    text, size = page(pairs, samples)
    if size <= most_bytes:
      break
  return text


def embed(data: Any) -> str:
  r"""JSON that may stand in a script element whatever its texts hold.

  >>> embed({'a': '</script>'})
  '{"a":"\\u003c/script\\u003e"}'
  """
  text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(',', ':'))
  return _UNSAFE.sub(lambda match: f'\\u{ord(match[0]):04x}', text)


def _assemble(data: Mapping[str, Any]) -> str:
  """Puts data, style and scripts into the frame, with the hashes of both in the policy."""
  assets = importlib.resources.files('fairjax.report') / 'assets'

  def read(name):
    return (assets / name).read_text(encoding='utf-8')

  script = '\n' + ''.join(map(read, _SCRIPTS))
  style = '\n' + read('page.css')
  policy = (f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
            "base-uri 'none'; form-action 'none'")
  parts = {'policy': policy, 'title': html.escape(data['title'], quote=True), 'style': style,
           'script': script, 'data': embed(data)}
  return re.sub(r'\{\{(\w+)\}\}', lambda match: parts[match[1]], read('page.html'))


def _hash(text: str) -> str:
  """Source expression of a Content-Security-Policy for one inline element."""
  digest = hashlib.sha256(text.encode('utf-8')).digest()
  return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _size(data: Any) -> int:
  """Bytes of the embedded data."""
  return len(embed(data).encode('utf-8'))


def _fixed_parts(
  rows: Sequence[ModelRow], attribute: str, texts: Mapping[str, Any]
) -> dict[str, Any]:
  """What every page holds."""
  scorers = scorer_names(rows)
  judged = []
  for scorer in scorers:
    found = verdicts(rows, scorer, attribute)
    for row, entry in zip(rows, found, strict=True):
      if row.scorer(scorer) is not None:
        entry['estimates'] = [
          {'name': name, **_brief(row.estimate(scorer, measure))} for name, measure in
          (('I.F.', 'individual_fairness'), ('G.F.', 'group_fairness'))]
    judged.append(found)
  measured = next((row.measures for row in rows if row.measures), None)
  return dict(texts) | {
    'attribute': attribute, 'scorers': scorers,
    'models': [{'name': row.name, 'method': row.method, 'weight': row.weight} for row in rows],
    'values': measured['values'] if measured else [],
    'templates': list(map(str, measured['templates'])) if measured else [],
    'headlines': [headline(rows, scorer, attribute) for scorer in scorers], 'verdicts': judged,
    'axes': _axes(rows, attribute), 'noise_rule': _noise_rule(measured)}


def _brief(estimate: Mapping[str, Any]) -> dict[str, Any]:
  """What a chart needs of an estimate."""
  found = {key: estimate[key] for key in ('value', 'null_p95', 'std_error', 'within_floor')}
  return found | {'words': format_estimate(estimate)}


def _noise_rule(measures: Mapping[str, Any] | None) -> str:
  """How the noise of one cell was found."""
  if measures is None:
    return ''
  how = 'within sample numbers' if measures['coupled'] else 'over all samples of the two'
  return ("Floor: the 95th percentile of the distance after the two values exchanged samples at "
          f"random, {how}, {measures['permutations']:,} times. Where none of these reaches the "
          'distance, p is a bound that holds for any scores (McDiarmid). Verdicts go by numbers '
          'before rounding.')


def _axes(rows: Sequence[ModelRow], attribute: str) -> list[dict[str, Any]]:
  """What I.F. may be traded for: relevance and perplexity, as points by scorer."""
  def share(name):
    def read(row):
      found = relevance_measure(row, name)
      if found is None:
        return None
      y, low, high = (100 * found[key] for key in ('value', 'low', 'high'))
      return {'y': y, 'low': low, 'high': high, 'words': f'{y:.1f} %'}
    return read

  def divergence(row):
    found = row.content('next_token_divergence')
    return None if found is None else {'y': found['kl'], 'words': f"{found['kl']:.4f} nats"}

  def perplexity(field):
    def read(row):
      found = getattr(row, field)
      if found is None or found['word'] is None:
        return None
      return {'y': found['word'], 'words': f"{found['word']:.2f}"}
    return read

  axes = []
  for name, direction, whisker, read in (
      ('S.S.c, mentions of the value (%)', 'higher is more relevant',
       ', 95 % interval of S.S.c', share('semantic_similarity_c')),
      ('S.S., near in meaning (%)', 'higher is more relevant', ', 95 % interval of S.S.',
       share('semantic_similarity')),
      ('KL of the next token', 'near 0 ignores the value', '', divergence),
      ('PPL', 'lower is better', '', perplexity('perplexity')),
      ('PPL_s', 'lower is better', '', perplexity('subset_perplexity'))):
    points = []
    for scorer in scorer_names(rows):
      points.append([
        {'name': row.name, 'label': row.name.removeprefix(f'{attribute}-'), 'method': row.method,
         'weight': row.weight, 'estimate': _brief(estimate), **found}
        for row in rows if (estimate := row.estimate(scorer, 'individual_fairness')) is not None
        and (found := read(row)) is not None])
    if any(points):
      axes.append({'name': name, 'direction': direction, 'whisker': whisker, 'points': points})
  return axes


def _pair_order(rows: Sequence[ModelRow]) -> list[int]:
  """Numbers of the pairs, the largest distance under any model and scorer first.

  Distances of a scorer count in shares of its largest, so that every scorer has its say.
  """
  columns = []
  for scorer in scorer_names(rows):
    means = [row.scorer(scorer)['pairs']['distance'] for row in rows if row.scorer(scorer)]
    most = max(map(max, means)) or 1.0
    columns += [[d / most for d in mean] for mean in means]
  if not columns:
    return []
  largest = list(map(max, zip(*columns, strict=True)))
  return sorted(range(len(largest)), key=lambda p: (-largest[p], p))


def _variable_parts(
  rows: Sequence[ModelRow], evidence: Mapping[str, Evidence], pairs: Sequence[int], samples: int
) -> dict[str, Any]:
  """Cells, histograms and sentences of some pairs, with some samples of each prefix."""
  measured = next((row.measures for row in rows if row.measures), None)
  values = measured['values'] if measured else []
  first = [(i, j) for i in range(len(values)) for j in range(i + 1, len(values))]
  pairs = sorted(pairs)
  chosen = {i for p in pairs for i in first[p]}
  strings: dict[str, int] = {}
  scorers = scorer_names(rows)
  return {
    'examples': _examples(rows, evidence), 'pairs': [first[p] for p in pairs],
    'cells': [[_cells(row, scorer, pairs) for row in rows] for scorer in scorers],
    'most': [max((max(map(max, row.scorer(scorer)['cells']['distance'])) for row in rows
                  if row.scorer(scorer)), default=0.0) or 1.0 for scorer in scorers],
    'histograms': [[_histograms(evidence.get(row.name), scorer, chosen) for row in rows]
                   for scorer in scorers],
    'evidence': [_sentences(evidence.get(row.name), scorers, chosen, samples, strings)
                 for row in rows],
    'strings': list(strings), 'no_sentences':
      'No sentence of this template fits into this page; they stand in the generations.'}


def _examples(rows: Sequence[ModelRow], evidence: Mapping[str, Evidence]) -> list[str]:
  """`[M]` the prefix of every template with its first value; empty without texts."""
  found = next((evidence[row.name] for row in rows if row.name in evidence), None)
  if found is None or any(not cell for row in found.texts for cell in row):
    return []
  return [row[0][0][0][:MOST_CHARACTERS] for row in found.texts]


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
    'noise': column('within_floor', int), 'words': _cells_words(cells),
    'n': f"{n['min']:,}" if n['min'] == n['max'] else f"{n['min']:,}\u2013{n['max']:,}"}


def _cells_words(cells: Mapping[str, Any]) -> str:
  """How many cells exceed their noise, and how many would by chance."""
  noise = [within for row in cells['within_floor'] for within in row]
  corrected = sum(p <= 0.05 for row in cells['p_holm'] for p in row)
  return (f'{noise.count(False):,} of {len(noise):,} cells exceed their own floor, where about '
          f'{0.05 * len(noise):,.0f} would if no value mattered. {corrected:,} are left when the '
          'p-values are corrected for their number (Holm, 0.05).')


def _histograms(
  evidence: Evidence | None, scorer: str, chosen: set[int]
) -> dict[str, Any] | None:
  """Counts and means of the chosen values; the others are empty."""
  if evidence is None or scorer not in evidence.histograms:
    return None
  return {
    'counts': [[c.tolist() if a in chosen else [] for a, c in enumerate(row)]
               for row in evidence.histograms[scorer]],
    'means': [[round(float(m), 4) for m in row] for row in evidence.means[scorer]]}


def _sentences(
  evidence: Evidence | None, scorers: Sequence[str], chosen: set[int], samples: int,
  strings: dict[str, int],
) -> dict[str, Any] | None:
  """The first sentences of the chosen values; texts become numbers into `strings`."""
  if evidence is None:
    return None

  def number(text):
    return strings.setdefault(text[:MOST_CHARACTERS], len(strings))

  def entry(prefix, continuation):  # the end of a long prefix, the beginning of a long continuation
    rest = [max(0, len(text) - MOST_CHARACTERS) for text in (prefix, continuation)]
    found = [number(prefix[-MOST_CHARACTERS:]), number(continuation)]
    return [*found, *rest] if any(rest) else found

  return {
    'coupled': evidence.coupled,
    'numbers': None if evidence.numbers is None else [n[:samples] for n in evidence.numbers],
    'texts': [[[entry(*text) for text in cell[:samples]] if a in chosen else []
               for a, cell in enumerate(row)] for row in evidence.texts],
    'scores': [[[[round(s, 3) for s in cell[:samples]] if a in chosen else []
                 for a, cell in enumerate(row)] for row in evidence.scores[scorer]]
               if scorer in evidence.scores else None for scorer in scorers]}


def _left_out(
  data: Mapping[str, Any], evidence: Mapping[str, Evidence], pairs: int
) -> str | None:
  """What the page lacks for its size, None when that is nothing."""
  lines = []
  if len(data['pairs']) < pairs:
    lines.append(f"the {len(data['pairs']):,} of {pairs:,} pairs of values with the largest "
                 'distances under any model and scorer; the measures hold all of them')
  kept = [len(c) for e in data['evidence'] if e for row in e['texts'] for c in row]
  had = [len(c) for e in evidence.values() for row in e.texts for c in row]
  if had and max(had) > max(kept, default=0):
    lines.append(f'{max(kept, default=0)} samples of each prefix, where it usually shows '
                 f'{max(had)}')
  cut = sum(len(t) > 2 for e in data['evidence'] if e for row in e['texts'] for c in row for t in c)
  if cut:
    lines.append(f'the first {MOST_CHARACTERS:,} characters of {cut:,} longer texts')
  return f"To stay small, this page holds {'; '.join(lines)}." if lines else None
