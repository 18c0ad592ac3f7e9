"""Steps of a plan: commands to run and files to write, and how a dry run prints them."""

import dataclasses
import shlex
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Run:
  """One command.

  Attributes:
    argv: the words; never a line for a shell.
    why: what it does, one line.
    tries: how often it is tried in all; more than one where the network may fail and repeating is
      harmless.
    done_if: texts of errors which mean that it was done before: it exists already, or is gone.
  """

  argv: tuple[str, ...]
  why: str
  tries: int = 1
  done_if: tuple[str, ...] = ()

  @property
  def remote(self) -> bool:
    """Whether it reaches workers: what it prints is theirs, and their ssh may not be ready yet."""
    return bool({'ssh', 'scp'} & set(self.argv))


@dataclasses.dataclass(frozen=True)
class Write:
  """One file with text that holds no secret."""

  path: str
  text: str
  why: str


Step = Run | Write

EXISTS = ('already exists', 'ALREADY_EXISTS')
GONE = ('was not found', 'NOT_FOUND')
"""What gcloud says where something is there already, or no longer: for `done_if`."""


def _wrapped(argv: Sequence[str]) -> str:
  """The words quoted, in lines of at most 100 columns where words allow it."""
  lines = [shlex.quote(argv[0])]
  for word in map(shlex.quote, argv[1:]):
    if len(lines[-1]) + len(word) > 96:
      lines.append(f'  {word}')
    else:
      lines[-1] += f' {word}'
  return ' \\\n'.join(lines)


def render(steps: Sequence[Step]) -> str:
  r"""The steps as lines for bash: exactly what would run, ready to be pasted.

  >>> print(render([Run(('echo', "it's"), 'say so'), Write('a b', 'x\n', 'keep it')]), end='')
  # say so
  echo 'it'"'"'s'
  # keep it
  cat > 'a b' <<'END_OF_FILE'
  x
  END_OF_FILE
  """
  lines = []
  for step in steps:
    lines.append(f'# {step.why}')
    if isinstance(step, Run):
      lines.append(_wrapped(step.argv))
    else:
      text = step.text if step.text.endswith('\n') else step.text + '\n'
      if 'END_OF_FILE\n' in text:
        raise ValueError(f'{step.path} holds the mark that ends it')
      lines.append(f"cat > {shlex.quote(step.path)} <<'END_OF_FILE'\n{text}END_OF_FILE")
  return ''.join(f'{line}\n' for line in lines)
