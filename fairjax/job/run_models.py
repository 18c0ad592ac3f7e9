"""The language models of a run, and where they lie."""

import dataclasses
import pathlib

from fairjax.config import Config, debias_variants, parse_variant

BASELINE = 'baseline'


@dataclasses.dataclass(frozen=True)
class Model:
  """One language model of the run."""

  name: str
  directory: pathlib.Path  # of its stage
  # baseline | extended_baseline | embedding | sentiment | random_projection | dropout | cda
  method: str
  weight: float | None = None  # lambda


def run_models(config: Config, workdir: pathlib.Path) -> list[Model]:
  """The language models of a run, baseline first."""
  from fairjax.train import debias_name, stage_folder, variant_name
  found = [Model(BASELINE, stage_folder(config, workdir, 'lm'), BASELINE)]
  if config.until != 'debias':
    return found
  if config.debias.extended_baseline:
    name = debias_name('', 'none', 0.0)
    found.append(Model(name, stage_folder(config, workdir, f'debias/{name}'), 'extended_baseline'))
  attribute = pathlib.Path(config.attribute).stem  # as the curriculum names its folders
  for variant in debias_variants(config.debias):
    name = variant_name(attribute, variant)
    folder = f'debias/{name}'
    found.append(Model(
      name, workdir / folder if variant.regularised else stage_folder(config, workdir, folder),
      variant.method, variant.weight if variant.regularised else None))
  return found


def trains_sentiment(config: Config, until: str) -> bool:
  """Whether the curriculum up to a stage has step 2."""
  return until == 'sentiment' or (until == 'debias' and any(
    parse_variant(v).method == 'sentiment' for v in config.debias.variants))
