"""The scorers of a run: names of its configuration, with the files that they need."""

import pathlib
from collections.abc import Callable

from fairjax.config import PLANTED_SOURCES, Config
from fairjax.files import atomic_write


def load_run_scorer(
  name: str, config: Config, workdir: pathlib.Path, log: Callable[[str], None], *,
  together: bool = False,
):
  """Makes a scorer by name; see `fairjax.measure.load_scorer`.

  Scores that the google scorer paid for are kept in `scores/google.jsonl` of the workdir, for all
  models, attributes and stages. With `together` a model runs on the devices of all processes.

  Raises:
    UserError: unknown name, or something that the scorer needs is missing.
  """
  from fairjax.measure import load_scorer
  google = {'cache': workdir / 'scores' / 'google.jsonl', 'log': log,
            'requests_per_minute': config.measure.google_requests_per_minute,
            'endpoint': config.measure.google_endpoint}
  return load_scorer(name, lexicon=_lexicon(config, workdir), google=google,
                     together=together)


def _lexicon(config: Config, workdir: pathlib.Path) -> tuple[str, ...] | None:
  """Files of opinion words; those of the grammar for the planted corpus."""
  if config.measure.lexicon or config.data.source not in PLANTED_SOURCES:
    return config.measure.lexicon or None
  from fairjax.data.planted import NEGATIVE, POSITIVE
  paths = []
  for name, words in (('positive', POSITIVE), ('negative', NEGATIVE)):
    paths.append(workdir / 'data' / f'lexicon_{name}.txt')
    if not paths[-1].exists():
      with atomic_write(paths[-1]) as file:
        file.write(b'; opinion words of the planted corpus\n')
        file.write(('\n'.join(words) + '\n').encode('utf-8'))
  return tuple(map(str, paths))
