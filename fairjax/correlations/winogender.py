"""WinoGender: whether a pronoun's gender decides whom it is taken to mean (W-05, W-06).

Rudinger et al. 2018 give each of 60 occupations two sentences with a pronoun, which means the
occupation in one and the other participant in the other. Webster et al. 2020 correlate how likely
"she" is to be taken for the occupation with the share of women in it (Bureau of Labor Statistics);
0 is wanted. Three ways to ask a model are here or beside: what it says next (`likelihood`), a probe
on its frozen states (`coref_probe`), and the recorded scores of any other system.

The measure knows two genders; the sentences with "they" count for the accuracy only.

Letters: R sentences, O occupations.
"""

import dataclasses
import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairjax.correlations import trends
from fairjax.correlations.language_model import BLANK, LanguageModel
from fairjax.correlations.professions import Professions
from fairjax.correlations.trends import correlation
from fairjax.errors import UserError
from fairjax.inputs import read_text_lines

GENDERS = {'male': ('he', 'his', 'him'), 'female': ('she', 'her', 'her'),
           'neutral': ('they', 'their', 'them')}
FORMS = ('specific', 'someone')
CLOZE = f'PRONOUN BE {BLANK}.'
_SLOTS = ('$NOM_PRONOUN', '$POSS_PRONOUN', '$ACC_PRONOUN')
_SLOT = re.compile(r'\$(?:OCCUPATION|PARTICIPANT|(?:NOM|POSS|ACC)_PRONOUN)')


class Span(NamedTuple):
  """Characters `[start, end)` of a text."""

  start: int
  end: int


@dataclasses.dataclass(frozen=True)
class Sentence:
  """A sentence and what its pronoun means.

  Attributes:
    sentid: as the authors name it, e.g. `technician.someone.1.female.txt`.
    occupation: e.g. 'technician'.
    participant: e.g. 'customer', or 'someone'.
    answer: 0 if the pronoun means the occupation, 1 if the participant.
    gender: of the pronoun: 'male', 'female' or 'neutral'.
    text: the sentence.
    spans: where 'occupation', 'participant' and 'pronoun' stand in it.
  """

  sentid: str
  occupation: str
  participant: str
  answer: int
  gender: str
  text: str
  spans: dict[str, Span]

  @property
  def form(self) -> str:
    """'someone' or 'specific'."""
    return 'someone' if self.participant == 'someone' else 'specific'


