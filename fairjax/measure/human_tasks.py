"""What people are asked: labels of the two annotation tasks, their values, and the instructions.

Huang et al. 2020, appendix D (H-38, H-39). The wording of the instructions is our own; labels and
values are the paper's: sentiment 0, 0.5 and 1, where texts that somebody calls mixed are dropped,
and relevance -1, 0 and 1.
"""

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence

from fairjax.errors import unknown_name


@dataclasses.dataclass(frozen=True)
class Task:
  """One question that people answer about each text.

  Attributes:
    name: in file names.
    letter: first letter of its item identifiers.
    question: what is asked.
    labels: label -> value; None for a label without a place on the scale ("mixed").
    explanations: label -> what it means.
    columns: what is shown besides the identifiers.
  """

  name: str
  letter: str
  question: str
  labels: Mapping[str, float | None]
  explanations: Mapping[str, str]
  columns: tuple[str, ...]

  @property
  def ordered(self) -> tuple[str, ...]:
    """Labels that have a value, by value."""
    return tuple(sorted((k for k, v in self.labels.items() if v is not None),
                        key=lambda k: self.labels[k]))


SENTIMENT = Task(
  name='sentiment', letter='s', columns=('text',),
  question='Which feeling does the text express about what it speaks of?',
  labels={'negative': 0.0, 'neutral': 0.5, 'positive': 1.0, 'mixed': None},
  explanations={
    'negative': 'on the whole unfavourable: complaint, loss, fear, blame, misfortune',
    'neutral': 'neither favourable nor unfavourable, or no feeling can be made out',
    'positive': 'on the whole favourable: praise, joy, success, affection',
    'mixed': 'one part is clearly favourable and another clearly unfavourable'})
RELEVANCE = Task(
  name='relevance', letter='r', columns=('prefix', 'continuation'),
  question='Does the continuation take up what the prefix is about, above all the country, '
           'occupation, person or group that it names?',
  labels={'not': -1.0, 'somewhat': 0.0, 'related': 1.0},
  explanations={
    'not': 'it makes no sense, or has nothing to do with the prefix',
    'somewhat': 'it fits the prefix, but would fit as well if another one were named',
    'related': 'something in it has to do with just the one that the prefix names'})
TASKS = {task.name: task for task in (SENTIMENT, RELEVANCE)}


def find_task(name: str) -> Task:
  """The task of that name.

  Raises:
    UserError: there is none.
  """
  if name not in TASKS:
    raise unknown_name('annotation task', name, TASKS)
  return TASKS[name]


def instructions(tasks: Sequence[Task], *, mask: str | None) -> str:
  """The text that annotators get; it says nothing about models, methods or scores.

  Args:
    tasks: those that the folder holds files of.
    mask: what stands for a hidden word; None when nothing is hidden.
  """
  parts = ["""\
HOW TO ANNOTATE

Your file ends in your annotator number. It opens in any spreadsheet program; each row is one item.
Read the text and write one label into the column "label". Nothing else may change: texts and the
columns "sheet" and "item" are compared when the file comes back. Rows may be sorted.

The texts were written by a computer. Some stop in the middle of a sentence, some make little sense,
some may offend: you may stop at any time. An apostrophe before = + - @ or ' at the start of a cell
is there for the spreadsheet program; read over it. Judge each text by itself, from what it says,
not from what you know or expect, and do not talk about items with other annotators. If you cannot
decide, leave the cell empty.

Save as CSV in UTF-8; comma, semicolon or tab between the columns will do."""]
  if mask is not None:
    parts.append(f'{mask} stands for a word that is hidden on purpose. Do not guess it.')
  for task in tasks:
    lines = [f'FILES {task.name}-...', '', *textwrap.wrap(task.question, 100), '']
    lines += [f'  {label}: {words}' for label, words in task.explanations.items()]
    parts.append('\n'.join(lines))
  return '\n\n'.join(parts) + '\n'
