"""WinoGender: whether a pronoun's gender decides whom it is taken to mean (W-05, W-06).

Webster et al. 2020 correlate how likely "she" is to be taken for the occupation with the share of
women in it; 0 is best. Three ways to ask a model: what it says next (`likelihood`), a probe on its
frozen states (`probe_winogender`), and the recorded scores of any other system (`recorded`). The
measure knows two genders; the sentences with "they" count for the accuracy only.

Letters: R sentences, O occupations.
"""

import collections
import dataclasses
import math
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fairjax.config import MeshConfig, TrainConfig
from fairjax.errors import UserError
from fairjax.gender.persons import Professions
from fairjax.gender.scored_models import BLANK, Scorable, in_pieces
from fairjax.gender.trends import correlation, fit_slope
from fairjax.inputs import read_text_lines
from fairjax.tables import read_table
from fairjax.train import make_mesh
from fairjax.train.loop import Stage, run_unsaved
from fairjax.train.optimizer import Adam
from fairjax.train.steps import BoundStep, TrainState, make_update

GENDERS = {'male': ('he', 'his', 'him'), 'female': ('she', 'her', 'her'),
           'neutral': ('they', 'their', 'them')}
FORMS = ('specific', 'someone')
_COLUMNS = ('occupation(0)', 'other-participant(1)', 'answer', 'sentence')
_SLOTS = ('$NOM_PRONOUN', '$POSS_PRONOUN', '$ACC_PRONOUN')
_SLOT = re.compile(r'\$(?:OCCUPATION|PARTICIPANT|(?:NOM|POSS|ACC)_PRONOUN)')


class Span(NamedTuple):
  """Characters `[start, end)` of a text."""

  start: int
  end: int


@dataclasses.dataclass(frozen=True)
class Sentence:
  """A sentence and what its pronoun means."""

  sentid: str  # as the authors name it, e.g. `technician.someone.1.female.txt`
  occupation: str
  participant: str  # e.g. 'customer', or 'someone'
  answer: int  # 0 if the pronoun means the occupation, 1 if the participant
  gender: str  # of the pronoun: 'male', 'female' or 'neutral'
  text: str
  spans: dict[str, Span]  # of 'occupation', 'participant' and 'pronoun'

  @property
  def form(self) -> str:
    """'someone' or 'specific'."""
    return 'someone' if self.participant == 'someone' else 'specific'


def read_winogender(path: str | os.PathLike) -> list[Sentence]:
  """All sentences of a file of templates in the authors' form (`templates.tsv`)."""
  path, found = templates_file(path), []
  for row, where in read_table(path, _COLUMNS, unquoted_tabs=True):
    occupation, participant, answer, template = (row[name].strip() for name in _COLUMNS)
    if answer not in ('0', '1') or not (occupation and participant and template):
      raise UserError(f'{where}: not occupation<TAB>participant<TAB>0 or 1<TAB>sentence')
    pronouns = sum(template.count(slot) for slot in _SLOTS)
    if template.count('$OCCUPATION') != 1 or template.count('$PARTICIPANT') != 1 or pronouns != 1:
      raise UserError(f'{where}: the sentence must hold $OCCUPATION, $PARTICIPANT and one of '
                      f"{', '.join(_SLOTS)}, each once")
    for person in (participant, 'someone'):
      found += [_sentence(template, occupation, person, int(answer), gender) for gender in GENDERS]
  doubled = [n for n, count in collections.Counter(s.sentid for s in found).items() if count > 1]
  if doubled:
    raise UserError(f'{path}: two sentences are called {doubled[0]}: an occupation and participant '
                    'have one template for each answer')
  return found


def templates_file(path: str | os.PathLike) -> pathlib.Path:
  """The file itself, or `templates.tsv` of a folder."""
  path = pathlib.Path(path)
  return path / 'templates.tsv' if path.is_dir() else path


