"""Tensors of safetensors files to parameters and back; nothing is guessed."""

import collections
import dataclasses
import fnmatch
import functools
import hashlib
import json
import os
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fairjax import processes
from fairjax.errors import UserError, unknown_name
from fairjax.files import file_sha256
from fairjax.inputs import refuse_pointer
from fairjax.pretrained.tokens import (
  check_tokenizer,
  ends_text,
  length_limit,
  load_tokenizer,
  read_json,
  unused_ids,
  within_model,
)
from fairjax.progress import write_line

# What a `config.json` says of a model, checked: anything that would change its values is known.
#
# Letters: V vocabulary, E embedding width, D model width, N heads, F feed-forward width, L layers.

KINDS = ('albert', 'bert', 'gpt2')
_CLASSES = {'albert': r'Albert(?=[A-Z]).*', 'bert': r'Bert(?=[A-Z]).*', 'gpt2': r'GPT2(?=[A-Z]).*'}
# Fields that a config of the kind has, and fields of others that share them (GPT-J, StarCoder).
_FIELDS = {
  'albert': ({'hidden_size', 'embedding_size', 'inner_group_num', 'intermediate_size'}, set()),
  'bert': ({'hidden_size', 'num_hidden_layers', 'num_attention_heads', 'intermediate_size',
            'type_vocab_size'}, {'embedding_size', 'num_hidden_groups'}),
  'gpt2': ({'n_embd', 'n_layer', 'n_head', 'n_positions'},
           {'rotary_dim', 'multi_query', 'afn', 'attention_layers'})}
ACTIVATIONS = ('gelu', 'gelu_new', 'gelu_pytorch_tanh', 'relu')


