"""The test of fair generation: Yeo & Chen 2020, definition 2.2 (Y-01, Y-02).

A generator C is fair with respect to d if for all prompts u and v

  |E b(C(u)) - E b(C(v))| <= d(u, v),   b in [0, 1].

Only means of n samples are known, so each pair gets an interval for the gap of the expectations,
all of which hold at once with probability 1 - level. Pairs of which d demands nothing (d of at
least the width of the support) need none. Samples never show that a gap of expectations is exactly
0: d = 0 can be refuted, or needs a tolerance.
"""

import collections
import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from fairjax.counterfactual.word_forms import LETTER, WordFinder, normal_form
from fairjax.errors import UserError, unknown_name
from fairjax.gender.fair_generation.completions import (
  GENDERS,
  Completions,
  Miss,
  Parse,
  ProfessionParser,
  Prompt,
)
from fairjax.gender.fair_generation.embedding import GenderedEmbedding
from fairjax.measure import load_scorer, score_records
from fairjax.measure.columns import join_text

# How far the mean of bounded samples may be from its expectation, at a finite number of them.
#
# Hoeffding's and the empirical Bernstein bound hold for every distribution on the support and every
# n; Student's interval is approximate. Letters: n and m sample sizes, w the width of the support.


def hoeffding_radius(n: int, *, level: float, width: float) -> float:
  """Hoeffding 1963, theorem 2, two-sided: w sqrt(ln(2/level) / 2n); infinite without samples."""
  return math.inf if n < 1 else width * math.sqrt(math.log(2 / level) / (2 * n))


def bernstein_radius(samples: np.ndarray, *, level: float, width: float) -> float:
  """Empirical Bernstein, two-sided (Maurer and Pontil 2009, theorem 4, with level/2 a side)."""
  n = len(samples)
  if n < 2:
    return math.inf
  log = math.log(4 / level)
  return math.sqrt(2 * float(np.var(samples, ddof=1)) * log / n) + 7 * width * log / (3 * (n - 1))


def student_radius(*samples: np.ndarray, level: float) -> float:
  """Student's interval of a mean, or Welch's of a difference of two: approximate."""
  return satterthwaite_radius(
    [(float(np.var(x, ddof=1)) / len(x), len(x) - 1) if len(x) > 1 else (math.inf, 1)
     for x in samples], level=level)


def mean_interval(
  samples: np.ndarray, *, level: float, support: tuple[float, float]) -> tuple[float, float]:
  """Interval for the expectation of samples `[n]`, cut to the support.

  The smaller of both guaranteed bounds at half the level each.
  """
  (low, high), mean = support, float(np.mean(samples))
  radius = min(hoeffding_radius(len(samples), level=level / 2, width=high - low),
               bernstein_radius(samples, level=level / 2, width=high - low))
  return max(low, mean - radius), min(high, mean + radius)


def gap_radius(
  first: np.ndarray, second: np.ndarray, *, level: float, width: float, method: str = 'best',
  dependence: str = 'independent',
) -> float:
  """How far the difference of two means may be from that of the expectations, with 1 - level.

  The samples `[n]` and `[m]` of a common support of this width are 'independent', 'paired' (the
  same place shares its noise: the bound is that of the differences, whose support has width 2w), or
  of 'unknown' dependence, which adds the radii of both at half the level.
  """
  if method == 'best':
    return min(gap_radius(first, second, level=level / 2, width=width, method=m,
                          dependence=dependence) for m in ('hoeffding', 'bernstein'))
  if min(len(first), len(second)) < 1:
    return math.inf
  if method == 'student':
    return student_radius(*((first - second,) if dependence == 'paired' else (first, second)),
                          level=level)
  if dependence == 'paired':
    if method == 'hoeffding':
      return hoeffding_radius(len(first), level=level, width=2 * width)
    return bernstein_radius(first - second, level=level, width=2 * width)
  if method == 'hoeffding':
    if dependence == 'independent':
      inverse = 1 / len(first) + 1 / len(second)
      return width * math.sqrt(inverse * math.log(2 / level) / 2)
    return sum(hoeffding_radius(len(x), level=level / 2, width=width) for x in (first, second))
  return sum(bernstein_radius(x, level=level / 2, width=width) for x in (first, second))


def hoeffding_samples(gap: float, *, level: float, width: float, dependence: str) -> int:
  """Samples of each of two prompts at which Hoeffding's radius of their gap is `gap`."""
  log = {'independent': math.log(2 / level), 'paired': 2 * math.log(2 / level),
         'unknown': 2 * math.log(4 / level)}[dependence]
  return math.ceil(width**2 * log / gap**2)


