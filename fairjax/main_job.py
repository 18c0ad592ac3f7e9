"""The main job: data, curriculum, sampling, scores, measures and report in one workdir.

Every stage is resumable: the same command continues it. This module only connects the rooms; what
they do stands in them.
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable

import fairjax
from fairjax.config import Config, parse_variant, write_json
from fairjax.counterfactual import load_attribute

PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy', 'scipy',
            'sentencepiece', 'tensorflow', 'seqio')
BASELINE = 'baseline'


def print_line(line: str) -> None:
  """Prints at once, also into a pipe."""
  print(line, flush=True)


class Job:
  """One run in one workdir.

  Args:
    config: of the whole run.
    workdir: folder; created if it does not exist.
    log: gets one line at a time.

  Raises:
    UserError: the workdir belongs to a run with another configuration (the fields are named).
  """

  def __init__(
    self, config: Config, workdir: str | os.PathLike, *, log: Callable[[str], None] = print_line
  ):
    self.config, self.workdir, self.log = config, pathlib.Path(workdir), log
    self.attribute = load_attribute(config.attribute)
    self._open()

  def run(self) -> None:
    """Does everything that is not done yet."""
    done = self.workdir / 'DONE'
    if done.exists():
      self.log(f'{self.workdir} is finished: nothing to do. Report: '
               f'{self.workdir / "report" / "report.md"}')
      return
    self.train()
    self.sample()
    self.score()
    self.measure()
    self.report()
    write_json(done, {'fairjax': fairjax.__version__})

  def prepare(self):
    """Vocabulary and token stores; returns the `PreparedData` of the data room."""
    return self._prepared

  def train(self, until: str = 'debias') -> None:
    """The curriculum up to and with a stage (`lm`, `sentiment`, `debias`)."""
    from fairjax.train import Curriculum, StopSignal
    feed = PreparedFeed(self.prepare(), self.model_config, self.config, self.attribute)
    with StopSignal().installed() as stop:
      curriculum = Curriculum(
        dataclasses.replace(self.config, model=self.model_config), self.workdir, feed, self._mesh,
        stop, self.log)
      lm = curriculum.train_lm()
      if until == 'lm':
        return
      variants = [parse_variant(v) for v in self.config.debias.variants]
      projection = None
      if until == 'sentiment' or any(method == 'sentiment' for method, _ in variants):
        projection = curriculum.train_sentiment(lm, self._labelled_sentences)
      if until == 'sentiment':
        return
      if self.config.debias.extended_baseline:
        curriculum.train_debias(lm, method='none')
      for method, weight in variants:
        curriculum.train_debias(lm, method=method, weight=weight, projection=projection)

  def models(self) -> dict[str, pathlib.Path]:
    """Name -> stage folder of every language model of this run, baseline first."""
    from fairjax.train import debias_name
    attribute = pathlib.Path(self.config.attribute).stem
    names = {BASELINE: self.workdir / 'lm'}
    variants = [parse_variant(v) for v in self.config.debias.variants]
    if self.config.debias.extended_baseline:
      variants.insert(0, ('none', 0.0))
    for method, weight in variants:
      name = debias_name(attribute, method, weight)
      names[name] = self.workdir / 'debias' / name
    return names
