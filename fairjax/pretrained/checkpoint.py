"""Published model folders: `config.json`, safetensors, tokenizer; nothing is guessed.

A kind of model is an entry of `FAMILIES`: the fields of its config and the names of its tensors.

Letters: V vocabulary, E embedding width, D model width, N heads, F feed-forward width, P positions,
Y token types, L layers, C classes.
"""

import collections
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from fairjax import processes
from fairjax.errors import UserError, unknown_name
from fairjax.files import file_sha256, write_json
from fairjax.inputs import refuse_pointer
from fairjax.model.decoder import DecoderConfig
from fairjax.pretrained import peft_files
from fairjax.pretrained.decoder_files import (
  DECODERS,
  IMAGES,
  is_gpt2,
  read_decoder_config,
  tensor_parts,
  tensor_shapes,
  text_config,
  to_decoder_params,
  to_decoder_tensor,
)
from fairjax.pretrained.gguf_files import GGUF, open_gguf
from fairjax.pretrained.hub import BESIDE_WEIGHTS, model_path
from fairjax.pretrained.peft_files import Adapter, read_adapter
from fairjax.pretrained.tensor_files import (
  INDEX,
  QUANTISED,
  SHARD_BYTES,
  Stored,
  listed,
  open_tensors,
  shard_names,
  weight_files,
  write_index,
  write_tensors,
)
from fairjax.pretrained.tokens import (
  check_tokenizer,
  length_limit,
  load_tokenizer,
  within_model,
)
from fairjax.progress import write_line
from fairjax.vocabulary import TokenizerVocabulary, has_chat, parse_tokenizer, read_json

_T = TypeVar('_T')
ACTIVATIONS = ('gelu', 'gelu_new', 'gelu_pytorch_tanh', 'relu')