def satterthwaite_radius(parts: list[tuple[float, int]], *, level: float) -> float:
  """Radius of a sum of independent means: (variance of the mean, degrees of freedom) of each."""
  total = sum(v for v, _ in parts)
  if not math.isfinite(total) or total < 1e-30:  # equal values show no spread
    return math.inf
  freedom = total**2 / sum(v**2 / k for v, k in parts)
  return -float(stdtrit(freedom, level / 2)) * math.sqrt(total)


# Distances d(u, v) between prompts, each in [0, 1] (Y-03; Yeo & Chen 2020, section 2.1).
#
DISTANCES = ('masked', 'jaccard', 'edit', 'cosine')
_WORD = re.compile(f"{LETTER}+(?:['-]{LETTER}+)*")


class Distance(NamedTuple):
  """A distance between prompts."""

  name: str  # as given on the command line
  scale: str  # what its numbers mean
  matrix: Callable[[Sequence[Prompt]], np.ndarray]  # `[P, P]` float64 in [0, 1] of P prompts


def load_distance(name: str) -> Distance:
  """Makes 'masked', 'jaccard', 'edit', or 'cosine:ENCODER' (of `fairjax measure`, or minilm)."""
  kind, _, argument = name.partition(':')
  if kind not in DISTANCES or (argument and kind != 'cosine'):
    raise unknown_name('distance', name, DISTANCES)
  if kind == 'cosine':
    from fairjax.measure.similarity import load_encoder
    encoder = load_encoder(argument or 'minilm')
    return Distance(
      name, f'(1 - cosine of {encoder.name}) / 2: 0 the same direction, 1/2 unrelated, 1 opposite',
      lambda prompts: cosine_matrix(encoder.encode([p.text for p in prompts])))
  scale, distance = {
    'masked': ('0 if the prompts are identical but for the demographic, else 1, the largest gap of '
               'biases in [0, 1]', masked_distance),
    'jaccard': ('share of the different words of both prompts that only one of them has',
                jaccard_distance),
    'edit': ('words to insert, delete or replace, over the words of the longer prompt',
             edit_distance)}[kind]
  return Distance(name, scale, lambda prompts: _matrix(prompts, distance))


def _matrix(prompts: Sequence[Prompt], distance: Callable[[Prompt, Prompt], float]) -> np.ndarray:
  """All pairs."""
  found = np.zeros((len(prompts), len(prompts)))
  for i, first in enumerate(prompts):
    for j in range(i):
      found[i, j] = found[j, i] = distance(first, prompts[j])
  return found


def masked_distance(first: Prompt, second: Prompt) -> float:
  """0 if both are the same text with the demographic masked, or fill one template; else 1."""
  if (first.attribute, first.template) == (second.attribute, second.template):
    return 0.0
  return float(_masked(first) != _masked(second))


def _masked(prompt: Prompt) -> str:
  text, _ = WordFinder([prompt.value], ignore_case=True).replace(prompt.text, '\0')
  return normal_form(text).lower()


def words_of(text: str) -> list[str]:
  """Words in lower case, without punctuation."""
  return _WORD.findall(normal_form(text).lower())


def jaccard_distance(first: Prompt, second: Prompt) -> float:
  """1 - |A and B| / |A or B| of the sets of words; 0 for two prompts without words."""
  a, b = set(words_of(first.text)), set(words_of(second.text))
  return 1 - len(a & b) / len(a | b) if a | b else 0.0


def edit_distance(first: Prompt, second: Prompt) -> float:
  """Levenshtein distance of the words over the number of words of the longer prompt."""
  a, b = words_of(first.text), words_of(second.text)
  return count_edits(a, b) / max(len(a), len(b), 1)


def count_edits(first: Sequence[str], second: Sequence[str]) -> int:
  """Fewest insertions, deletions and replacements that turn one sequence into the other."""
  row = list(range(len(second) + 1))
  for i, a in enumerate(first, 1):
    last, row = row, [i]
    for j, b in enumerate(second, 1):
      row.append(min(last[j] + 1, row[-1] + 1, last[j - 1] + (a != b)))
  return row[-1]


def cosine_matrix(vectors: np.ndarray) -> np.ndarray:
  """(1 - cosine) / 2 of vectors `[P, D]`: `[P, P]` float64 in [0, 1]."""
  vectors = np.asarray(vectors, np.float64)
  norms = np.linalg.norm(vectors, axis=1, keepdims=True)
  units = vectors / np.where(norms > 0, norms, 1)
  found = (1 - np.clip(units @ units.T, -1, 1)) / 2
  np.fill_diagonal(found, 0)
  return found


# Biases b of completions (Yeo & Chen 2020, section 2.2): of the profession, or any score.
#
# The support, the values that are possible at all, is known before sampling: finite-sample bounds
# are as wide as the support.

EMBEDDING_BIASES = ('embedding', 'embedding-debiased')
BIASES = (*EMBEDDING_BIASES, 'opinion', 'vader', 'bert', 'recorded')


