"""The model of a benchmark: sized by flags, that of a config file, or a published decoder.

  --config=configs/wikitext103.py:variant=debias --config.model.num_layers=4
  --layers=6 --dim=256 --cutoffs=2000,4000 --div_val=4
  --decoder=smollm2-135m --segment_len=256

Parameters are random. With `--config`, sizes are overridden as fields; `--vocab_size` and `--dtype`
are taken with both. A decoder takes `--segment_len`, `--dtype`, `--remat` and `--unroll` only.
"""

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from fairjax.config import Config, ModelConfig
from fairjax.config_checks import validate
from fairjax.config_io import load_config
from fairjax.errors import UserError
from fairjax.model import language_model
from fairjax.model.causal_lm import CausalLM
from fairjax.model.decoder import DecoderModel
from fairjax.model.decoder_config import DecoderConfig
from fairjax.pretrained.decoder_files import read_decoder_config
from fairjax.tpu.programs import compiled_model
from tests.benchmarks.harness import size

_SIZES = {'dim': 256, 'layers': 6, 'heads': 4, 'segment_len': 128}
_FIELDS = ('div_val', 'hidden_dropout', 'attention_dropout', 'attention', 'remat')
_EITHER = {'vocab_size': 8192, 'dtype': 'float32'}
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


def add_model_flags(parser: argparse.ArgumentParser, work: Mapping[str, int]) -> None:
  """Adds `--config`, the sizes and the kind of the model, and sizes of the work."""
  parser.add_argument('--config', help='FILE.py[:args] instead of sizes; --config.a.b=VALUE '
                      'overrides a field')
  parser.add_argument('--decoder', choices=DECODERS, help='a published decoder instead')
  for name, default in work.items():
    parser.add_argument(f'--{name}', type=size, help=f'default: that of the config, or {default}')
  for name, default in _SIZES.items():
    parser.add_argument(f'--{name}', type=size, help=f'default: {default}')
  parser.add_argument('--memory_len', type=int, help='default: the segment length')
  parser.add_argument('--vocab_size', type=size,
                      help='default: that of the config, or of its data, or 8192')
  parser.add_argument('--dtype', choices=('float32', 'bfloat16'))
  parser.add_argument('--cutoffs', type=lambda text: tuple(map(int, text.split(','))),
                      help='first ids of the tails of an adaptive softmax, e.g. 2000,4000')
  defaults = ModelConfig()
  for name in _FIELDS:
    value = getattr(defaults, name)
    parser.add_argument(f'--{name}', type=type(value), help=f'default: {value}')
  parser.add_argument('--unroll', action='store_true', default=None,
                      help='unroll the scan over layers')
  parser.add_argument('--devices', type=size, help='the first so many; default: all')


def parse(
  parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None
) -> tuple[argparse.Namespace, Config]:
  """Options, and a valid configuration whose model has its vocabulary size.

  Exits with code 2 and one line for values that are out of range or do not go together.
  """
  rest, overrides = [], {}
  for word in sys.argv[1:] if arguments is None else arguments:
    name, has_value, value = word.removeprefix('--config.').partition('=')
    if word.startswith('--config.') and has_value:
      overrides[name] = value
    else:
      rest.append(word)
  options = parser.parse_args(rest)
  given = {name: value for name in (*_SIZES, *_FIELDS, 'memory_len', 'cutoffs', 'unroll', *_EITHER)
           if (value := getattr(options, name)) is not None}
  try:
    if options.decoder:
      config = _of_decoder(options, given)
    elif options.config:
      config = _from_file(options.config, overrides, given)
    elif overrides:
      raise UserError(f'--config.{next(iter(overrides))} needs --config=FILE')
    else:
      config = dataclasses.replace(Config(), model=_from_flags(given))
    validate(config)
  except UserError as e:
    parser.error(str(e))
  return options, config


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


def _of_decoder(options, given):
  taken = ('segment_len', 'dtype', 'remat', 'unroll')
  if wrong := [name for name in given if name not in taken]:
    raise UserError(f'--{wrong[0]} is not for --decoder, which takes --{", --".join(taken)}')
  sizes = DECODERS[options.decoder]
  fields = {name: given[name] for name in taken[:3] if name in given}
  return dataclasses.replace(Config(), model=ModelConfig(**(
    {'segment_len': _SIZES['segment_len'], 'vocab_size': sizes['vocab_size'],
     'scan_unroll': sizes['num_hidden_layers'] if 'unroll' in given else 1} | fields)))


def _from_file(spec, overrides, given):
  """That of the file; sizes may not be given twice."""
  sizes = [name for name in given if name not in _EITHER]
  if sizes:
    raise UserError(f'--{sizes[0]} is not for --config: override the field, e.g. '
                    '--config.model.num_layers=4 (fairjax step config lists them)')
  config = load_config(spec, overrides)
  return dataclasses.replace(config, model=dataclasses.replace(compiled_model(config), **given))


def _from_flags(given):
  """The model of the sizes."""
  sizes = {**_SIZES, **_EITHER, **given}
  fields = {name: sizes[name] for name in (*_FIELDS, 'cutoffs') if name in sizes}
  return ModelConfig(
    vocab_size=sizes['vocab_size'], num_layers=sizes['layers'], model_dim=sizes['dim'],
    num_heads=sizes['heads'], head_dim=sizes['dim'] // sizes['heads'], ff_dim=4 * sizes['dim'],
    segment_len=sizes['segment_len'], memory_len=sizes.get('memory_len', sizes['segment_len']),
    scan_unroll=sizes['layers'] if 'unroll' in sizes else 1, dtype=sizes['dtype'], **fields)
