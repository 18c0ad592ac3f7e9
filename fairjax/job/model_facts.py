"""What a run knows about one of its models, for the model card of an export."""

import pathlib
from collections.abc import Mapping
from typing import Any

from fairjax.config import DataConfig
from fairjax.errors import UserError
from fairjax.job.report_parts import model_row
from fairjax.versions import installed_versions

_LANGUAGES = {'planted': 'en', 'planted_gender': 'en', 'wikitext103': 'en', 'wikitext2': 'en'}
_DATASETS = {'wikitext103': 'wikitext', 'wikitext2': 'wikitext'}
METHODS = {
  'baseline': 'the language model of step 1 of the curriculum: next-token loss on the whole corpus',
  'extended_baseline': 'the control: the model of step 1, trained on for as many steps as the '
  'debiased models, without a fairness term',
  'embedding': 'debiased by embedding regularisation: hidden states at a sensitive token are drawn '
  'to those of its counterfactual',
  'sentiment': 'debiased by sentiment regularisation: what a sentiment network reads in the hidden '
  'states at a sensitive token is drawn to what it reads in those of its counterfactual',
  'random_projection': 'the control of sentiment regularisation: debiased alike, but with a '
  'sentiment network that was never trained',
  'dropout': 'the model of step 1, trained on for as many steps as the control, with more dropout '
  'of attention weights and hidden states (Webster et al. 2020)',
  'cda': 'the model of step 1, trained on for as many steps as the control, on text with '
  'counterfactual sentences of the other gender (Webster et al. 2020)'}
"""What the methods are, for a reader of one model."""


def known_names(data: DataConfig) -> tuple[list[str], list[str]]:
  """Languages and published names of a corpus that fairjax brings or knows; empty for others."""
  return ([_LANGUAGES[data.source]] if data.source in _LANGUAGES else [],
          [_DATASETS[data.source]] if data.source in _DATASETS else [])


def measured_rows(job: Any, model: Any) -> list[Any]:
  """What was measured of a model of a `Job`, its baseline before it; [] if the model was not.

  Raises:
    UserError: the parameters that were measured are not those that are there.
  """
  from fairjax.train import done_card
  if not job.measures_file(model).exists():
    return []
  baseline = job.models[0]
  rows = []
  for one in dict.fromkeys((baseline, model)):
    if job.measures_file(one).exists():
      done = done_card(one.directory)
      if done is None or job.read_measures(one)['identity']['digest'] != done['digest']:
        raise UserError(f'{job.measures_file(one)} was measured with other parameters than '
                        f'{one.directory} holds: remove it, or run fairjax measure again')
      rows.append(model_row(job, one))
  return rows


def origin_rows(job: Any, model: Any, done: Mapping[str, Any]) -> list[tuple[str, str]]:
  """(what, value): stage, method, data and settings of a model of a `Job`; `done` is its DONE."""
  config, identity = job.config, done['identity']
  stage = getattr(config, identity['stage'])
  found = [('stage', identity['stage']), ('method', model.method)]
  if model.weight is not None:
    found += [('fairness weight (lambda)', f'{model.weight:g}'),
              ('sensitive attribute', job.attribute.name)]
  imported = done['summary'].get('imported')
  if imported:
    found.append(('imported', 'trained elsewhere: ' + ', '.join(
      f'{k} {v}' for k, v in sorted(imported.items()) if isinstance(v, str))))
  else:
    found += [('steps', str(done['step'])), ('rows in a batch', str(stage.batch_size)),
              ('segment and memory', f'{config.model.segment_len} and {config.model.memory_len} '
               'tokens'),
              ('learning rate', f'{stage.learning_rate:g}, {stage.schedule}'),
              ('seed', str(config.seed))]
  if identity['parent']:
    found.append(('started from parameters', identity['parent']))
  names = ', '.join(pathlib.PurePath(name).name for name in config.data.train)
  found += [('training text', config.data.source + (f': {names}' if names else '')),
            ('configuration', f'{identity["config"]} (fingerprint)'),
            ('versions', ', '.join(f'{k} {v}' for k, v in installed_versions().items()
                                   if k in ('fairjax', 'jax', 'flax', 'optax')))]
  return found