@dataclasses.dataclass(frozen=True)
class Architecture:
  """Sizes and switches of a model; hashable, so that compiled functions can depend on it."""

  kind: str  # 'bert' or 'albert'
  vocab_size: int
  embedding_dim: int
  model_dim: int
  num_layers: int
  num_heads: int
  ff_dim: int
  max_positions: int
  token_types: int
  groups: int  # different groups of layers (ALBERT shares them); L where nothing is shared
  layers_per_group: int  # that a group applies each time
  norm_eps: float
  activation: str
  tied: bool  # the output table is the embedding table
  labels: tuple[str, ...]  # names of the classes of a sequence classifier, by number
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
    return tuple(self.layers_per_group * (depth * self.groups // self.num_layers) + inner
                 for depth in range(self.num_layers) for inner in range(self.layers_per_group))


class Module(NamedTuple):
  """A module of a family, as it is published and where its arrays are among our parameters."""

  place: str  # group and begin of our names; arrays in the group `layers` are stacked
  published: str  # without the family's prefix; {layer}, {group}, {inner} and {part} are filled in
  form: str  # of `_FORMS`
  sizes: str  # letters of its widths, input first
  heads: tuple[str, ...] = ()  # models with these heads have it; (): all
  parts: tuple[str, ...] = ('',)  # modules that are side by side on the last axis of ours
  untied: bool = False  # it is there only where the output table is not the embedding table


_FORMS = {  # form -> of each array: its name in files, its name here, whether files have [out, in]
  'table': (('.weight', '', False),),
  'bias': (('.bias', '', False),),
  'norm': (('.weight', 'scale', False), ('.bias', 'bias', False)),
  'linear': (('.weight', 'kernel', True), ('.bias', 'bias', False)),
}


class Family(NamedTuple):
  """A kind of model."""

  has: set[str]  # fields by which a config without a kind is recognised
  lacks: set[str]  # fields of other kinds that share these
  # Attribute of `Architecture` -> its field, and what a missing field means: None (it must be
  # there), a value, or a function of the attributes before it.
  fields: dict[str, tuple[str, Any]]
  prefix: str  # of the names of the body in files that also hold a head
  modules: tuple[Module, ...]


# The same of BERT and ALBERT.
_FIELDS = {
  'vocab_size': ('vocab_size', None), 'model_dim': ('hidden_size', None),
  'num_layers': ('num_hidden_layers', None), 'num_heads': ('num_attention_heads', None),
  'ff_dim': ('intermediate_size', None), 'max_positions': ('max_position_embeddings', None),
  'token_types': ('type_vocab_size', 2), 'norm_eps': ('layer_norm_eps', 1e-12),
  'tied': ('tie_word_embeddings', True), 'pad_id': ('pad_token_id', 0)}
# Other values of these fields would compute something else.
_MUST = {'position_embedding_type': 'absolute', 'is_decoder': False, 'add_cross_attention': False}
# What can be computed on top; 'pooled' is the encoder with its pooler.
_HEADS = ('encoder', 'pooled', 'mlm', 'classifier')
_EMBEDDINGS = (
  Module('embeddings.word', 'embeddings.word_embeddings', 'table', 'VE'),
  Module('embeddings.position', 'embeddings.position_embeddings', 'table', 'PE'),
  Module('embeddings.token_type', 'embeddings.token_type_embeddings', 'table', 'YE'),
  Module('embeddings.norm_', 'embeddings.LayerNorm', 'norm', 'E'))
_QKV = ('query', 'key', 'value')
_POOLED = ('pooled', 'classifier')
_LAYER = 'encoder.layer.{layer}'
_SHARED = 'encoder.albert_layer_groups.{group}.albert_layers.{inner}'


def _heads(predictions: str, dense: str) -> tuple[Module, ...]:
  """The two heads, by the published names of that of masked words and of its hidden layer."""
  return (
    Module('classifier.', 'classifier', 'linear', 'DC', ('classifier',)),
    Module('mlm.', f'{dense}.dense', 'linear', 'DE', ('mlm',)),
    Module('mlm.norm_', f'{dense}.LayerNorm', 'norm', 'E', ('mlm',)),
    Module('mlm.output_bias', predictions, 'bias', 'V', ('mlm',)),
    Module('output.table', f'{predictions}.decoder', 'table', 'VE', ('mlm',), untied=True))


FAMILIES = {
  'albert': Family(
    has={'hidden_size', 'embedding_size', 'inner_group_num', 'intermediate_size'},
    lacks=set(),
    fields=_FIELDS | {
      'embedding_dim': ('embedding_size', 128), 'groups': ('num_hidden_groups', 1),
      'layers_per_group': ('inner_group_num', 1), 'activation': ('hidden_act', 'gelu_new'),
      'hidden_dropout': ('hidden_dropout_prob', 0.0),
      'attention_dropout': ('attention_probs_dropout_prob', 0.0),
      'classifier_dropout': ('classifier_dropout_prob', 0.1)},
    prefix='albert.',
    modules=(
      *_EMBEDDINGS,
      Module('projection.', 'encoder.embedding_hidden_mapping_in', 'linear', 'ED'),
      Module('layers.qkv_', f'{_SHARED}.attention.{{part}}', 'linear', 'DD', parts=_QKV),
      Module('layers.out_', f'{_SHARED}.attention.dense', 'linear', 'DD'),
      Module('layers.ff_in_', f'{_SHARED}.ffn', 'linear', 'DF'),
      Module('layers.ff_out_', f'{_SHARED}.ffn_output', 'linear', 'FD'),
      Module('layers.attention_norm_', f'{_SHARED}.attention.LayerNorm', 'norm', 'D'),
      Module('layers.ff_norm_', f'{_SHARED}.full_layer_layer_norm', 'norm', 'D'),
      Module('pooler.', 'pooler', 'linear', 'DD', _POOLED),
      *_heads('predictions', 'predictions'))),
  'bert': Family(
    has={'hidden_size', 'num_hidden_layers', 'num_attention_heads', 'intermediate_size',
         'type_vocab_size'},
    lacks={'embedding_size', 'num_hidden_groups'},
    fields=_FIELDS | {
      'embedding_dim': ('hidden_size', None), 'activation': ('hidden_act', 'gelu'),
      'hidden_dropout': ('hidden_dropout_prob', 0.1),
      'attention_dropout': ('attention_probs_dropout_prob', 0.1),
      'classifier_dropout': ('classifier_dropout', lambda found: found['hidden_dropout'])},
    prefix='bert.',
    modules=(
      *_EMBEDDINGS,
      Module('layers.qkv_', f'{_LAYER}.attention.self.{{part}}', 'linear', 'DD', parts=_QKV),
      Module('layers.out_', f'{_LAYER}.attention.output.dense', 'linear', 'DD'),
      Module('layers.ff_in_', f'{_LAYER}.intermediate.dense', 'linear', 'DF'),
      Module('layers.ff_out_', f'{_LAYER}.output.dense', 'linear', 'FD'),
      Module('layers.attention_norm_', f'{_LAYER}.attention.output.LayerNorm', 'norm', 'D'),
      Module('layers.ff_norm_', f'{_LAYER}.output.LayerNorm', 'norm', 'D'),
      Module('pooler.', 'pooler.dense', 'linear', 'DD', _POOLED),
      *_heads('cls.predictions', 'cls.predictions.transform'))),
}
_WORDS = 'embeddings.word_embeddings.weight'
_COPIES = {  # of the head 'mlm': tensors that must equal another one if they are there
  f'{head}.decoder.{name}': of for head in ('predictions', 'cls.predictions')
  for name, of in (('bias', f'{head}.bias'), ('weight', _WORDS))}
# Tensors that files hold without being needed.
_SPARE = (r'embeddings\.(position|token_type)_ids|(cls\.)?predictions\..*|'
          r'(pooler(\.dense)?|cls\.seq_relationship|(sop_classifier\.)?classifier)\.(weight|bias)')
_KINDS = (*FAMILIES, *DECODERS)
_READS = f"fairjax reads the kinds {', '.join(_KINDS)}, gemma3 here"
# Old configs name no kind; the fields of Llama, Qwen, ... are the same.
_BY_FIELDS = {kind: (family.has, family.lacks) for kind, family in FAMILIES.items()} | {
  'gpt2': ({'n_embd', 'n_layer', 'n_head', 'n_positions'},
           {'rotary_dim', 'multi_query', 'afn', 'attention_layers'})}  # GPT-J, StarCoder, ...


def recognise(config: Mapping[str, Any], *, where: str) -> str:
  """The kind of a model by its config."""
  quantised = config.get('quantization_config')
  if quantised:
    method = quantised.get('quant_method') if isinstance(quantised, Mapping) else None
    raise UserError(f'{where} has a quantization_config ({method}): {QUANTISED}')
  classes = config.get('architectures')
  classes = classes if isinstance(classes, list) else []  # RoBERTa has BERT's fields and tensors
  kind = config.get('model_type') or next(
    (kind for kind, (has, lacks) in _BY_FIELDS.items()
     if has <= config.keys() and not lacks & config.keys()
     and all(str(name).lower().startswith(kind) for name in classes)), None)
  if kind is None and 'export' in config:
    raise UserError(f'{where} is of a Transformer-XL that fairjax exported, which a run samples: '
                    'fairjax models import --from=DIR')
  if kind is None:
    raise UserError(f'{where} has no model_type, and not the fields and architectures of any kind '
                    f'that is known: {_READS}: add "model_type", or take the config.json of the '
                    'model')
  if kind not in _KINDS:
    raise UserError(f"{where}: unknown model_type '{kind}': {_READS}: take a model of one of them")
  return kind


def read_architecture(config: Mapping[str, Any], *, where: str) -> Architecture:
  """Reads the `config.json` of a BERT or ALBERT; a setting that is not computed is refused."""
  kind = recognise(config, where=where)
  family = FAMILIES[kind]
  for name, wanted in _MUST.items():
    if config.get(name) not in (None, wanted):
      raise UserError(f'{where}: {name}={config[name]!r} is not supported, only {wanted!r}')
  found: dict[str, Any] = {}
  for attribute, (name, default) in family.fields.items():
    value = config.get(name)
    if value is None:
      value = default(found) if callable(default) else default
    found[attribute] = _checked(attribute, value, f'{where}: {name}')
  found = {'groups': found['num_layers'], 'layers_per_group': 1} | found
  if found['activation'] not in ACTIVATIONS:
    raise unknown_name('activation', str(found['activation']), ACTIVATIONS, where=where)
  if found['model_dim'] % found['num_heads']:
    raise UserError(f"{where}: width {found['model_dim']} is not divisible by "
                    f"{found['num_heads']} heads")
  if found['groups'] > found['num_layers']:
    raise UserError(f"{where}: num_hidden_groups={found['groups']} is above "
                    f"num_hidden_layers={found['num_layers']}")
  if found['pad_id'] >= found['vocab_size']:  # of an added token; no place of padding is read
    found['pad_id'] = 0
  return Architecture(kind=kind, labels=_labels(config, where), **found)


def _checked(attribute: str, value: Any, where: str) -> Any:
  """The value of a field, of the type that the attribute of `Architecture` has."""
  if attribute in ('activation', 'tied'):
    return value if attribute == 'activation' else bool(value)
  number = isinstance(value, int | float) and not isinstance(value, bool)
  if attribute == 'norm_eps' or attribute.endswith('_dropout'):
    if not number or not 0 <= value < 1:
      raise UserError(f'{where} is {value!r}, a number in [0, 1) is needed')
    return float(value)
  if not number or not isinstance(value, int) or value < (attribute != 'pad_id'):
    least = 'whole' if attribute == 'pad_id' else 'positive whole'
    raise UserError(f'{where} is {value!r}, a {least} number is needed')
  return value


def _labels(config: Mapping[str, Any], where: str) -> tuple[str, ...]:
  """Names of the classes; a config without any has two (it leaves out that default)."""
  named = config.get('id2label')
  if named is None:
    count = config.get('num_labels', config.get('_num_labels', 2))
    return tuple(f'LABEL_{i}' for i in range(_checked('pad_id', count, f'{where}: num_labels')))
  if not isinstance(named, dict) or sorted(named) != sorted(map(str, range(len(named)))):
    raise UserError(f'{where}: id2label must name the classes "0" to "C-1"')
  labels = tuple(str(named[str(i)]) for i in range(len(named)))
  if len(set(labels)) != len(labels):
    raise UserError(f'{where}: id2label gives several classes the same name')
  return labels


def safe_name(text: str) -> str:
  """Keeps letters, digits, `.`, `_` and `-` of a name, for names of files."""
  return re.sub(r'[^\w.-]+', '-', text, flags=re.ASCII).strip('-.') or 'model'


# Parameters of encoders are a dictionary of groups of arrays; those of all layers (of ALBERT: the
# different ones) are stacked on axis 0, and every kernel is `[in, out]`.

_HEAD_NAMES = ('cls.', 'predictions.', 'classifier.', 'sop_classifier.')


class Entry(NamedTuple):
  """One array of ours."""

  group: str
  name: str
  tensors: tuple[tuple[str, ...], ...]  # of each stacked layer: those side by side on the last axis
  shape: tuple[int, ...]  # of one such tensor in the file
  transposed: bool  # the file has `[out, in]`
  stacked: bool  # axis 0 counts layers
  head: bool  # belongs to a head, not to the body


def entries(arch: Architecture, head: str) -> list[Entry]:
  """Every array that a model with this head needs; names without the body's prefix."""
  sizes = {'V': arch.vocab_size, 'E': arch.embedding_dim, 'D': arch.model_dim,
           'F': arch.ff_dim, 'P': arch.max_positions, 'Y': arch.token_types,
           'C': len(arch.labels)}
  found = []
  for module in FAMILIES[arch.kind].modules:
    if module.heads and head not in module.heads or module.untied and arch.tied:
      continue
    stacked = module.place.startswith('layers.')
    bases = [[module.published.format(
      layer=i, group=i // arch.layers_per_group, inner=i % arch.layers_per_group, part=part)
      for part in module.parts]
      for i in range(arch.groups * arch.layers_per_group if stacked else 1)]
    widths = tuple(sizes[letter] for letter in module.sizes)
    for theirs, ours, turned in _FORMS[module.form]:
      group, _, name = f'{module.place}{ours}'.partition('.')
      shape = widths[-1:] if ours == 'bias' else widths[::-1] if turned else widths
      found.append(Entry(
        group, name, tuple(tuple(base + theirs for base in parts) for parts in bases), shape,
        turned, stacked, bool(module.heads)))
  return found


_WRAPPERS = ('_orig_mod', '_fsdp_wrapped_module', '_checkpoint_wrapped_module', '_forward_module')
_BEFORE = ('module', 'model', 'base_model', 'auto_model', 'transformer', 'language_model',
           'gpt_neox', *(family.prefix.removesuffix('.') for family in FAMILIES.values()))


def _plain_names(tensors: Mapping[str, _T], prefix: str, where: str
                 ) -> tuple[dict[str, _T], list[str]]:
  """Tensors without the prefixes of body and wrappers, and lines on those of wrappers."""
  plain: dict[str, _T] = {}
  taken: collections.Counter[str] = collections.Counter()
  for name, tensor in tensors.items():
    before: list[str] = []
    parts: list[str] = []
    for part in name.split('.'):
      wraps = part in _WRAPPERS or part in _BEFORE and not parts
      (before if wraps else parts).append(f'{part}.')
    if prefix in before:
      before.remove(prefix)
    if before:
      taken[''.join(before)] += 1
    bare = ''.join(parts).removesuffix('.')
    for old, new in (('gamma', 'weight'), ('beta', 'bias')):  # of LayerNorm in old files
      bare = re.sub(rf'(LayerNorm|layer_norm)\.{old}$', rf'\1.{new}', bare)
    if prefix == 'gpt_neox.' and bare == 'lm_head.weight':  # of transformers 5 in memory
      bare = 'embed_out.weight'
    if bare in plain:
      raise UserError(f'{where} holds {bare} twice, below different prefixes or in two spellings: '
                      'save one model alone')
    plain[bare] = tensor
  return plain, [f'{where}: the prefix {taken_off} is taken off {count} tensors'
                 for taken_off, count in taken.most_common(4)]


_PACKED = re.compile(r'[._](qweight|qzeros|absmax|quant_map|weight_packed|weight_scale|SCB)\b')
_FLOATS = ('float16', 'bfloat16', 'float32', 'float64')
Params = dict[str, dict[str, Any]]
_TOGETHER = 'take config.json and weights of one and the same model'
_HEADLESS = {
  'classifier': 'fairjax models classifier --init=DIR makes a classifier of it',
  'mlm': 'give a checkpoint that was saved with it, as BertForMaskedLM or AlbertForMaskedLM does, '
         'or train one from scratch with fairjax models masked-lm without --init',
  'pooled': 'save it again with its pooler (add_pooling_layer=True)',
  'lm': 'save it as AutoModelForCausalLM does, or set tie_word_embeddings to true in config.json '
        'if the output is the table of words',
}


def to_params(
  tensors: Mapping[str, Stored], arch: Architecture, head: str, *, where: str,
  dtype: Any = np.float32,
) -> tuple[Params, list[str], list[str]]:
  """Published tensors in their places, the names of those that are not needed, and lines to say."""
  if head not in _HEADS:
    raise UserError(f"{where} is {arch.kind}, which has no head '{head}', only "
                    f"{', '.join(_HEADS)}: 'lm' needs a decoder; a model with its mlm head serves "
                    'correlations and masked-lm')
  wanted = entries(arch, head)
  plain, ignored, lines = _checked_tensors(
    tensors, {name: e.shape for e in wanted for names in e.tensors for name in names},
    {copy: of for copy, of in _COPIES.items() if head == 'mlm' and (arch.tied or of != _WORDS)},
    _Expected(arch.kind, arch.num_layers, FAMILIES[arch.kind].prefix, _SPARE, head, tuple(
      name for e in wanted if e.head for names in e.tensors for name in names)), where)
  params: Params = {}
  for entry in wanted:
    layers = [np.concatenate([plain[name].whole().T if entry.transposed else plain[name].whole()
                              for name in names], axis=-1) for names in entry.tensors]
    array = np.stack(layers) if entry.stacked else layers[0]
    params.setdefault(entry.group, {})[entry.name] = np.ascontiguousarray(array).astype(dtype)
  return params, ignored, lines


def _decoder_params(tensors, arch: DecoderConfig, kind: str, where: str, dtype, shardings):
  """`to_params` of a decoder; with shardings JAX's arrays, of which each process reads its part."""
  prefix, copies = _decoder_prefix(kind), _decoder_copies(arch, kind)
  shapes = tensor_shapes(arch)
  plain, ignored, lines = _checked_tensors(
    tensors, {name.removeprefix(prefix): shape for name, shape in shapes.items()}, copies,
    _Expected(kind, arch.num_layers, prefix,
              rf'(h|layers)\.\d+\.att(n|ention)\.(bias|masked_bias)|.*rotary_emb\.inv_freq|{IMAGES}',
              'lm', () if arch.tied else (_decoder_tables(kind)[1],)), where)
  if images := sum(re.fullmatch(IMAGES, name) is not None for name in ignored):
    lines.append(f'{where}: its {images} tensors for images are left out, its text decoder is read')
  return to_decoder_params({name: plain[name.removeprefix(prefix)] for name in shapes}, arch,
                           dtype=dtype, shardings=shardings), ignored, lines


def _decoder_prefix(kind: str) -> str:
  return {'gpt2': 'transformer.', 'gpt_neox': 'gpt_neox.'}.get(kind, 'model.')


def _decoder_tables(kind: str) -> tuple[str, str]:
  """Plain names of the tables of words that a decoder reads and writes."""
  return {'gpt2': ('wte.weight', 'lm_head.weight'), 'gpt_neox': (
    'embed_in.weight', 'embed_out.weight')}.get(kind, ('embed_tokens.weight', 'lm_head.weight'))


def _decoder_copies(arch: DecoderConfig, kind: str) -> dict[str, str]:
  """Plain names of tensors that files hold although they equal another one."""
  table, output = _decoder_tables(kind)
  return {output: table} if arch.tied else {}


class _Expected(NamedTuple):
  """What the files of a kind hold besides the tensors that are needed, and names for messages."""

  kind: str
  layers: int
  prefix: str  # of the body
  spare: str  # pattern of tensors that are not needed
  head: str
  of_head: tuple[str, ...]


def _checked_tensors(
  tensors: Mapping[str, Stored], needed: Mapping[str, tuple[int, ...]], copies: Mapping[str, str],
  expected: _Expected, where: str,
) -> tuple[dict[str, Stored], list[str], list[str]]:
  """Tensors by plain name, the names of those that are not needed, and lines to say."""
  plain, lines = _plain_names(tensors, expected.prefix, where)
  copies = {copy: of for copy, of in copies.items() if copy in plain}
  for copy, of in copies.items():
    plain.setdefault(of, plain[copy])
  _check_present(plain, needed, expected, where)
  spare = [n for n in plain if n not in needed and n not in copies]
  unknown = [n for n in spare if not re.fullmatch(expected.spare, n)]
  if unknown:
    raise UserError(f'{where} holds {listed(unknown)}, which {expected.kind} with this config.json '
                    'does not have: it is another architecture, or another number of layers: '
                    f'{_TOGETHER}')
  _check_forms(plain, needed, where)
  for name in needed:
    copy = next((c for c, of in copies.items() if of == name and plain[c] != plain[of]), None)
    plain[name] = _checked_values(plain[name], name, copy, plain.get(copy), where)
  return plain, sorted(spare), lines


def to_tensors(params: Mapping[str, Mapping[str, Any]], arch: Architecture, head: str
               ) -> dict[str, np.ndarray]:
  """The opposite of `to_params`: tensors under published names, with prefix, without copies."""
  tensors = {}
  for entry in entries(arch, head):
    array = np.asarray(params[entry.group][entry.name])
    for names, layer in zip(entry.tensors, array if entry.stacked else array[None], strict=True):
      for name, part in zip(names, np.split(layer, len(names), axis=-1), strict=True):
        full = name if name.startswith(_HEAD_NAMES) else FAMILIES[arch.kind].prefix + name
        tensors[full] = np.ascontiguousarray(part.T if entry.transposed else part)
  return tensors


def _check_present(plain, needed, expected: _Expected, where: str) -> None:
  """Names what is missing; says so if it is the head."""
  missing = [name for name in needed if name not in plain]
  if not missing:
    return
  packed = [name for name in plain if _PACKED.search(name)]
  if packed:
    raise UserError(f'{where} holds {listed(packed)}: {QUANTISED}')
  if set(missing) <= set(expected.of_head):
    raise UserError(f'{where} has no {expected.head} head: {listed(missing)} missing (weights are '
                    f'never made up): {_HEADLESS[expected.head]}')
  raise UserError(f'{where} lacks {listed(missing)}: it is another architecture than config.json '
                  f'says ({expected.kind}, {expected.layers} layers): {_TOGETHER}')


def _check_forms(plain: Mapping[str, Stored], needed: Mapping[str, tuple[int, ...]], where: str
                 ) -> None:
  other = [f'{name} has shape {plain[name].shape}, config.json needs {shape}'
           for name, shape in sorted(needed.items()) if plain[name].shape != shape]
  if other:
    more = f', and {len(other) - 4} more' if len(other) > 4 else ''
    raise UserError(f"{where}: {'; '.join(other[:4])}{more}: {_TOGETHER}")
  for name in needed:
    if plain[name].dtype not in _FLOATS:
      raise UserError(f"{where}: {name} is {plain[name].dtype}, not one of {', '.join(_FLOATS)}: "
                      f'{QUANTISED}')


def _checked_values(tensor: Stored, name: str, copy: str | None, other: Stored | None, where: str
                    ) -> Stored:
  """The tensor; what is read of it must be finite, and equal to its copy."""
  def read(index):
    values = tensor.read(index)
    if not np.isfinite(values.astype(np.float32) if tensor.dtype == 'bfloat16' else values).all():
      raise UserError(f'{where}: {name} holds values that are not finite: the file is damaged, '
                      'or its training diverged: take another copy')
    if other is not None and (
        other.shape != tensor.shape or not np.array_equal(values, other.read(index))):
      raise UserError(f'{where}: {copy} differs from {name}, although config.json ties them: set '
                      'tie_word_embeddings to false if it is meant')
    return values

  return tensor._replace(read=read)


# Model directories: `config.json`, safetensors, a tokenizer; all checked before anything runs.

GGUF_SUFFIX = '.gguf'
_NOT_COPIED = ('*.index.json', 'adapter_*')
DTYPES = ('float32', 'bfloat16', 'float64')  # NumPy knows bfloat16 since JAX is imported
_DECIDING = ('config.json', 'tokenizer.json', 'vocab.txt', 'tokenizer_config.json',
             'sentence_bert_config.json', 'modules.json')


@dataclasses.dataclass(frozen=True)
class Pretrained:
  """A model that was read."""

  directory: pathlib.Path  # where from
  config: dict[str, Any]  # content of `config.json`
  arch: Architecture | DecoderConfig
  head: str  # what is computed on top, see `Family`
  # NumPy arrays in groups; see `FAMILIES`, and for decoders `decoder.layer_parameters`
  params: Params
  tokenizer: Any  # a `tokenizers.Tokenizer`
  max_length: int  # most tokens of a text, special ones included
  ignored: tuple[str, ...]  # tensors in the files that are not needed for this head
  stored: tuple[str, ...]  # types of the tensors in the files
  fingerprint: str  # SHA-256 (hex) of all files that decide what the model computes
  files: 'ModelFiles'  # where it was found

  @property
  def architecture(self) -> Architecture:
    """`arch` of a BERT, ALBERT or sentence encoder."""
    assert isinstance(self.arch, Architecture)
    return self.arch

  @property
  def name(self) -> str:
    """Name of the model, by its folder."""
    adapter = self.files.adapter
    return folder_name(adapter.directory if adapter else self.directory)

  def weights_digest(self) -> str:
    """SHA-256 (hex) of the weights in bfloat16: equal for copies and for every dtype of them."""
    return _weights_digest((jax.tree_util.keystr(path), array) for path, array in
                           jax.tree_util.tree_leaves_with_path(self.params))


def _weights_digest(arrays: Iterable[tuple[str, np.ndarray]]) -> str:
  """SHA-256 (hex) of names, shapes and values in bfloat16."""
  digest = hashlib.sha256()
  for name, array in arrays:
    digest.update(f'{name} {array.shape}\n'.encode())
    digest.update(np.ascontiguousarray(array, 'bfloat16').view(np.uint8).data)
  return digest.hexdigest()


def load_pretrained(
  directory: str | os.PathLike, head: str, *, dtype: str = 'float32', shardings: Any = None,
) -> Pretrained:
  """Reads a BERT, ALBERT or decoder from a directory in the published form.

  Args:
    directory: see `open_model`.
    head: 'encoder' | 'pooled' | 'mlm' | 'classifier' (BERT, ALBERT), 'lm' (`DECODERS`).
    dtype: of parameters and computation; 'float64' needs JAX's 64-bit mode.
    shardings: of a decoder's parameters, one for all or a tree like theirs: they are then JAX's
      arrays, and each process reads its own parts of the files; None: NumPy arrays.

  Raises:
    UserError: anything that is missing, unknown, superfluous or of another size.
  """
  if dtype not in DTYPES:
    raise UserError(f"dtype '{dtype}' is not one of {', '.join(DTYPES)}")
  files = open_model(directory)
  directory, config, quantised = files.directory, files.config, files.gguf
  kind = config['model_type']
  if kind in DECODERS:
    if head != 'lm':
      raise UserError(f"{directory} is {kind}, which has no head '{head}', only lm: it writes "
                      'texts (sample --pretrained=DIR); scorers, encoders and masks need a BERT or '
                      'ALBERT')
    decoder = dataclasses.replace(files.decoder, dtype=dtype)
    arch: DecoderConfig | Architecture = decoder
    params, ignored, prefixes = _decoder_params(
      files.tensors, decoder, kind, str(directory), dtype, shardings)
  else:
    arch = encoder = read_architecture(config, where=str(directory / 'config.json'))
    params, ignored, prefixes = to_params(
      files.tensors, encoder, head, where=str(directory), dtype=dtype)
  tokenizer = load_tokenizer(directory, kind=kind, vocab_size=arch.vocab_size,
                             content=quantised.tokenizer if quantised else None)
  check_tokenizer(tokenizer, directory, kind=kind)
  tokenizer, differences = within_model(tokenizer, arch.vocab_size, str(directory))
  if processes.is_first():
    for line in (*files.lines, *prefixes, *differences):
      write_line(line, sys.stderr)
  return Pretrained(
    directory=directory, config=config, arch=arch, head=head, params=params, tokenizer=tokenizer,
    max_length=length_limit(directory, arch.max_positions), ignored=tuple(ignored),
    stored=quantised.types if quantised else tuple(sorted(
      {x.dtype for name, x in files.tensors.items() if not name.endswith(tuple(ignored))})),
    fingerprint=_fingerprint(directory, files.weights, head, dtype), files=files)


@dataclasses.dataclass(frozen=True)
class ModelFiles:
  """A published model that was found; no weight is read yet."""

  directory: pathlib.Path  # its folder, or the GGUF file
  config: dict[str, Any]  # content of `config.json`, with `model_type`
  lines: list[str]  # what was recognised, to say
  adapter: Adapter | None = None  # that is added to its weights

  @functools.cached_property
  def gguf(self) -> GGUF | None:
    """What a GGUF file holds; None of a folder."""
    return open_gguf(self.directory) if self.directory.is_file() else None

  @functools.cached_property
  def weights(self) -> list[pathlib.Path]:
    """The files that hold the tensors, those of the adapter last."""
    own = [self.directory] if self.gguf else weight_files(self.directory)
    return own + (self.adapter.files if self.adapter else [])

  @functools.cached_property
  def _own_tensors(self) -> dict[str, Stored]:
    """Without the adapter; those of a GGUF file with the names of the family's own files."""
    return self.gguf.tensors if self.gguf else open_tensors(weight_files(self.directory))

  @functools.cached_property
  def tensors(self) -> dict[str, Stored]:
    """All tensors by their names in the files; `UserError` if an adapter has another base."""
    if self.adapter is None:
      return self._own_tensors
    wanted = self.adapter.base_digest
    if wanted is not None and wanted != (found := self.weights_digest()):
      raise UserError(
        f'{self.adapter.directory} was trained on other weights than those of {self.directory} '
        f'(SHA-256 {wanted[:12]}, not {found[:12]}): name the folder of its base as '
        f'base_model_name_or_path in {peft_files.CONFIG}')
    return self.adapter.onto(
      self._own_tensors, self.published_names(), turned=is_gpt2(self.decoder))

  def weights_digest(self) -> str:
    """SHA-256 (hex) of a decoder's weights in bfloat16, adapter aside; equal for all copies."""
    names = {ours: name for name, ours in self.published_names().items() if ours}
    return _weights_digest((ours, self._own_tensors[names[ours]].whole())
                           for ours in sorted(names))

  @functools.cached_property
  def decoder(self) -> DecoderConfig:
    """The switches of a decoder; `UserError` of another model."""
    return read_decoder_config(self.config, where=str(self.directory / 'config.json'))

  def vocabulary(self, *, start: bool = False, chat: bool = False) -> TokenizerVocabulary:
    """The tokenizer as a vocabulary; for `start` and `chat` see `TokenizerVocabulary.read`."""
    options = self.gguf.tokenizer_config if self.gguf else None
    content, chat_of = self._gguf_tokenizer if self.gguf else None, self.directory
    if chat and self.adapter and has_chat(self.adapter.directory):  # it was trained with this one
      options, chat_of = None, self.adapter.directory
      own, base = chat_of / 'tokenizer.json', self.directory / 'tokenizer.json'
      if own.is_file() and parse_tokenizer(own.read_bytes()).to_str() != parse_tokenizer(
          content or base.read_bytes()).to_str():
        raise UserError(f'{chat_of} has a chat template and another tokenizer than its base '
                        f'{self.adapter.base}: merge it with peft (merge_and_unload)')
    return TokenizerVocabulary.read(
      self.directory, config=self.config, content=content, start=start,
      chat=chat_of if chat else None, options=options)

  @functools.cached_property
  def _gguf_tokenizer(self) -> bytes:
    """As the package tokenizers writes it."""
    assert self.gguf is not None
    return load_tokenizer(self.directory, kind=self.config['model_type'],
                          vocab_size=self.decoder.vocab_size, content=self.gguf.tokenizer
                          ).to_str().encode('utf-8')

  def published_names(self) -> dict[str, str | None]:
    """Of every tensor of a decoder in the files its name in `tensor_shapes`; None of buffers."""
    kind = self.config['model_type']
    prefix, copies = _decoder_prefix(kind), _decoder_copies(self.decoder, kind)
    ours = {name.removeprefix(prefix): name for name in tensor_shapes(self.decoder)}
    plain, _ = _plain_names(
      {name: name for name in self._own_tensors}, prefix, str(self.directory))
    return {name: ours.get(copies.get(bare, bare)) for bare, name in plain.items()}

  def write(
    self, params: Params, folder: pathlib.Path | None, *, dtype: str | None = None,
    to_host: Callable[[Any], np.ndarray] = np.asarray, most: int = SHARD_BYTES,
  ) -> tuple[list[tuple[str, str]], list[str]]:
    """Writes a decoder with other parameters; returns files, what they hold, dtypes of weights."""
    # `folder` is empty; None: another process writes. `dtype` None: each tensor's as it came.
    # `most`: bytes of tensors in a file.
    parts, names = tensor_parts(self.decoder), self.published_names()
    forms = {name: (tensor.dtype if names[name] is None else dtype or tensor.dtype, tensor.shape)
             for name, tensor in self.tensors.items()}

    def value(name):
      ours = names[name]
      if ours is None:
        return self.tensors[name].whole()
      found = to_decoder_tensor(params, parts[ours], to_host=to_host)
      if forms[name][0] == 'float16' and np.abs(found).max() > np.finfo(np.float16).max:
        raise UserError(f'{name} has numbers that float16 does not hold: take --dtype=bfloat16')
      return found

    shards = shard_names(forms, most=most)
    for file, inside in shards.items():
      if folder is None:
        collections.deque(map(value, inside), maxlen=0)
      else:
        write_tensors(folder / file, {name: forms[name] for name in inside}, map(value, inside))
    written = [(file, f'{len(inside)} tensors') for file, inside in shards.items()]
    if folder is not None:
      if len(shards) > 1:
        write_index(folder, shards, forms)
        written.append((INDEX, 'which file has which tensor'))
      if self.gguf is None:
        written += [(name, 'as it came') for name in self._copy(folder)]
      else:
        written += [(name, f'of {self.directory.name}') for name in self._unpack(folder)]
      if dtype is not None:
        self._set_dtype(folder / 'config.json', dtype)
    return written, sorted({forms[name][0] for name, ours in names.items() if ours})

  def _copy(self, folder: pathlib.Path) -> list[str]:
    """Copies what is no weight and no program."""
    copied = []
    for path in sorted({p for pattern in BESIDE_WEIGHTS for p in self.directory.glob(pattern)}):
      if path.is_file() and not any(path.match(pattern) for pattern in _NOT_COPIED):
        copied.append(path.relative_to(self.directory).as_posix())
        (folder / copied[-1]).parent.mkdir(exist_ok=True)
        shutil.copyfile(path, folder / copied[-1])
    return copied

  def _unpack(self, folder: pathlib.Path) -> list[str]:
    """Writes what a GGUF file says as the files of a folder."""
    assert self.gguf is not None
    config = self.config | {
      'architectures': [DECODERS[self.config['model_type']]], 'dtype': 'float32'}
    write_json(folder / 'config.json', config)
    write_json(folder / 'tokenizer_config.json', self.gguf.tokenizer_config)
    (folder / 'tokenizer.json').write_bytes(self._gguf_tokenizer)
    return ['config.json', 'tokenizer.json', 'tokenizer_config.json']

  def _set_dtype(self, path: pathlib.Path, dtype: str) -> None:
    """Names the type that transformers 5 loads the weights in."""
    content = read_json(path)
    field = 'torch_dtype' if 'torch_dtype' in content else 'dtype'
    if content.get(field) != dtype:
      write_json(path, content | {field: dtype})


def open_model(source: str | os.PathLike) -> ModelFiles:
  """Finds the model in a folder that people have.

  `source`: of a model, a folder of the Hub's cache that holds one snapshot of one model, a GGUF
  file, an adapter (LoRA) of peft that names its base, or the name of a model,
  `hf:ORG/NAME[@REVISION]` of the Hub or `pip:PACKAGE` in an installed package. The folder of an
  adapter is that of its base. `UserError` names what else it is (several snapshots, other formats,
  quantised weights).
  """
  given = model_path(source)
  if given.suffix == GGUF_SUFFIX and given.is_file():
    return ModelFiles(given, open_gguf(given).config, [])
  if not given.is_dir():
    what = 'a file' if given.exists() else 'no directory'
    raise UserError(f'{given} is {what}: give the folder of config.json and model.safetensors '
                    "(a model of the Hub has the name hf:ORG/NAME)")
  found, lines = find_snapshot(given), []
  if found != given:
    lines.append(f'{given} is a folder of a cache: its snapshot {found} is read')
  for file in sorted(found.iterdir()):
    if file.suffix in ('.json', '.txt') and file.is_file():
      refuse_pointer(file)
  path = found / 'config.json'
  if (found / peft_files.CONFIG).is_file() and not path.is_file():
    adapter = read_adapter(found)
    base = open_model(adapter.base)
    if base.config['model_type'] not in DECODERS or base.adapter:
      raise UserError(f'{found} is an adapter of {adapter.base}, which is no decoder of its own: '
                      'merge it with peft (merge_and_unload)')
    if (found / 'tokenizer.json').is_file():
      lines.append(f'{found} holds a tokenizer, which is not read: that of {adapter.base} is')
    return dataclasses.replace(base, adapter=adapter, lines=[*lines, *base.lines])
  if not path.is_file():
    raise UserError(f'{path}: No such file or directory: {_what_it_is(found)}')
  if (found / peft_files.CONFIG).is_file():
    lines.append(f'{found} holds an adapter besides the model, which is not added to it: give the '
                 'adapter a folder without config.json if it is meant')
  config = text_config(read_json(path), where=str(path))
  kind = recognise(config, where=str(path))
  if not config.get('model_type'):
    lines.append(f'{path} has no model_type: it is read as {kind}, by the names of its fields')
  return ModelFiles(found, {**config, 'model_type': kind}, lines)


def folder_name(directory: str | os.PathLike) -> str:
  """Name of a model by its folder; in a cache of the Hub that of the model, not of the snapshot."""
  path = pathlib.Path(os.path.abspath(directory))
  cached = [part for part in path.parts[-3:] if part.startswith('models--')]
  if cached:
    return cached[0].rpartition('--')[2]
  return path.resolve().name.removesuffix(GGUF_SUFFIX)


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
  gguf = sorted(folder.glob(f'*{GGUF_SUFFIX}'))
  if gguf:
    return f'{gguf[0].name} is a GGUF file: give the file itself, {gguf[0]}'
  inner = sorted(p.parent for p in folder.glob('*/config.json'))
  if inner:
    return f'{inner[0]} holds one: give the folder of the model itself'
  return ('a model directory holds config.json, model.safetensors and its tokenizer: download the '
          'whole of it, or write it with save_pretrained of model and tokenizer')


def _fingerprint(directory: pathlib.Path, files: list[pathlib.Path], head: str, dtype: str) -> str:
  """Digest of the files that decide the values, by name."""
  parts: list[Any] = ['pretrained 1', head, dtype]
  for path in [directory / name for name in _DECIDING] + files:
    if path.is_file():
      parts.append([path.name, file_sha256(path)])
  return hashlib.sha256(json.dumps(parts).encode('utf-8')).hexdigest()