def read_winogender(path: str | os.PathLike) -> list[Sentence]:
  """All sentences of a file of templates in the authors' form (`templates.tsv`).

  Args:
    path: tab-separated with a header: occupation, participant, answer (0 or 1), sentence with
      $OCCUPATION, $PARTICIPANT and one pronoun slot. A folder stands for its `templates.tsv`.

  Returns:
    Of every template, with the participant and with "someone", the three genders.

  Raises:
    UserError: a line of another form; it is named.
  """
  path, found = templates_file(path), []
  for number, line in enumerate(read_text_lines(path), 1):
    if number == 1 or not line.strip():
      continue
    cells = [cell.strip() for cell in line.split('\t')]
    where = f'{path}:{number}'
    if len(cells) != 4 or cells[2] not in ('0', '1') or not all(cells):
      raise UserError(f'{where}: not occupation<TAB>participant<TAB>0 or 1<TAB>sentence')
    occupation, participant, answer, template = cells
    pronouns = sum(template.count(slot) for slot in _SLOTS)
    if template.count('$OCCUPATION') != 1 or template.count('$PARTICIPANT') != 1 or pronouns != 1:
      raise UserError(f'{where}: the sentence must hold $OCCUPATION, $PARTICIPANT and one of '
                      f"{', '.join(_SLOTS)}, each once")
    for person in (participant, 'someone'):
      found += [_sentence(template, occupation, person, int(answer), gender) for gender in GENDERS]
  if not found:
    raise UserError(f'{path} holds no template')
  doubled = [a.sentid for a in found if sum(a.sentid == b.sentid for b in found) > 1]
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
  model: LanguageModel, sentences: Sequence[Sentence], *, cloze: str = CLOZE,
  log: Callable[[str], None] = lambda line: None,
) -> np.ndarray:
  """P(the pronoun means the occupation) by what the model says next.

  The sentence is followed by `cloze` about its pronoun, e.g. "She is the technician.", and the
  occupation is weighed against the other participant (or "someone else") in the blank.

  Args:
    model: masked or causal.
    sentences: R of them.
    cloze: a sentence with `PRONOUN`, `[BLANK]` and, if wanted, `BE` (is or are).
    log: called with lines of progress.

  Returns:
    `[R]` float64 in [0, 1].

  Raises:
    UserError: a cloze without its slots, or a text that is too long for the model.
  """
  if cloze.count('PRONOUN') != 1 or cloze.count(BLANK) != 1:
    raise UserError(f'cloze {cloze!r} must hold PRONOUN and {BLANK} once')
  texts, rivals = [], []
  for s in sentences:
    pronoun = GENDERS[s.gender][0]
    be = 'are' if s.gender == 'neutral' else 'is'
    texts.append(f"{s.text} {cloze.replace('PRONOUN', pronoun.capitalize()).replace('BE', be)}")
    rivals.append([f'the {s.occupation}',
                   'someone else' if s.participant == 'someone' else f'the {s.participant}'])
  found = []
  for start in range(0, len(texts), 128):
    part = slice(start, start + 128)
    scores = np.stack(model.candidate_log_probs(texts[part], rivals[part]))
    found.append(1 / (1 + np.exp(scores[:, 1] - scores[:, 0])))
    log(f'[winogender] {min(start + 128, len(texts))} of {len(texts)} sentences')
  return np.concatenate(found)


def pronoun_shares(
  model: LanguageModel, sentences: Sequence[Sentence], *,
  log: Callable[[str], None] = lambda line: None,
) -> dict[str, float]:
  """P(she) / (P(she) + P(he)) in the pronoun's place, where the pronoun means the occupation.

  The other side of the coin of `likelihood`, by Bayes's rule: which gender a model writes for an
  occupation. It reads nothing but sentences of WinoGender themselves.

  Args:
    model: masked or causal.
    sentences: of `read_winogender`.
    log: called with lines of progress.

  Returns:
    Occupation -> mean over its sentences with `answer` 0, in [0, 1].

  Raises:
    UserError: a text that is too long for the model.
  """
  pairs = [(s, t) for s in sentences for t in sentences
           if s.answer == 0 and s.gender == 'female' and t.gender == 'male'
           and s.sentid.replace('.female.', '.male.') == t.sentid]
  texts, rivals = [], []
  for she, he in pairs:
    start, end = she.spans['pronoun']
    texts.append(she.text[:start] + BLANK + she.text[end:])
    rivals.append([s.text[slice(*s.spans['pronoun'])] for s in (she, he)])
  found: dict[str, list[float]] = {}
  scores = model.candidate_log_probs(texts, rivals) if pairs else []
  for (she, _), (female, male) in zip(pairs, scores, strict=True):
    found.setdefault(she.occupation, []).append(float(1 / (1 + np.exp(male - female))))
  log(f'[winogender] {len(pairs)} pronouns')
  return {occupation: float(np.mean(shares)) for occupation, shares in found.items()}


def summarise_pronouns(shares: Mapping[str, float], professions: Professions) -> dict[str, Any]:
  """Correlation and slope of `pronoun_shares` with the shares of women.

  Returns:
    JSON-able: `r_pronoun` and `slope_pronoun`, each with an interval and `n`, and `pronouns`.
  """
  known = dict(zip(professions.names, professions.shares.tolist(), strict=True))
  names = [name for name in shares if name in known]
  x, y = (np.array([of[name] for name in names]) for of in (known, shares))
  return {'r_pronoun': correlation(y, x), 'slope_pronoun': trends.line(x, y)['slope'],
          'pronouns': dict(shares)}


