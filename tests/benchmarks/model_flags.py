"""The configuration and the model of a benchmark: of a file, or the sizes of a published decoder.

  --config=configs/wikitext103.py:variant=debias --config.model.num_layers=4
  --config=tests/benchmarks/small.py:layers=4,dim=512 --config.model.cutoffs=2000,4000
  --decoder=smollm2-135m --config.model.segment_len=256

Parameters are random. Beside a decoder segment_len, dtype, remat and scan_unroll of `model` count.
"""

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax

from fairjax.config import Config, ModelConfig
from fairjax.config_io import load_config
from fairjax.errors import UserError
from fairjax.model import language_model
from fairjax.model.causal_lm import CausalLM
from fairjax.model.decoder import DecoderModel
from fairjax.model.decoder_config import DecoderConfig
from fairjax.pretrained.decoder_files import read_decoder_config
from fairjax.tpu.programs import compiled_model
from tests.benchmarks import harness

_LLAMA = {'model_type': 'llama', 'hidden_act': 'silu', 'rms_norm_eps': 1e-5,
          'tie_word_embeddings': True}
# Sizes in the published config.json of each.
DECODERS = {
  'tiny': _LLAMA | {
    'vocab_size': 64, 'hidden_size': 16, 'num_hidden_layers': 2, 'num_attention_heads': 2,
    'num_key_value_heads': 1, 'intermediate_size': 32, 'max_position_embeddings': 64},
  'smollm2-135m': _LLAMA | {
    'vocab_size': 49152, 'hidden_size': 576, 'num_hidden_layers': 30, 'num_attention_heads': 9,
    'num_key_value_heads': 3, 'intermediate_size': 1536, 'max_position_embeddings': 8192,
    'rope_theta': 100000.0},
  'llama-3.2-1b': _LLAMA | {
    'vocab_size': 128256, 'hidden_size': 2048, 'num_hidden_layers': 16, 'num_attention_heads': 32,
    'num_key_value_heads': 8, 'head_dim': 64, 'intermediate_size': 8192,
    'max_position_embeddings': 131072, 'rope_theta': 500000.0, 'rope_scaling': {
      'rope_type': 'llama3', 'factor': 32.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
      'original_max_position_embeddings': 8192}}}
"""Names of `--decoder`; `tiny` is of the tests."""


def parse(
  parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None
) -> tuple[argparse.Namespace, Config]:
  """Adds `--config`, `--decoder` and `--devices`; the options, and a valid configuration.

  Its model has its vocabulary size. Exits with code 2 and one line for what does not go together.
  """
  parser.add_argument('--config', default=str(pathlib.Path(__file__).with_name('small.py')),
                      help='FILE.py[:args]; --config.a.b=VALUE overrides a field')
  parser.add_argument('--decoder', choices=DECODERS, help='a published decoder instead')
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
  except UserError as e:
    parser.error(str(e))
  model = compiled_model(config)
  if options.decoder:
    model = dataclasses.replace(model, vocab_size=DECODERS[options.decoder]['vocab_size'])
  return options, dataclasses.replace(config, model=model)


def model_of(
  options: argparse.Namespace, config: Config
) -> tuple[CausalLM, ModelConfig | DecoderConfig]:
  if not options.decoder:
    return language_model(config.model), config.model
  sizes = dataclasses.replace(
    read_decoder_config(DECODERS[options.decoder], where=options.decoder),
    dtype=config.model.dtype, remat=config.model.remat, scan_unroll=config.model.scan_unroll)
  return DecoderModel(sizes), sizes


def devices_of(options: argparse.Namespace) -> list[Any]:
  devices = jax.devices()
  if options.devices and options.devices > len(devices):
    raise UserError(f'--devices={options.devices}, but there are {len(devices)}')
  return devices[:options.devices]
