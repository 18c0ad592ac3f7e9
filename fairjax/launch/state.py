"""States of what was asked for, in the words of every backend."""

from typing import NamedTuple

READY, WAITING, DEAD, ABSENT = 'ready', 'waiting', 'dead', 'absent'


class State(NamedTuple):
  """State of a slice.

  Attributes:
    kind: `ready`, `waiting`, `dead` (only deleting helps), `absent`; '' if the question failed.
    words: as the cloud says it.
  """

  kind: str
  words: str

  @property
  def quota(self) -> bool:
    """Whether it died of a limit: asking again cannot help."""
    return self.kind == DEAD and 'quota' in self.words.lower()