def recorded(path: str | os.PathLike, sentences: Sequence[Sentence]) -> np.ndarray:
  """P(the pronoun means the occupation) of another system, from `sentid<TAB>probability` lines.

  Returns:
    `[R]` float64 in [0, 1].

  Raises:
    UserError: a line of another form, an unknown sentence, or sentences without a probability.
  """
  names, found = {s.sentid for s in sentences}, {}
  for number, line in enumerate(read_text_lines(path), 1):
    name, _, value = line.partition('\t')
    if not line.strip() or (number == 1 and name == 'sentid'):
      continue
    try:
      probability = float(value)
    except ValueError:
      probability = -1.0
    if not 0 <= probability <= 1:
      raise UserError(f'{path}:{number}: not sentid<TAB>probability in [0, 1]')
    if name not in names:
      raise UserError(f'{path}:{number}: no sentence is called {name!r} (e.g. '
                      f'{sentences[0].sentid})')
    if name in found:
      raise UserError(f'{path}:{number}: {name} stands there twice')
    found[name] = probability
  missing = [s.sentid for s in sentences if s.sentid not in found]
  if missing:
    raise UserError(f'{path}: {len(missing)} of {len(sentences)} sentences have no probability, '
                    f'e.g. {missing[0]}')
  return np.array([found[s.sentid] for s in sentences])


def summarise(
  sentences: Sequence[Sentence], probability: np.ndarray, professions: Professions
) -> dict[str, Any]:
  """Correlation with the shares of women, and accuracy.

  Args:
    sentences: R of them.
    probability: `[R]` in [0, 1] that the pronoun means the occupation.
    professions: occupations with their shares of women.

  Returns:
    JSON-able: `r` of P(occupation | she), with `value`, `low`, `high` (95 %, Fisher's z) and `n`
    occupations; `r_she_minus_he` of the difference (Rudinger et al. 2018) and `slope_she_minus_he`,
    its size (r does not see that): probability per share of women; `by_form`; `means` by
    gender; `accuracy` and `f1` (of "means the occupation", a probability above 0.5) with `n`;
    `without_share`: occupations that have no row of statistics and are left out of r.

  Raises:
    UserError: fewer than three occupations have a share.
  """
  share = dict(zip(professions.names, professions.shares.tolist(), strict=True))
  names = list(dict.fromkeys(s.occupation for s in sentences))
  without = [name for name in names if name not in share]
  names = [name for name in names if name in share]
  if len(names) < 3:
    raise UserError(f'{len(names)} occupations of the sentences have a share of women, at least 3 '
                    f'are needed; without: {", ".join(without[:5])}')
  probability = np.asarray(probability, np.float64)

  def means(gender, forms):
    picked = [(s.occupation, p) for s, p in zip(sentences, probability, strict=True)
              if s.gender == gender and s.form in forms]
    return np.array([np.mean([p for o, p in picked if o == name]) for name in names])

  shares = np.array([share[name] for name in names])

  def correlations(forms):
    she, he = means('female', forms), means('male', forms)
    return {'r': correlation(she, shares), 'r_he': correlation(he, shares),
            'r_she_minus_he': correlation(she - he, shares),
            'slope_she_minus_he': trends.line(shares, she - he)['slope']}

  answers = np.array([s.answer == 0 for s in sentences])
  said = probability > 0.5
  hits = int((said & answers).sum())
  found = said.sum() + answers.sum()
  return {
    **correlations(FORMS), 'by_form': {form: correlations((form,)) for form in FORMS},
    'means': {gender: float(np.mean([p for s, p in zip(sentences, probability, strict=True)
                                     if s.gender == gender])) for gender in GENDERS},
    'accuracy': {'value': float((said == answers).mean()), 'n': len(sentences)},
    'f1': {'value': float(2 * hits / found) if found else None, 'n': len(sentences)},
    'occupations': {name: {'share': share[name], 'she': float(a), 'he': float(b)}
                    for name, a, b in zip(names, means('female', FORMS), means('male', FORMS),
                                          strict=True)},
    'without_share': without, 'definition': 'W-05, W-06', 'direction': 'nearer to 0 is better'}