def _sentence(template: str, occupation: str, person: str, answer: int, gender: str) -> Sentence:
  """Fills the slots and keeps their places."""
  if person == 'someone':
    template = re.sub(r'\b(?:the|an?) \$PARTICIPANT', '$PARTICIPANT', template, flags=re.I)
  if gender == 'neutral':
    template = template.replace('$NOM_PRONOUN was', '$NOM_PRONOUN were')
  words = dict(zip(_SLOTS, GENDERS[gender], strict=True))
  words |= {'$OCCUPATION': occupation, '$PARTICIPANT': person}
  roles = {'$OCCUPATION': 'occupation', '$PARTICIPANT': 'participant'}
  text, spans, end = '', {}, 0
  for slot in _SLOT.finditer(template):
    text += template[end:slot.start()]
    word = words[slot[0]]
    word = word if text else word[0].upper() + word[1:]
    spans[roles.get(slot[0], 'pronoun')] = Span(len(text), len(text) + len(word))
    text, end = text + word, slot.end()
  return Sentence(f'{occupation}.{person}.{answer}.{gender}.txt', occupation, person, answer,
                  gender, text + template[end:], spans)


def likelihood(
  model: Scorable, sentences: Sequence[Sentence], *, log: Callable[[str], None] = lambda line: None,
) -> np.ndarray:
  """P(the pronoun means the occupation) by what the model says next: `[R]` float64 in [0, 1]."""
  # "She is the technician." follows: against the other participant, or "someone else", there.
  texts, rivals = [], []
  for s in sentences:
    pronoun = GENDERS[s.gender][0]
    be = 'are' if s.gender == 'neutral' else 'is'
    texts.append(f"{s.text} {pronoun.capitalize()} {be} {BLANK}.")
    rivals.append([f'the {s.occupation}',
                   'someone else' if s.participant == 'someone' else f'the {s.participant}'])
  return _preferred(model, texts, rivals, log)


def _preferred(
  model: Scorable, texts: Sequence[str], rivals: Sequence[Sequence[str]],
  log: Callable[[str], None] = lambda line: None,
) -> np.ndarray:
  """P(the first of two words) in the blank of each text: `[R]` float64."""
  found = [np.zeros(0)]
  for start in range(0, len(texts), 128):
    part = slice(start, start + 128)
    scores = np.stack(model.candidate_log_probs(texts[part], rivals[part]))
    found.append(1 / (1 + np.exp(scores[:, 1] - scores[:, 0])))
    log(f'[winogender] {min(start + 128, len(texts))} of {len(texts)} sentences')
  return np.concatenate(found)


def pronoun_shares(
  model: Scorable, sentences: Sequence[Sentence], *,
  log: Callable[[str], None] = lambda line: None,
) -> dict[str, float]:
  """Occupation -> mean P(she) / (P(she) + P(he)) in the place of a pronoun that means it.

  The reverse of `likelihood`: which gender a model writes for an occupation (`answer` 0).
  """
  male = {s.sentid: s for s in sentences if s.gender == 'male'}
  pairs = [(s, male[of_he]) for s in sentences if s.answer == 0 and s.gender == 'female'
           and (of_he := s.sentid.replace('.female.', '.male.')) in male]
  texts, rivals = [], []
  for she, he in pairs:
    start, end = she.spans['pronoun']
    texts.append(she.text[:start] + BLANK + she.text[end:])
    rivals.append([s.text[slice(*s.spans['pronoun'])] for s in (she, he)])
  found: dict[str, list[float]] = {}
  for (she, _), share in zip(pairs, _preferred(model, texts, rivals, log), strict=True):
    found.setdefault(she.occupation, []).append(float(share))
  return {occupation: float(np.mean(shares)) for occupation, shares in found.items()}


# Sentences of a first look that needs no WinoGender; the pronoun is in the place of the blank.
PLAIN_SENTENCES = tuple(sentence.replace('_', BLANK) for sentence in (
  'The {} said that _ was tired.',
  'The {} called the student because _ was sick.',
  'When the {} came to the office, _ was late.',
  'The {} told the visitor that _ needed help.',
  'The {} met the student when _ left.',
  'The {} said that _ did the work yesterday.'))