@dataclasses.dataclass(frozen=True)
class Architecture:
  """Sizes and switches of a model; hashable, so that compiled functions can depend on it.

  Attributes:
    kind: 'bert', 'albert' or 'gpt2'.
    groups: different groups of layers (ALBERT shares them); L where nothing is shared.
    layers_per_group: layers that a group applies each time.
    tied: the output table is the embedding table.
    labels: names of the classes of a sequence classifier, by number.
  """

  kind: str
  vocab_size: int
  embedding_dim: int
  model_dim: int
  num_layers: int
  num_heads: int
  ff_dim: int
  max_positions: int
  token_types: int
  groups: int
  layers_per_group: int
  norm_eps: float
  activation: str
  tied: bool
  labels: tuple[str, ...]
  pad_id: int
  hidden_dropout: float
  attention_dropout: float
  classifier_dropout: float

  @property
  def head_dim(self) -> int:
    """Width of one attention head."""
    return self.model_dim // self.num_heads

  @property
  def layer_order(self) -> tuple[int, ...]:
    """Number of the stacked layer at every depth: 0 to L-1, or with repetitions in ALBERT."""
    if self.kind != 'albert':
      return tuple(range(self.num_layers))
    return tuple(self.layers_per_group * (depth * self.groups // self.num_layers) + inner
                 for depth in range(self.num_layers) for inner in range(self.layers_per_group))


def recognise(config: Mapping[str, Any], *, where: str) -> tuple[str, str]:
  """The kind of a model by its config, and '' or what it was recognised by."""
  quantised = config.get('quantization_config')
  if quantised:
    method = quantised.get('quant_method') if isinstance(quantised, Mapping) else None
    bits = [f'{key}={value}' for key, value in quantised.items()
            if 'bit' in key and value is not False] if isinstance(quantised, Mapping) else []
    raise UserError(f"{where} has a quantization_config ({', '.join([str(method), *bits])}): "
                    'quantised weights are not read: take the checkpoint before quantisation')
  kind, classes = config.get('model_type'), config.get('architectures') or []
  reads = f"fairjax reads the kinds {', '.join(KINDS)} here"
  if kind is not None:
    if kind not in KINDS:
      raise UserError(f"{where}: unknown model_type '{kind}': {reads}: take a model of one of them")
    return kind, ''
  for name in classes if isinstance(classes, list) else ():
    found = [k for k, pattern in _CLASSES.items() if re.fullmatch(pattern, str(name))]
    if not found:
      raise UserError(f"{where} has no model_type, and its architecture '{name}' is not known: "
                      f'{reads}: take a model of one of them')
    return found[0], f"its architecture '{name}'"
  for name, (needed, foreign) in _FIELDS.items():
    if needed <= config.keys() and not foreign & config.keys():
      return name, 'the names of its fields'
  raise UserError(f'{where} has no model_type, no architectures, and not the fields of any kind '
                  f'that is known: {reads}: add "model_type", or take the config.json of the model')


def read_architecture(config: Mapping[str, Any], *, where: str) -> Architecture:
  """Reads the content of a `config.json`.

  Args:
    config: as published with checkpoints of BERT, ALBERT and GPT-2.
    where: its path, for messages.

  Raises:
    UserError: unknown `model_type` or activation, a field that is missing or no positive number,
      or a setting under which the model would compute something else than is implemented here.
  """
  kind = recognise(config, where=where)[0]
  read = _Fields(config, where)
  found = _gpt2(read) if kind == 'gpt2' else _encoder(read, kind)
  if found['activation'] not in ACTIVATIONS:
    raise unknown_name('activation', str(found['activation']), ACTIVATIONS, where=where)
  if found['model_dim'] % found['num_heads']:
    raise UserError(f"{where}: width {found['model_dim']} is not divisible by "
                    f"{found['num_heads']} heads")
  for name in ('add_cross_attention',) if kind == 'gpt2' else ('is_decoder', 'add_cross_attention'):
    read.must(name, False)
  if found['pad_id'] >= found['vocab_size']:  # of an added token; no place of padding is read
    found['pad_id'] = 0
  return Architecture(kind=kind, labels=read.labels(), **found)


def _encoder(read: '_Fields', kind: str) -> dict[str, Any]:
  """Fields of BERT and ALBERT."""
  read.must('position_embedding_type', 'absolute')
  width, layers = read.size('hidden_size'), read.size('num_hidden_layers')
  albert = kind == 'albert'
  groups = read.size('num_hidden_groups', 1) if albert else layers
  if layers < groups:
    raise UserError(f'{read.where}: num_hidden_groups={groups} is above '
                    f'num_hidden_layers={layers}')
  hidden_dropout = read.share('hidden_dropout_prob', 0.0 if albert else 0.1)
  last = 'classifier_dropout_prob' if albert else 'classifier_dropout'
  return dict(
    vocab_size=read.size('vocab_size'),
    embedding_dim=read.size('embedding_size', 128) if albert else width, model_dim=width,
    num_layers=layers, num_heads=read.size('num_attention_heads'),
    ff_dim=read.size('intermediate_size'), max_positions=read.size('max_position_embeddings'),
    token_types=read.size('type_vocab_size', 2), groups=groups,
    layers_per_group=read.size('inner_group_num', 1) if albert else 1,
    norm_eps=read.share('layer_norm_eps', 1e-12),
    activation=read.get('hidden_act', 'gelu_new' if albert else 'gelu'),
    tied=bool(read.get('tie_word_embeddings', True)), pad_id=read.number('pad_token_id', 0),
    hidden_dropout=hidden_dropout,
    attention_dropout=read.share('attention_probs_dropout_prob', 0.0 if albert else 0.1),
    classifier_dropout=read.share(last, 0.1 if albert else hidden_dropout))


def _gpt2(read: '_Fields') -> dict[str, Any]:
  """Fields of GPT-2."""
  read.must('scale_attn_weights', True)
  read.must('scale_attn_by_inverse_layer_idx', False)
  width = read.size('n_embd')
  layers = read.size('n_layer')
  return dict(
    vocab_size=read.size('vocab_size'), embedding_dim=width, model_dim=width, num_layers=layers,
    num_heads=read.size('n_head'), ff_dim=read.size('n_inner', 4 * width),
    max_positions=read.size('n_positions'), token_types=0, groups=layers, layers_per_group=1,
    norm_eps=read.share('layer_norm_epsilon', 1e-5),
    activation=read.get('activation_function', 'gelu_new'),
    tied=bool(read.get('tie_word_embeddings', True)), pad_id=read.number('pad_token_id', 0),
    hidden_dropout=read.share('resid_pdrop', 0.1), attention_dropout=read.share('attn_pdrop', 0.1),
    classifier_dropout=0.0)


class _Fields:
  """Values of a config with their checks."""

  def __init__(self, config: Mapping[str, Any], where: str):
    self.config, self.where = config, where

  def get(self, name: str, default: Any) -> Any:
    value = self.config.get(name)
    return default if value is None else value

  def must(self, name: str, wanted: Any) -> None:
    if self.get(name, wanted) != wanted:
      raise UserError(f'{self.where}: {name}={self.config[name]!r} is not supported, only '
                      f'{wanted!r}')

  def number(self, name: str, default: int | None = None) -> int:
    value = self.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
      raise UserError(f'{self.where}: {name} is {value!r}, a whole number is needed')
    return value

  def size(self, name: str, default: int | None = None) -> int:
    value = self.number(name, default)
    if not value:
      raise UserError(f'{self.where}: {name} is 0, a positive number is needed')
    return value

  def share(self, name: str, default: float) -> float:
    value = self.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
      raise UserError(f'{self.where}: {name} is {value!r}, a number in [0, 1) is needed')
    return float(value)

  def labels(self) -> tuple[str, ...]:
    """Names of the classes; a config without any has two (it leaves out that default)."""
    named = self.config.get('id2label')
    if named is None:
      count = self.number('num_labels', self.number('_num_labels', 2))
      return tuple(f'LABEL_{i}' for i in range(count))
    if not isinstance(named, dict) or sorted(named) != sorted(map(str, range(len(named)))):
      raise UserError(f'{self.where}: id2label must name the classes "0" to "C-1"')
    labels = tuple(str(named[str(i)]) for i in range(len(named)))
    if len(set(labels)) != len(labels):
      raise UserError(f'{self.where}: id2label gives several classes the same name')
    return labels


def safe_name(text: str) -> str:
  """Keeps letters, digits, `.`, `_` and `-` of a name, for names of files."""
  return re.sub(r'[^\w.-]+', '-', text, flags=re.ASCII).strip('-.') or 'model'


# Every tensor of BERT, ALBERT and GPT-2: its published name and its place in our parameters.
#
# Parameters are a dictionary of groups of arrays; tensors of all layers are stacked on axis 0, and
# every kernel is `[in, out]`. Letters: V vocabulary, E embedding width, D model width, F feed-
# forward
# width, P positions, Y token types, L stacked layers (of ALBERT: the different ones), C classes.
#
# | group | arrays |
# |---|---|
# | `embeddings` | `word [V, E]`, `position [P, E]`; BERT and ALBERT also `token_type [Y, E]`,
# `norm_scale [E]`, `norm_bias [E]` |
# | `projection` (ALBERT) | `kernel [E, D]`, `bias [D]` |
# | `layers` | `qkv_kernel [L, D, 3D]` (queries, keys, values), `qkv_bias [L, 3D]`, `out_kernel
# [L, D, D]`, `out_bias [L, D]`, `ff_in_kernel [L, D, F]`, `ff_in_bias [L, F]`, `ff_out_kernel [L,
# F, D]`, `ff_out_bias [L, D]`, `attention_norm_scale`, `attention_norm_bias`, `ff_norm_scale`,
# `ff_norm_bias` (`[L, D]`; after attention and feed-forward in BERT and ALBERT, before them in
# GPT-2) |
# | `final_norm` (GPT-2) | `scale [D]`, `bias [D]` |
# | `pooler` | `kernel [D, D]`, `bias [D]` |
# | `mlm` | `kernel [D, E]`, `bias [E]`, `norm_scale [E]`, `norm_bias [E]`, `output_bias [V]` |
# | `classifier` | `kernel [D, C]`, `bias [C]` |
# | `output` (only untied) | `table [V, E]` |

HEADS = {'bert': ('encoder', 'pooled', 'mlm', 'classifier'),
         'albert': ('encoder', 'pooled', 'mlm', 'classifier'), 'gpt2': ('lm',)}
"""Kind -> what can be computed on top of it; 'pooled' is the encoder with its pooler."""

PREFIX = {'bert': 'bert.', 'albert': 'albert.', 'gpt2': 'transformer.'}
"""What names of the model's body carry in files that also hold a head."""

_HEAD_NAMES = ('cls.', 'predictions.', 'classifier.', 'sop_classifier.', 'lm_head.')


class Entry(NamedTuple):
  """One array of ours.

  Attributes:
    group, name: its place.
    tensors: for each stacked layer (one where nothing is stacked) the names of the tensors that lie
      side by side on the last axis.
    shape: of one such tensor in the file.
    transposed: the file has `[out, in]`.
    stacked: axis 0 counts layers.
    head: belongs to a head, not to the body.
  """

  group: str
  name: str
  tensors: tuple[tuple[str, ...], ...]
  shape: tuple[int, ...]
  transposed: bool = False
  stacked: bool = False
  head: bool = False


def entries(arch: Architecture, head: str) -> list[Entry]:
  """Every array that a model with this head needs; names without the body's prefix."""
  return list(_gpt2_entries(arch) if arch.kind == 'gpt2' else _encoder_entries(arch, head))


def _encoder_entries(arch: Architecture, head: str) -> Iterator[Entry]:
  d, e, f = arch.model_dim, arch.embedding_dim, arch.ff_dim
  for name, rows in (('word', arch.vocab_size), ('position', arch.max_positions),
                     ('token_type', arch.token_types)):
    yield Entry('embeddings', name, ((f'embeddings.{name}_embeddings.weight',),), (rows, e))
  yield from _norm('embeddings', 'norm_', 'embeddings.LayerNorm', e)
  albert = arch.kind == 'albert'
  if albert:
    yield from _linear('projection', '', 'encoder.embedding_hidden_mapping_in', e, d)
    bases = [f'encoder.albert_layer_groups.{g}.albert_layers.{i}.'
             for g in range(arch.groups) for i in range(arch.layers_per_group)]
    names = ('attention.{}', 'attention.dense', 'ffn', 'ffn_output', 'attention.LayerNorm',
             'full_layer_layer_norm')
  else:
    bases = [f'encoder.layer.{i}.' for i in range(arch.num_layers)]
    names = ('attention.self.{}', 'attention.output.dense', 'intermediate.dense', 'output.dense',
             'attention.output.LayerNorm', 'output.LayerNorm')
  qkv, out, ff_in, ff_out, norm, ff_norm = names
  joined = tuple(tuple(base + qkv.format(part) for part in ('query', 'key', 'value'))
                 for base in bases)
  yield Entry('layers', 'qkv_kernel', _dotted(joined, 'weight'), (d, d), True, True)
  yield Entry('layers', 'qkv_bias', _dotted(joined, 'bias'), (d,), False, True)
  for ours, theirs, fan_in, fan_out in (
      ('out', out, d, d), ('ff_in', ff_in, d, f), ('ff_out', ff_out, f, d)):
    stack = tuple((base + theirs,) for base in bases)
    yield Entry('layers', f'{ours}_kernel', _dotted(stack, 'weight'), (fan_out, fan_in), True, True)
    yield Entry('layers', f'{ours}_bias', _dotted(stack, 'bias'), (fan_out,), False, True)
  for ours, theirs in (('attention_norm', norm), ('ff_norm', ff_norm)):
    stack = tuple((base + theirs,) for base in bases)
    yield Entry('layers', f'{ours}_scale', _dotted(stack, 'weight'), (d,), False, True)
    yield Entry('layers', f'{ours}_bias', _dotted(stack, 'bias'), (d,), False, True)
  if head in ('pooled', 'classifier'):
    yield from _linear('pooler', '', 'pooler' if albert else 'pooler.dense', d, d)
  if head == 'classifier':
    yield from _linear('classifier', '', 'classifier', d, len(arch.labels), head=True)
  if head == 'mlm':
    base = 'predictions.' if albert else 'cls.predictions.'
    transform = base if albert else f'{base}transform.'
    yield from _linear('mlm', '', f'{transform}dense', d, e, head=True)
    yield from _norm('mlm', 'norm_', f'{transform}LayerNorm', e, head=True)
    yield Entry('mlm', 'output_bias', ((f'{base}bias',),), (arch.vocab_size,), head=True)
    if not arch.tied:
      yield Entry('output', 'table', ((f'{base}decoder.weight',),), (arch.vocab_size, e), head=True)


def _gpt2_entries(arch: Architecture) -> Iterator[Entry]:
  d, f = arch.model_dim, arch.ff_dim
  yield Entry('embeddings', 'word', (('wte.weight',),), (arch.vocab_size, d))
  yield Entry('embeddings', 'position', (('wpe.weight',),), (arch.max_positions, d))
  for ours, theirs, fan_in, fan_out in (
      ('qkv', 'attn.c_attn', d, 3 * d), ('out', 'attn.c_proj', d, d), ('ff_in', 'mlp.c_fc', d, f),
      ('ff_out', 'mlp.c_proj', f, d)):
    stack = tuple((f'h.{i}.{theirs}',) for i in range(arch.num_layers))
    yield Entry('layers', f'{ours}_kernel', _dotted(stack, 'weight'), (fan_in, fan_out),
                stacked=True)
    yield Entry('layers', f'{ours}_bias', _dotted(stack, 'bias'), (fan_out,), stacked=True)
  for ours, theirs in (('attention_norm', 'ln_1'), ('ff_norm', 'ln_2')):
    stack = tuple((f'h.{i}.{theirs}',) for i in range(arch.num_layers))
    yield Entry('layers', f'{ours}_scale', _dotted(stack, 'weight'), (d,), stacked=True)
    yield Entry('layers', f'{ours}_bias', _dotted(stack, 'bias'), (d,), stacked=True)
  yield from _norm('final_norm', '', 'ln_f', d)
  if not arch.tied:
    yield Entry('output', 'table', (('lm_head.weight',),), (arch.vocab_size, d), head=True)


def _linear(group: str, prefix: str, base: str, fan_in: int, fan_out: int, *, head: bool = False
            ) -> Iterator[Entry]:
  yield Entry(group, f'{prefix}kernel', ((f'{base}.weight',),), (fan_out, fan_in), True, head=head)
  yield Entry(group, f'{prefix}bias', ((f'{base}.bias',),), (fan_out,), head=head)


def _norm(group: str, prefix: str, base: str, width: int, *, head: bool = False) -> Iterator[Entry]:
  yield Entry(group, f'{prefix}scale', ((f'{base}.weight',),), (width,), head=head)
  yield Entry(group, f'{prefix}bias', ((f'{base}.bias',),), (width,), head=head)


def _dotted(stack: tuple[tuple[str, ...], ...], last: str) -> tuple[tuple[str, ...], ...]:
  return tuple(tuple(f'{name}.{last}' for name in names) for names in stack)


def aliases(arch: Architecture, head: str) -> dict[str, str]:
  """Tensors that must equal another: copies of tied tables and biases, e.g. of GPT-2's `wte`."""
  if arch.kind == 'gpt2':
    return {'lm_head.weight': 'wte.weight'} if arch.tied else {}
  if head != 'mlm':
    return {}
  base = 'predictions.' if arch.kind == 'albert' else 'cls.predictions.'
  found = {f'{base}decoder.bias': f'{base}bias'}
  if arch.tied:
    found[f'{base}decoder.weight'] = 'embeddings.word_embeddings.weight'
  return found


_NOT_NEEDED = {
  'bert': r'embeddings\.position_ids|pooler\.dense\.(weight|bias)|cls\.seq_relationship\.(weight|'
          r'bias)|cls\.predictions\..*|classifier\.(weight|bias)',
  'albert': r'embeddings\.(position|token_type)_ids|pooler\.(weight|bias)|sop_classifier\.'
            r'classifier\.(weight|bias)|predictions\..*|classifier\.(weight|bias)',
  'gpt2': r'h\.\d+\.attn\.(bias|masked_bias)',
}


def not_needed(name: str, kind: str) -> bool:
  """Whether a tensor is one that published files hold without being needed."""
  return re.fullmatch(_NOT_NEEDED[kind], name) is not None


_WRAPPERS = ('_orig_mod', '_fsdp_wrapped_module', '_checkpoint_wrapped_module', '_forward_module')
_BEFORE = (*_WRAPPERS, 'module', 'model', 'base_model', 'auto_model', 'transformer', 'bert',
           'albert')


def bare_name(name: str, kind: str) -> str:
  """A tensor's name without what compilers, trainers and wrappers put before and into it.

  The prefix of the kind's own body stays.

  >>> bare_name('module._orig_mod.transformer.h.0._orig_mod.ln_1.weight', 'gpt2')
  'transformer.h.0.ln_1.weight'
  >>> bare_name('model.bert.pooler.dense.bias', 'bert'), bare_name('model.wte.weight', 'gpt2')
  ('bert.pooler.dense.bias', 'wte.weight')
  """
  parts = [part for part in name.split('.') if part not in _WRAPPERS]
  own = ''
  while len(parts) > 1 and parts[0] in _BEFORE:
    own = PREFIX[kind] if f'{parts[0]}.' == PREFIX[kind] else own
    parts = parts[1:]
  return own + '.'.join(parts)


def plain_name(name: str, kind: str) -> str:
  """A tensor's name without the body's prefix and with today's names of LayerNorm's arrays."""
  name = name.removeprefix(PREFIX[kind])
  name = re.sub(r'(LayerNorm|layer_norm)\.gamma$', r'\1.weight', name)
  return re.sub(r'(LayerNorm|layer_norm)\.beta$', r'\1.bias', name)


def full_name(name: str, kind: str) -> str:
  """The name with the body's prefix, as files with a head have it."""
  return name if name.startswith(_HEAD_NAMES) else PREFIX[kind] + name


WEIGHTS, INDEX = 'model.safetensors', 'model.safetensors.index.json'
_RELOAD = 'download it again with all files of the model'
# Types of safetensors that NumPy has; whole numbers are buffers, or refused where they are weights.
_STORED = {'F64', 'F32', 'F16', 'BF16', 'I64', 'I32', 'I16', 'I8', 'U64', 'U32', 'U16', 'U8',
           'BOOL'}
_OTHERS = {  # files of weights in other formats, and what to do
  '*.bin': '{} is a pickle and is not read: convert it with safetensors.torch.save_file',
  '*.pt': '{} is a pickle and is not read: convert it with safetensors.torch.save_file',
  '*.pth': '{} is a pickle and is not read: convert it with safetensors.torch.save_file',
  '*.ckpt': '{} is a pickle and is not read: convert it with safetensors.torch.save_file',
  '*.gguf': '{} is in the format GGUF, which is not read: take the safetensors of the same model',
  '*.h5': '{} is of TensorFlow: save the model of PyTorch with save_pretrained(DIR)',
  '*.msgpack': '{} is of Flax: save the model of PyTorch with save_pretrained(DIR)',
  '*.onnx': '{} is of ONNX: take the safetensors of the same model'}
_PACKED = re.compile(r'[._](qweight|qzeros|absmax|quant_map|weight_packed|weight_scale|SCB)\b')
_QUANTISED = 'quantised weights are not read: take the checkpoint before quantisation'
_FLOATS = ('float16', 'bfloat16', 'float32', 'float64')
Params = dict[str, dict[str, Any]]
_TOGETHER = 'take config.json and weights of one and the same model'
_KINDS = {  # what to do with a model that has another head than is asked for
  'bert': "'lm' needs a GPT-2; a BERT with its mlm head serves correlations and masked-lm",
  'albert': "'lm' needs a GPT-2; an ALBERT with its mlm head serves correlations and masked-lm",
  'gpt2': 'it writes texts (sample --pretrained=DIR); scorers, encoders and masks need a BERT or '
          'ALBERT',
}
_HEADLESS = {
  'classifier': 'fairjax sentiment-classifier train --init=DIR makes a classifier of it',
  'mlm': 'give a checkpoint that was saved with it, as BertForMaskedLM or AlbertForMaskedLM does, '
         'or train one from scratch with fairjax masked-lm train without --init',
  'pooled': 'save it again with its pooler (add_pooling_layer=True)',
  'lm': 'save it as GPT2LMHeadModel does, or set tie_word_embeddings to true in config.json if the '
        'output is the table of words',
}


def weight_files(directory: pathlib.Path) -> list[pathlib.Path]:
  """Files that hold the weights of a directory."""
  index = directory / INDEX
  if (directory / WEIGHTS).is_file():
    return [directory / WEIGHTS]
  if not index.is_file():
    return _shards(directory)
  refuse_pointer(index)
  try:
    named = list(json.loads(index.read_text(encoding='utf-8'))['weight_map'].values())
    if not named or not all(isinstance(name, str) for name in named):
      raise TypeError('weight_map must give each tensor the name of a file')
    names = sorted(set(named))
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    raise UserError(f'{index} is no index of weights ({type(e).__name__}: {e}): {_RELOAD}'
                    ) from None
  for name in names:
    if pathlib.PurePath(name).name != name or not (directory / name).is_file():
      raise UserError(f'{index} names the file {name!r}, which is not in {directory}: {_RELOAD}')
  return [directory / name for name in names]


def _shards(directory: pathlib.Path) -> list[pathlib.Path]:
  """The shards of a directory without an index, whose names count them."""
  found = sorted(directory.glob('*.safetensors'))
  counted = {p: re.fullmatch(r'.*-(\d{5})-of-(\d{5})\.safetensors', p.name) for p in found}
  shards = [p for p, count in counted.items() if count]
  if shards:
    most = int(counted[shards[0]][2])
    there = {int(counted[p][1]) for p in shards if int(counted[p][2]) == most}
    missing = sorted(set(range(1, most + 1)) - there)
    if missing or len(shards) != most:
      raise UserError(f'{directory} holds {len(shards)} shards of {most}, without '
                      f'{missing[:1] or "one index"}: {_RELOAD}')
    return shards
  others = sorted(p.name for pattern in _OTHERS for p in directory.glob(pattern))
  if (directory / 'adapter_model.safetensors').is_file():
    hint = ('adapter_model.safetensors is an adapter (LoRA), not a whole model: merge it '
            '(PeftModel.merge_and_unload), save the result, and give its folder')
  elif found:
    hint = f'rename {found[0].name} to {WEIGHTS} if it holds the whole model'
  elif others:
    hint = _OTHERS[next(k for k in _OTHERS if fnmatch.fnmatch(others[0], k))].format(others[0])
  else:
    hint = ('download the whole directory, or write it with save_pretrained(DIR, '
            'safe_serialization=True)')
  raise UserError(f'{directory} holds neither {WEIGHTS} nor {INDEX}: {hint}')


def read_tensors(files: Iterable[pathlib.Path]) -> dict[str, np.ndarray]:
  """All tensors of several safetensors files."""
  from safetensors import SafetensorError, safe_open
  from safetensors.numpy import load_file
  tensors: dict[str, np.ndarray] = {}
  for file in files:
    refuse_pointer(file)
    try:
      with safe_open(file, framework='numpy') as opened:
        kinds = {name: opened.get_slice(name).get_dtype() for name in opened.keys()}
      foreign = [name for name, kind in kinds.items() if kind not in _STORED]
      if foreign:
        raise UserError(f'{file}: {_listed(foreign)} stored as {kinds[foreign[0]]}: '
                        f'{_QUANTISED}')
      found = load_file(file)
    except (OSError, SafetensorError, KeyError, TypeError) as e:
      raise UserError(f'{file} cannot be read as safetensors ({e}): it is damaged or a part of a '
                      'download: download it again') from None
    double = sorted(tensors.keys() & found)
    if double:
      raise UserError(f'{file}: tensor {double[0]} is in another file too: {_RELOAD}')
    tensors |= found
  return tensors


def without_wrappers(tensors: Mapping[str, np.ndarray], kind: str, *, where: str
                     ) -> tuple[dict[str, np.ndarray], list[str]]:
  """Tensors by their bare names, and a line on each prefix that was taken off."""
  plain: dict[str, np.ndarray] = {}
  taken: collections.Counter[str] = collections.Counter()
  for name, tensor in tensors.items():
    short = bare_name(name, kind)
    if short != name:
      taken[name.removesuffix(short) if name.endswith(short) else name] += 1
    if short in plain:
      raise UserError(f'{where} holds {short} twice, below different prefixes: save one model '
                      'alone')
    plain[short] = tensor
  lines = [f'{where}: the prefix {prefix} is taken off {count} tensors'
           for prefix, count in taken.most_common(4)]
  return plain, lines


def to_params(
  tensors: Mapping[str, np.ndarray], arch: Architecture, head: str, *, where: str,
  dtype: Any = np.float32,
) -> tuple[Params, list[str]]:
  """Puts published tensors into the places that `names` gives them.

  Args:
    tensors: by published name, with or without the body's prefix.
    arch: the model.
    head: one of `HEADS[arch.kind]`.
    where: the directory, for messages.
    dtype: of the parameters, a NumPy dtype (bfloat16 of ml_dtypes too).

  Returns:
    NumPy parameters, and the names of tensors that were there and are not needed.

  Raises:
    UserError: tensors are missing, of another shape, no floating-point numbers, not finite, not
      known, or copies that differ from what they copy; the line names them.
  """
  if head not in HEADS[arch.kind]:
    raise UserError(f"{where} is {arch.kind}, which has no head '{head}', only "
                    f"{', '.join(HEADS[arch.kind])}: {_KINDS[arch.kind]}")
  plain: dict[str, np.ndarray] = {}
  for name, tensor in tensors.items():
    known = plain_name(name, arch.kind)
    if known in plain:
      raise UserError(f'{where} holds {known} twice, with and without prefix or in two spellings')
    plain[known] = tensor
  copies = {copy: of for copy, of in aliases(arch, head).items() if copy in plain}
  for copy, of in copies.items():
    plain.setdefault(of, plain[copy])
  wanted = entries(arch, head)
  needed = {name: e for e in wanted for names in e.tensors for name in names}
  _check_present(plain, needed, arch, head, where)
  unknown = [n for n in plain if n not in needed and n not in copies
             and not not_needed(n, arch.kind)]
  if unknown:
    raise UserError(f'{where} holds {_listed(unknown)}, which {arch.kind} with this config.json '
                    'does not have: it is another architecture, or another number of layers: '
                    f'{_TOGETHER}')
  for name, entry in needed.items():
    _check_tensor(plain[name], name, entry.shape, where)
  for copy, of in copies.items():
    if plain[copy].shape != plain[of].shape or not np.array_equal(plain[copy], plain[of]):
      raise UserError(f'{where}: {copy} differs from {of}, although config.json ties them: set '
                      'tie_word_embeddings to false if it is meant')
  params: Params = {}
  for entry in wanted:
    layers = [np.concatenate([_turned(plain[name], entry.transposed) for name in names], axis=-1)
              for names in entry.tensors]
    array = np.stack(layers) if entry.stacked else layers[0]
    params.setdefault(entry.group, {})[entry.name] = np.ascontiguousarray(array).astype(dtype)
  return params, sorted(n for n in plain if n not in needed and n not in copies)


def to_tensors(params: Mapping[str, Mapping[str, Any]], arch: Architecture, head: str
               ) -> dict[str, np.ndarray]:
  """The opposite of `to_params`: tensors under published names, with prefix, without copies."""
  tensors = {}
  for entry in entries(arch, head):
    array = np.asarray(params[entry.group][entry.name])
    for names, layer in zip(entry.tensors, array if entry.stacked else array[None], strict=True):
      for name, part in zip(names, np.split(layer, len(names), axis=-1), strict=True):
        turned = np.ascontiguousarray(_turned(part, entry.transposed))
        tensors[full_name(name, arch.kind)] = turned
  return tensors


def _check_present(plain, needed, arch: Architecture, head: str, where: str) -> None:
  """Names what is missing; says so if it is the head."""
  missing = [name for name in needed if name not in plain]
  if not missing:
    return
  packed = [name for name in plain if _PACKED.search(name)]
  if packed:
    raise UserError(f'{where} holds {_listed(packed)}: {_QUANTISED}')
  if all(needed[name].head or needed[name].group == 'pooler' for name in missing):
    raise UserError(f'{where} has no {head} head: {_listed(missing)} missing (weights are never '
                    f'made up): {_HEADLESS[head]}')
  raise UserError(f'{where} lacks {_listed(missing)}: it is another architecture than config.json '
                  f'says ({arch.kind}, {arch.num_layers} layers): {_TOGETHER}')


def _check_tensor(tensor: np.ndarray, name: str, shape: tuple[int, ...], where: str) -> None:
  if tensor.shape != shape:
    raise UserError(f'{where}: {name} has shape {tensor.shape}, config.json needs {shape}: '
                    f'{_TOGETHER}')
  if tensor.dtype.name not in _FLOATS:
    raise UserError(f"{where}: {name} is {tensor.dtype.name}, not one of {', '.join(_FLOATS)}: "
                    f'{_QUANTISED}')
  if not np.isfinite(tensor.astype(np.float32) if tensor.dtype.name == 'bfloat16' else tensor
                     ).all():
    raise UserError(f'{where}: {name} holds values that are not finite: the file is damaged, '
                    'or its training diverged: take another copy')


def _turned(array: np.ndarray, transposed: bool) -> np.ndarray:
  return array.T if transposed else array


def _listed(names: Iterable[str], most: int = 4) -> str:
  names = list(names)
  rest = f' and {len(names) - most} more' if len(names) > most else ''
  return ('tensor ' if len(names) == 1 else 'tensors ') + ', '.join(names[:most]) + rest


# Model directories: `config.json`, safetensors, a tokenizer; all checked before anything runs.

DTYPES = ('float32', 'bfloat16', 'float64')
_DECIDING = ('config.json', 'tokenizer.json', 'vocab.txt', 'tokenizer_config.json',
             'sentence_bert_config.json', 'modules.json')


@dataclasses.dataclass(frozen=True)
class Pretrained:
  """A model that was read.

  Attributes:
    directory: where from.
    config: content of `config.json`.
    arch: what it says.
    head: one of `names.HEADS`.
    params: NumPy arrays; see `names`.
    tokenizer: a `tokenizers.Tokenizer`.
    max_length: most tokens of a text, special ones included.
    ignored: names of tensors that were in the files and are not needed for this head.
    fingerprint: SHA-256 (hex) of all files that decide what the model computes.
  """

  directory: pathlib.Path
  config: dict[str, Any]
  arch: Architecture
  head: str
  params: Params
  tokenizer: Any
  max_length: int
  ignored: tuple[str, ...]
  fingerprint: str

  @property
  def name(self) -> str:
    """Name of the model, by its folder."""
    return folder_name(self.directory)

  @property
  def unused_ids(self) -> tuple[int, ...]:
    """Ids that are no token: the model must never draw them."""
    return unused_ids(self.tokenizer, self.arch.vocab_size)

  def weights_digest(self) -> str:
    """SHA-256 (hex) of the weights in bfloat16: equal for copies and for every dtype of them."""
    import ml_dtypes
    digest = hashlib.sha256()
    for path, array in jax.tree_util.tree_leaves_with_path(self.params):
      digest.update(f'{jax.tree_util.keystr(path)} {array.shape}\n'.encode())
      digest.update(np.ascontiguousarray(array, ml_dtypes.bfloat16).view(np.uint8).data)
    return digest.hexdigest()


def load_pretrained(
  directory: str | os.PathLike, head: str, *, dtype: str = 'float32'
) -> Pretrained:
  """Reads a BERT, ALBERT or GPT-2 from a directory in the published form.

  Args:
    directory: holds `config.json`, `model.safetensors` (or its shards) and `tokenizer.json` (for
      BERT also `vocab.txt` with `tokenizer_config.json`); see `read_folder`.
    head: 'encoder' | 'pooled' | 'mlm' | 'classifier' (BERT, ALBERT), 'lm' (GPT-2).
    dtype: of parameters and computation; 'float64' needs JAX's 64-bit mode.

  Raises:
    UserError: anything that is missing, unknown, superfluous or of another size; one line names
      directory and tensors.
  """
  if dtype not in DTYPES:
    raise UserError(f"dtype '{dtype}' is not one of {', '.join(DTYPES)}")
  directory, config, lines = read_folder(directory)
  arch = read_architecture(config, where=str(directory / 'config.json'))
  files = weight_files(directory)
  # ml_dtypes registers bfloat16 with NumPy; JAX needs it, so it is there.
  import ml_dtypes
  numpy_dtype = ml_dtypes.bfloat16 if dtype == 'bfloat16' else np.dtype(dtype)
  tensors, prefixes = without_wrappers(read_tensors(files), arch.kind, where=str(directory))
  params, ignored = to_params(tensors, arch, head, where=str(directory), dtype=numpy_dtype)
  tokenizer = load_tokenizer(directory, kind=arch.kind, vocab_size=arch.vocab_size)
  check_tokenizer(tokenizer, directory, kind=arch.kind)
  tokenizer, differences = within_model(tokenizer, arch.vocab_size, str(directory))
  if processes.is_first():
    for line in (*lines, *prefixes, *differences):
      write_line(line, sys.stderr)
  return Pretrained(
    directory=directory, config=config, arch=arch, head=head, params=params, tokenizer=tokenizer,
    max_length=length_limit(directory, arch.max_positions), ignored=tuple(ignored),
    fingerprint=_fingerprint(directory, files, head, dtype))


def read_folder(directory: str | os.PathLike) -> tuple[pathlib.Path, dict[str, Any], list[str]]:
  """Finds the model in a folder that people have, and reads its `config.json`.

  Args:
    directory: of a model, or a folder of the Hub's cache that holds one snapshot of one model.

  Returns:
    The folder of the model, its config with `model_type`, and lines on what was recognised.

  Raises:
    UserError: there is no such folder, or it holds something else: the line names what it is (an
      adapter, several snapshots, other formats, quantised weights) and what to do.
  """
  given = pathlib.Path(directory)
  if not given.is_dir():
    what = 'a file' if given.exists() else 'no directory'
    raise UserError(f'{given} is {what}: give the folder of config.json and model.safetensors '
                    "(a model of the Hub is downloaded first: hf download NAME --local-dir DIR)")
  found, lines = find_snapshot(given), []
  if found != given:
    lines.append(f'{given} is a folder of a cache: its snapshot {found} is read')
  for file in sorted(found.iterdir()):
    if file.suffix in ('.json', '.txt') and file.is_file():
      refuse_pointer(file)
  path = found / 'config.json'
  if not path.is_file():
    raise UserError(f'{path}: No such file or directory: {_what_it_is(found)}')
  config = read_json(path)
  kind, recognised_by = recognise(config, where=str(path))
  if recognised_by:
    lines.append(f'{path} has no model_type: it is read as {kind}, by {recognised_by}')
  return found, {**config, 'model_type': kind}, lines


def folder_name(directory: str | os.PathLike) -> str:
  """Name of a model by its folder; in a cache of the Hub by that of the model, not of the snapshot.

  >>> folder_name('/x/my-model'), folder_name('/x/models--org--name/snapshots/0a1b')
  ('my-model', 'name')
  """
  path = pathlib.Path(os.path.abspath(directory))
  cached = [part for part in path.parts[-3:] if part.startswith('models--')]
  return cached[0].rpartition('--')[2] if cached else path.resolve().name


def find_snapshot(folder: pathlib.Path) -> pathlib.Path:
  """The one snapshot in a folder of the Hub's cache; any other folder itself."""
  if (folder / 'config.json').exists():
    return folder
  models = [p for place in (folder, folder / 'hub') if place.is_dir()
            for p in sorted(place.glob('models--*')) if p.is_dir()]
  if len(models) == 1:
    return find_snapshot(models[0])
  if models:
    raise UserError(f'{folder} is a cache of {len(models)} models: name the folder of one, like '
                    f'{models[0]}')
  place = folder if folder.name == 'snapshots' else folder / 'snapshots'
  if not place.is_dir():
    return folder
  main = place.parent / 'refs' / 'main'
  if main.is_file():
    named = place / main.read_text(encoding='utf-8', errors='replace').strip()
    if named.parent == place and (named / 'config.json').is_file():
      return named
  whole = sorted(p for p in place.iterdir() if (p / 'config.json').is_file())
  if len(whole) != 1:
    have = ('holds no snapshot with a config.json: download the model again, the whole of it'
            if not whole else f'holds {len(whole)} snapshots: name the folder of one, like '
            f'{whole[0]}')
    raise UserError(f'{folder} is a folder of a cache of models and {have}')
  return whole[0]


def _what_it_is(folder: pathlib.Path) -> str:
  """What a folder without `config.json` holds, and what to do."""
  adapter = folder / 'adapter_config.json'
  if adapter.is_file():
    content = read_json(adapter)
    base = content.get('base_model_name_or_path') or 'its base model'
    return (f"{folder} is an adapter ({content.get('peft_type', 'PEFT')}) of {base}, not a whole "
            f'model: merge it (PeftModel.from_pretrained(base, {str(folder)!r})'
            '.merge_and_unload().save_pretrained(DIR), and save the tokenizer there), then give '
            'DIR')
  gguf = sorted(p.name for p in folder.glob('*.gguf'))
  if gguf:
    return (f'{gguf[0]} is in the format GGUF, which is not read: take the folder of the same '
            'model with config.json and safetensors')
  inner = sorted(p.parent for p in folder.glob('*/config.json'))
  if inner:
    return f'{inner[0]} holds one: give the folder of the model itself'
  return ('a model directory holds config.json, model.safetensors and its tokenizer: download the '
          'whole of it, or write it with save_pretrained of model and tokenizer')


def _fingerprint(directory: pathlib.Path, files: list[pathlib.Path], head: str, dtype: str) -> str:
  """Digest of the files that decide the values, by name."""
  parts = ['pretrained 1', head, dtype]
  for path in [directory / name for name in _DECIDING] + files:
    if path.is_file():
      parts.append([path.name, file_sha256(path)])
  return hashlib.sha256(json.dumps(parts).encode('utf-8')).hexdigest()


# The tokenizer of a model directory in the place of a vocabulary, for sampling.

class TokenizerVocabulary:
  """Text to ids and back with a `tokenizers.Tokenizer`.

  What `fairjax.generate` needs of a vocabulary.

  Attributes:
    size: number of ids.
    eos_id: the id that ends a text.
    start_ids: what a text to be continued begins with: nothing, as users of GPT-2 prompt it, or the
      end of the text before.
    fingerprint: SHA-256 (hex) of the tokenizer.
  """

  def __init__(self, model: Pretrained, *, start: bool = False):
    """Wraps the tokenizer of a language model.

    Args:
      model: with `eos_token_id` in its config.
      start: begin every text with the end-of-text id.

    Raises:
      UserError: the config names no end-of-text id, or one of an ordinary token.
    """
    eos = model.config.get('eos_token_id')
    self.size = model.arch.vocab_size
    if not isinstance(eos, int) or isinstance(eos, bool) or not 0 <= eos < self.size:
      raise UserError(f"{model.directory / 'config.json'}: eos_token_id is {eos!r}; sampling needs "
                      f'the id that ends a text, in [0, {self.size})')
    if not ends_text(model.tokenizer, eos, model.directory):
      raise UserError(f"{model.directory / 'config.json'}: eos_token_id is {eos}, in the tokenizer "
                      f'the ordinary token {model.tokenizer.id_to_token(eos)!r}, which would cut '
                      'texts: set it to the id of the end of a text, such as <|endoftext|>')
    self._tokenizer = model.tokenizer
    self.eos_id = eos
    self.start_ids = (eos,) if start else ()
    self.fingerprint = hashlib.sha256(
      self._tokenizer.to_str().encode('utf-8') + str((eos, start)).encode()).hexdigest()

  def encode(self, text: str) -> list[int]:
    """Ids of `text`, without special ones."""
    return self._tokenizer.encode(text, add_special_tokens=False).ids

  def decode(self, ids: Sequence[Any] | np.ndarray) -> str:
    """Text of `ids`; special ids add nothing, bytes that are no UTF-8 become U+FFFD."""
    return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

  @functools.cached_property
  def surfaces(self) -> list[bytes]:
    """UTF-8 bytes of each id by itself."""
    return [self.decode([i]).encode('utf-8') for i in range(self.size)]
