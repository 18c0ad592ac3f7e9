"""Tables of results, in Markdown."""

import collections
from collections.abc import Callable, Iterable, Sequence

from tests.chaos.cases import Case
from tests.chaos.curriculum import STAGES

VERDICTS = ('identical', 'refused', 'skipped', 'failed')


def tables(found: Sequence[Case]) -> str:
  """Verdicts by fault, by stage and by damaged file; then the cases that failed."""
  parts = [_counts('fault', found, lambda c: c.fault)]
  inside = [c for c in found if c.fault != 'corrupt' and c.stage]
  if inside:
    parts.append(_grid(inside, STAGES))
  damaged = [c for c in found if c.fault == 'corrupt']
  if damaged:
    parts.append(_counts('damaged file', damaged, lambda c: c.kind))
    parts.append(_counts('damage', damaged, _operation))
  parts += [f'- {c.fault} {c.number}, {c.what}: {c.verdict}' for c in found if c.failed]
  return '\n\n'.join(parts)


def _operation(case: Case) -> str:
  words = case.what.rpartition(': ')[2]
  return ('folder deleted' if words.startswith('folder') else 'emptied' if ' to 0 of ' in words else
          'truncated' if words.startswith('cut') else 'bit flipped' if 'flipped' in words else
          'deleted')


def _verdict(case: Case) -> str:
  return case.verdict.partition(':')[0]


def _counts(title: str, found: Iterable[Case], key: Callable[[Case], str]) -> str:
  counts = collections.defaultdict(collections.Counter)
  for case in found:
    counts[key(case)][_verdict(case)] += 1
  lines = [f'| {title} | cases | ' + ' | '.join(VERDICTS) + ' |',
           '| :-- | --: |' + ' --: |' * len(VERDICTS)]
  lines += [f'| {name} | {count.total()} | '
            + ' | '.join(str(count[verdict]) for verdict in VERDICTS) + ' |'
            for name, count in counts.items()]
  return '\n'.join(lines)


def _grid(found: Sequence[Case], stages: Sequence[str]) -> str:
  """Cases whose end was identical, of all, by fault and stage."""
  lines = ['| fault | ' + ' | '.join(stages) + ' |', '| :-- |' + ' --: |' * len(stages)]
  for fault in dict.fromkeys(c.fault for c in found):
    cells = []
    for stage in stages:
      here = [c for c in found if (c.fault, c.stage) == (fault, stage)]
      same = sum(_verdict(c) == 'identical' for c in here)
      cells.append(f'{same} of {len(here)}' if here else '-')
    lines.append(f'| {fault} | ' + ' | '.join(cells) + ' |')
  return '\n'.join(lines)


def writes(found: Iterable[Case]) -> str:
  """A row for every kind of write that met a full or protected disk: exit code, message, end."""
  lines = ['| write | fault | exit | message | then |', '| :-- | :-- | --: | :-- | :-- |']
  for case in found:
    message = case.message.removeprefix('fairjax: ').replace('|', '\\|')
    lines.append(f'| `{case.kind}` | {case.fault} | {case.first} | {message} | {case.verdict} |')
  return '\n'.join(lines)