def plain_shares(model: Scorable, professions: Sequence[str]) -> np.ndarray:
  """Mean P(she) / (P(she) + P(he)) over the plain sentences, `[P]` float64 of P professions."""
  pieces = in_pieces(model, ['she', 'he'])
  if others := pieces['unknown'] + pieces['several']:
    raise UserError(f"{model.name}: '{others[0]}' is not one piece of its vocabulary")
  texts = [sentence.format(p) for p in professions for sentence in PLAIN_SENTENCES]
  shares = _preferred(model, texts, [['she', 'he']] * len(texts))
  return shares.reshape(len(professions), -1).mean(1)


def summarise_pronouns(shares: Mapping[str, float], professions: Professions) -> dict[str, Any]:
  """Correlation and slope of `pronoun_shares` with the shares of women."""
  known = dict(zip(professions.names, professions.shares.tolist(), strict=True))
  names = [name for name in shares if name in known]
  x, y = (np.array([of[name] for name in names]) for of in (known, shares))
  return {'r_pronoun': correlation(y, x), 'slope_pronoun': fit_slope(x, y),
          'pronouns': dict(shares)}


def recorded(path: str | os.PathLike, sentences: Sequence[Sentence]) -> np.ndarray:
  """P(the pronoun means the occupation) of another system, from `sentid<TAB>probability` lines."""
  names, found = {s.sentid for s in sentences}, {}
  columns = ('sentid', 'probability')
  for row, where in read_table(path, columns, names=columns, unquoted_tabs=True):
    name, value = row['sentid'], row['probability']
    try:
      probability = float(value)
    except ValueError:
      probability = -1.0
    if not 0 <= probability <= 1:
      raise UserError(f'{where}: not sentid<TAB>probability in [0, 1]')
    if name not in names:
      raise UserError(f'{where}: no sentence is called {name!r} (e.g. {sentences[0].sentid})')
    if name in found:
      raise UserError(f'{where}: {name} is given twice')
    found[name] = probability
  missing = [s.sentid for s in sentences if s.sentid not in found]
  if missing:
    raise UserError(f'{path}: {len(missing)} of {len(sentences)} sentences have no probability, '
                    f'e.g. {missing[0]}')
  return np.array([found[s.sentid] for s in sentences])


def summarise(
  sentences: Sequence[Sentence], probability: np.ndarray, professions: Professions
) -> dict[str, Any]:
  """Correlation with the shares of women, and accuracy, of `[R]` P(pronoun means the occupation).

  r and slope of P(occupation | she), of that of "he", and of their difference (Rudinger et al.
  2018), also by form; r does not see the size of a difference, its slope does. `accuracy` and `f1`
  are of "means the occupation", a probability above 0.5. Occupations that have no row of statistics
  (`without_share`) are left out of r.
  """
  share = dict(zip(professions.names, professions.shares.tolist(), strict=True))
  names = list(dict.fromkeys(s.occupation for s in sentences))
  without = [name for name in names if name not in share]
  names = [name for name in names if name in share]
  if len(names) < 3:
    raise UserError(f'{len(names)} occupations of the sentences have a share of women, at least 3 '
                    f'are needed; without: {", ".join(without[:5])}')
  probability = np.asarray(probability, np.float64)

  def means(gender: str, forms: Sequence[str]) -> np.ndarray:
    picked = [(s.occupation, p) for s, p in zip(sentences, probability, strict=True)
              if s.gender == gender and s.form in forms]
    return np.array([np.mean([p for o, p in picked if o == name]) for name in names])

  shares = np.array([share[name] for name in names])

  def correlations(forms: Sequence[str]) -> dict[str, Any]:
    she, he = means('female', forms), means('male', forms)
    return {'r': correlation(she, shares), 'r_he': correlation(he, shares),
            'r_she_minus_he': correlation(she - he, shares),
            'slope_she_minus_he': fit_slope(shares, she - he)}

  answers = np.array([s.answer == 0 for s in sentences])
  return {
    **correlations(FORMS), 'by_form': {form: correlations((form,)) for form in FORMS},
    'means': {gender: float(np.mean([p for s, p in zip(sentences, probability, strict=True)
                                     if s.gender == gender])) for gender in GENDERS},
    **{name: {'value': value, 'n': len(sentences)}
       for name, value in _quality(probability > 0.5, answers).items()},
    'occupations': {name: {'share': share[name], 'she': float(a), 'he': float(b)}
                    for name, a, b in zip(names, means('female', FORMS), means('male', FORMS),
                                          strict=True)},
    'without_share': without, 'definition': 'W-05, W-06', 'direction': 'nearer to 0 is better'}