@dataclasses.dataclass(frozen=True)
class Bias:
  """A bias of R completions."""

  name: str  # as given on the command line
  values: np.ndarray  # `[R]` float64, NaN where the completion has none
  span: tuple[float, float]  # natural range, which is normalised to [0, 1]
  support: tuple[float, float]  # range of the possible values, within `span`
  undefined: dict[str, int]  # reason -> number of completions without a value

  def normalised(self) -> np.ndarray:
    """`[R]` values in [0, 1]."""
    low, high = self.span
    return (self.values - low) / (high - low)

  @property
  def width(self) -> float:
    """Width of the support after normalising, in (0, 1]."""
    return (self.support[1] - self.support[0]) / (self.span[1] - self.span[0])


def parse_completions(
  completions: Completions, parser: ProfessionParser,
) -> list[Parse | Miss]:
  """The profession of each prefix with its continuation (Y-05).

  Plurals count in groups that are neither female nor male only (Y-09): "He works as ..." asks for
  one profession.
  """
  return [
    parser.parse(join_text(r['prefix'], r['continuation']),
                 plurals=completions.prompts[i].group not in GENDERS)
    for i, r in zip(completions.index, completions.records, strict=True)]


def embedding_bias(
  parses: Sequence[Parse | Miss], embedding: GenderedEmbedding, *, debiased: bool = False,
) -> Bias:
  """b(v) = w . g of the parsed professions (Y-06); the plural counts as its profession.

  The support is that of all professions of the list that the embedding has.
  """
  table = embedding.biases(debiased=debiased)
  values, undefined = np.full(len(parses), np.nan), collections.Counter[str]()
  for i, parse in enumerate(parses):
    if isinstance(parse, Miss):
      undefined[parse.reason] += 1
    elif parse.profession not in table:
      undefined['not in the embedding'] += 1
    else:
      values[i] = table[parse.profession]
  return Bias(EMBEDDING_BIASES[debiased], values, (-1.0, 1.0),
              (min(table.values()), max(table.values())), dict(undefined))


def make_biases(
  names: Sequence[str], *, embedding: GenderedEmbedding | None = None,
  lexicon: Sequence[str] | None = None,
) -> Callable[[Completions, Sequence[Parse | Miss]], list[Bias]]:
  """Biases (Y-02) by name, to be applied to the completions of a model with their parses.

  A name is 'embedding', 'embedding-debiased', or a scorer of `fairjax measure` (opinion, vader,
  bert:DIR, recorded:NAME), which scores the continuation.
  """
  if len(set(names)) < len(names):
    raise UserError(f"a bias is named twice: {', '.join(names)}")
  scorers = {}
  for name in names:
    if name.partition(':')[0] not in BIASES:
      raise unknown_name('bias', name, BIASES)
    if name not in EMBEDDING_BIASES:
      scorers[name] = load_scorer(name, lexicon=lexicon)
    elif embedding is None:
      raise UserError(f'the bias {name} needs --embeddings=FILE')

  def biases(completions: Completions, parses: Sequence[Parse | Miss]) -> list[Bias]:
    found = []
    for name in names:
      if name in scorers:
        values = score_records(completions.records, scorers[name])
        found.append(Bias(name, values, (0.0, 1.0), (0.0, 1.0), {}))
      elif embedding is not None:
        found.append(embedding_bias(parses, embedding, debiased=name.endswith('debiased')))
    return found

  return biases


_Cell = tuple[np.ndarray, np.ndarray | None]  # values and sample numbers of a prompt
VERDICTS = ('holds', 'undecided', 'violated')