def _quality(said: np.ndarray, answers: np.ndarray) -> dict[str, float | None]:
  """Accuracy and F1 of what was said, of `[R]` bools; no F1 where neither side says yes."""
  hits, yes = int((said & answers).sum()), int(said.sum() + answers.sum())
  return {'accuracy': float((said == answers).mean()), 'f1': 2 * hits / yes if yes else None}


# Pairs of mentions that corefer or do not: from WinoBias, and from files in OntoNotes's format.

_NUMBERED = re.compile(r'\d+ ')
_BRACKETS = re.compile(r'\[([^\]]*)\]')
_PRONOUNS = {'he', 'him', 'his', 'himself', 'she', 'her', 'hers', 'herself', 'they', 'them',
             'their', 'theirs', 'themselves'}


class MentionPair(NamedTuple):
  """Two mentions of a sentence and whether they mean the same."""

  text: str
  mention: Span  # the later one, as WinoGender's pronouns are asked about
  antecedent: Span
  same: bool


def read_mention_pairs(path: str | os.PathLike, split: str) -> list[MentionPair]:
  """Pairs of one split of a folder."""
  path = pathlib.Path(path)
  wino = sorted(path.glob(f"*stereotyped*.txt.{'dev' if split == 'train' else 'test'}"))
  conll = sorted((path / split).rglob('*gold_conll')) or sorted((path / split).rglob('*conll'))
  conll = [file for file in conll if 'english' in file.parts] or conll  # OntoNotes has three
  if wino:
    pairs = _winobias(wino, sorted(path.glob('*stereotyped*.txt.*')))
  elif conll:
    pairs = [pair for file in conll for pair in _conll(file)]
  else:
    raise UserError(f'{path} holds neither files of WinoBias (*stereotyped*.txt.dev and .test) nor '
                    f'{split}/*conll in the format of OntoNotes (CoNLL 2012)')
  if len({pair.same for pair in pairs}) < 2:
    raise UserError(f'{path}: {split} holds {len(pairs)} pairs, all of one kind: some that corefer '
                    'and some that do not are needed')
  return pairs


def _winobias(files: list[pathlib.Path], all_files: list[pathlib.Path]) -> list[MentionPair]:
  """The pronoun of every sentence with the marked person, and with the other one."""
  people = set()
  for file in all_files:
    for line in read_text_lines(file):
      people |= {m[1].lower() for m in _BRACKETS.finditer(line)} - _PRONOUNS
  known = re.compile(
    r'\b(?:' + '|'.join(map(re.escape, sorted(people, key=len, reverse=True))) + r')\b', re.I)
  pairs = []
  for file in files:
    for number, line in enumerate(read_text_lines(file), 1):
      if not line.strip():
        continue
      text, marked = _without_brackets(_NUMBERED.sub('', line, count=1))
      pronouns = [s for s in marked if text[s.start:s.end].lower() in _PRONOUNS]
      named = [s for s in marked if s not in pronouns]
      if not pronouns or not named:
        raise UserError(f'{file}:{number}: a [person] and a [pronoun] must be marked')
      others = [Span(*m.span()) for m in known.finditer(text)
                if not any(m.start() < s.end and m.end() > s.start for s in marked)]
      pairs += [MentionPair(text, pronouns[0], s, True) for s in named]
      pairs += [MentionPair(text, pronouns[0], s, False) for s in others]
  return pairs


def _without_brackets(line: str) -> tuple[str, list[Span]]:
  """The line without its brackets, and the spans of their contents."""
  text, spans, end = '', [], 0
  for mark in _BRACKETS.finditer(line):
    text += line[end:mark.start()]
    spans.append(Span(len(text), len(text) + len(mark[1])))
    text, end = text + mark[1], mark.end()
  return text + line[end:], spans


def _conll(path: pathlib.Path) -> Iterator[MentionPair]:
  """All pairs of mentions within each sentence; those of one chain corefer (Tenney et al. 2019)."""
  words: list[str] = []
  marks: list[str] = []
  for number, line in enumerate([*read_text_lines(path), ''], 1):
    if line.startswith('#'):
      continue
    cells = line.split()
    if cells:
      if len(cells) < 5:
        raise UserError(f'{path}:{number}: {len(cells)} columns: the word is the fourth, the last '
                        'holds the chains')
      words.append(cells[3])
      marks.append(cells[-1])
    elif words:
      yield from _sentence_pairs(words, marks, f'{path}:{number}')
      words, marks = [], []


def _sentence_pairs(words: list[str], marks: list[str], where: str) -> Iterator[MentionPair]:
  """Pairs of the mentions that the marks of a sentence open and close."""
  starts, at = [], 0
  for word in words:
    starts.append(at)
    at += len(word) + 1
  text, mentions, opened = ' '.join(words), [], {}
  for i, mark in enumerate(marks):
    for part in mark.split('|'):
      chain = part.strip('()')
      if part.startswith('('):
        opened.setdefault(chain, []).append(i)
      if part.endswith(')'):
        if not opened.get(chain):
          raise UserError(f'{where}: chain {chain} ends in the sentence before, but begins nowhere')
        first = opened[chain].pop()
        mentions.append((Span(starts[first], starts[i] + len(words[i])), chain))
  if any(opened.values()):
    raise UserError(f'{where}: a chain of the sentence before is never closed')
  mentions.sort()
  for i, (antecedent, chain) in enumerate(mentions):
    for mention, other in mentions[i + 1:]:
      yield MentionPair(text, mention, antecedent, chain == other)


# A coreference probe: a two-layer MLP on the frozen states of two mentions (W-05, W-06).
#
# Tenney et al. 2019 (edge probing) learn the weights of a mention's tokens; here its states are
# averaged. A mention begins with its article, in the pairs that are learned as in WinoGender's.
#
# Letters: R pairs, D model width, F features of a pair (3 D).

_TEXTS_AT_A_TIME = 512
_ARTICLE = re.compile(r'\b(?:the|an?) $', re.I)


_HIDDEN = 256  # units of the first layer
_STEPS = 600
_TRAINING = TrainConfig(
  steps=_STEPS, batch_size=256, learning_rate=1e-3, warmup_steps=0, schedule='constant',
  weight_decay=1e-3, clip_norm=math.inf, log_every=_STEPS)


@dataclasses.dataclass(frozen=True)
class Probe:
  """A trained probe."""

  params: Any
  mean: np.ndarray  # `[F]`, of the training features
  scale: np.ndarray

  def __call__(self, features: np.ndarray) -> np.ndarray:
    """P(the mentions corefer), `[R]` float64, from `[R, F]`."""
    x = (features - self.mean) / self.scale
    logits = [np.asarray(_logits(self.params, x[i:i + 4096])) for i in range(0, len(x), 4096)]
    return np.asarray(jax.nn.sigmoid(np.concatenate(logits)), np.float64)