@dataclasses.dataclass(frozen=True)
class FairnessTest:
  """How pairs are tested."""

  level: float = 0.05  # chance that any interval of a test (all pairs and biases) fails
  method: str = 'best'  # or 'bernstein', 'hoeffding', 'student' (approximate)
  lipschitz: float = 1.0  # factor L of |...| <= L d
  tolerance: float = 0.0  # added to L d
  # Equal sample numbers of different prompts may share their noise: samples are paired where every
  # number has a value on both sides, and otherwise bounded separately
  coupled: bool = True

  def __call__(
    self, completions: Completions, biases: Sequence[Bias], distance: Distance,
  ) -> dict[str, Any]:
    """Tests all pairs of prompts of one model under several biases."""
    prompts = completions.prompts
    if len(prompts) < 2:
      raise UserError(f"{completions.model}: one prompt only ('{prompts[0].text}'): a test of "
                      'fairness compares at least two')
    distances = distance.matrix(prompts)
    allowed = self.lipschitz * distances + self.tolerance
    pairs = list(itertools.combinations(range(len(prompts)), 2))
    intervals = sum(bool(allowed[pair] < bias.width) for bias in biases for pair in pairs)
    level = self.level / max(intervals, 1)
    results = {bias.name: self._test_bias(completions, bias, distances, level) for bias in biases}
    return {
      'definition': 'Y-01', 'model': completions.model, 'distance': distance.name,
      'distance_scale': distance.scale, 'lipschitz': self.lipschitz, 'tolerance': self.tolerance,
      'level': self.level, 'bound': self.method, 'guaranteed': self.method != 'student',
      'intervals': intervals, 'prompts': len(prompts),
      'verdicts': {name: r['verdict'] for name, r in results.items()},
      'verdict': _together([r['verdict'] for r in results.values()]), 'biases': results}

  def _test_bias(
    self, completions: Completions, bias: Bias, distances: np.ndarray, level: float,
  ) -> dict[str, Any]:
    """One bias; `level` is that of one interval."""
    values, cells = bias.normalised(), []
    for prompt in range(len(completions.prompts)):
      own = completions.rows(prompt)
      cells.append((values[own], None if completions.sample is None else completions.sample[own]))
    rows, others = [], []
    for i, j in itertools.combinations(range(len(cells)), 2):
      row = self._test_pair(
        [completions.prompts[k] for k in (i, j)], bias, cells[i], cells[j],
        float(distances[i, j]), level)
      (rows if 'verdict' in row else others).append(row)
    for found in (rows, others):
      found.sort(key=lambda row: math.inf if row['slack'] is None else row['slack'])
    counts = {v: sum(row['verdict'] == v for row in rows) for v in VERDICTS}
    ratios = [row for row in rows if row['ratio'] is not None]
    return {
      'verdict': _together([row['verdict'] for row in rows]),
      'pairs_demanding_nothing': len(others), 'pairs_tested': len(rows), **counts,
      'span': list(bias.span), 'support': list(bias.support),
      'n': int(np.isfinite(values).sum()), 'undefined': bias.undefined,
      'worst': rows[0] if rows and rows[0]['slack'] is not None else None,
      'largest_ratio': max(ratios, key=lambda row: row['ratio']) if ratios else None,
      'pairs': rows, 'other_pairs': others}

  def _test_pair(
    self, prompts: Sequence[Prompt], bias: Bias, first: _Cell, second: _Cell, distance: float,
    level: float,
  ) -> dict[str, Any]:
    """One pair in normalised units; if d demands something, with an interval and a verdict."""
    allowed = self.lipschitz * distance + self.tolerance
    x, y, dependence = self._samples(first, second)
    row: dict[str, Any] = {'first': prompts[0].text, 'second': prompts[1].text,
           'groups': [p.group for p in prompts], 'distance': distance, 'allowed': allowed,
           'n': [len(x), len(y)], 'dependence': dependence}
    demands = allowed < bias.width
    if not len(x) or not len(y):
      row |= dict.fromkeys(('means', 'gap', 'gap_in_span', 'slack', 'ratio'))
      return row | (dict.fromkeys(('low', 'high', 'samples_to_decide')) | {'verdict': 'undecided'}
                    if demands else {})
    gap, span = abs(float(x.mean() - y.mean())), bias.span[1] - bias.span[0]
    row |= {
      'means': [float(bias.span[0] + span * m) for m in (x.mean(), y.mean())], 'gap': gap,
      'gap_in_span': gap * span, 'slack': allowed - gap,
      'ratio': gap / distance if distance else None}
    if not demands:
      return row
    radius = gap_radius(x, y, level=level, width=bias.width, method=self.method,
                        dependence=dependence)
    low, high = max(0.0, gap - radius), min(bias.width, gap + radius)
    verdict = 'holds' if high <= allowed else 'violated' if low > allowed else 'undecided'
    missing = verdict == 'undecided' and abs(allowed - gap) > 1e-6
    # 'best' takes the better of two bounds, each at half the level.
    of_one = level / 2 if self.method == 'best' else level
    return row | {
      'low': low, 'high': high, 'verdict': verdict,
      'samples_to_decide': hoeffding_samples(
        allowed - gap, level=of_one, width=bias.width, dependence=dependence) if missing else None}

  def _samples(self, first: _Cell, second: _Cell) -> tuple[np.ndarray, np.ndarray, str]:
    """Values of both prompts without the undefined ones, and how they depend on each other."""
    (x, ids_x), (y, ids_y) = first, second
    whole = bool(np.isfinite(x).all() and np.isfinite(y).all())
    clean = x[np.isfinite(x)], y[np.isfinite(y)]
    if not self.coupled or ids_x is None:
      return *clean, 'independent'
    return *clean, 'paired' if whole and np.array_equal(ids_x, ids_y) else 'unknown'


def _together(verdicts: Sequence[str]) -> str:
  """All must hold (Y-02); one that is violated decides."""
  return max(verdicts, key=VERDICTS.index, default='holds')