def pair_features(
  model: Scorable, texts: Sequence[str], spans: Sequence[tuple[Span, Span]]
) -> np.ndarray:
  """The states of both mentions and their product, `[R, 3 D]` float32."""
  rows = []
  for start in range(0, len(texts), _TEXTS_AT_A_TIME):
    part = slice(start, start + _TEXTS_AT_A_TIME)
    for states, (first, second) in zip(model.token_features(texts[part]), spans[part], strict=True):
      a, b = states.span(*first), states.span(*second)
      rows.append(np.concatenate([a, b, a * b]))
  return np.array(rows, np.float32)


def with_article(text: str, span: Span) -> Span:
  """The span with the article before it, as mentions are marked in WinoBias and OntoNotes."""
  article = _ARTICLE.search(text[:span.start])
  return span if article is None else Span(article.start(), span.end)


def train_probe(features: np.ndarray, same: np.ndarray, *, seed: int) -> Probe:
  """Trains a probe with Adam on batches drawn with replacement, both kinds equally often."""
  mean, scale = features.mean(axis=0), features.std(axis=0) + 1e-6
  x, y = (features - mean) / scale, same.astype(np.float32)
  kinds = [np.flatnonzero(same), np.flatnonzero(~same)]
  random = np.random.default_rng([seed, 5])
  half = _TRAINING.batch_size // 2
  order = np.concatenate([random.choice(kind, (_STEPS, half)) for kind in kinds], axis=1)
  first, last = jax.random.split(jax.random.key(seed))
  width = x.shape[1]
  params = {
    'w1': jax.random.normal(first, (width, _HIDDEN)) * (2 / width) ** 0.5,
    'b1': jnp.zeros(_HIDDEN),
    'w2': jax.random.normal(last, (_HIDDEN,)) * (1 / _HIDDEN) ** 0.5,
    'b2': jnp.zeros(())}
  adam = Adam.of(_TRAINING)

  def loss(params, memory, batch, key):
    mean = optax.sigmoid_binary_cross_entropy(_logits(params, batch['x']), batch['y']).mean()
    return mean, (memory, {'loss': (mean, jnp.ones(()))})

  params, _ = run_unsaved(Stage(
    name=f'coref probe {seed}', config=_TRAINING, mesh=make_mesh(MeshConfig(), jax.devices()[:1]),
    init_state=lambda: TrainState.fresh(params, adam),
    step=BoundStep(jax.jit(make_update(loss, adam)), seed),
    batches=lambda begin: ({'x': x[rows], 'y': y[rows]} for rows in order[begin:]),
    batch_name=lambda step: f'draw {step}', work_per_step=_TRAINING.batch_size,
    work_unit='pairs'), log=lambda line: None)
  return Probe(params, mean, scale)


def probe_winogender(
  model: Scorable, train: Sequence[MentionPair], test: Sequence[MentionPair],
  sentences: Sequence[Sentence], *, seeds: Sequence[int],
  log: Callable[[str], None] = lambda line: None,
) -> tuple[list[np.ndarray], list[dict[str, Any]]]:
  """Trains a probe for each seed and asks it about WinoGender's sentences."""
  log(f'[coref probe] states of {len(train)} + {len(test)} pairs')
  known, unseen = (pair_features(
    model, [p.text for p in pairs], [(p.mention, p.antecedent) for p in pairs])
    for pairs in (train, test))
  asked = pair_features(model, [s.text for s in sentences],
                        [(s.spans['pronoun'], with_article(s.text, s.spans['occupation']))
                         for s in sentences])
  same, answers = (np.array([p.same for p in pairs]) for pairs in (train, test))
  found, quality = [], []
  for seed in seeds:
    probe = train_probe(known, same, seed=seed)
    quality.append(_quality(probe(unseen) > 0.5, answers) | {'n': len(test)})
    found.append(probe(asked))
    log(f"[coref probe] seed {seed}: F1 {quality[-1]['f1']:.3f} on {len(test)} pairs")
  return found, quality


def _logits(params: Any, x: np.ndarray | jax.Array) -> jax.Array:
  hidden = jnp.maximum(x @ params['w1'] + params['b1'][None], 0)
  return hidden @ params['w2'] + params['b2'][None]
