"""Every tensor of BERT, ALBERT and GPT-2: its published name and its place in our parameters.

Parameters are a dictionary of groups of arrays; tensors of all layers are stacked on axis 0, and
every kernel is `[in, out]`. Letters: V vocabulary, E embedding width, D model width, F feed-forward
width, P positions, Y token types, L stacked layers (of ALBERT: the different ones), C classes.

| group | arrays |
|---|---|
| `embeddings` | `word [V, E]`, `position [P, E]`; BERT and ALBERT also `token_type [Y, E]`, `norm_scale [E]`, `norm_bias [E]` |
| `projection` (ALBERT) | `kernel [E, D]`, `bias [D]` |
| `layers` | `qkv_kernel [L, D, 3D]` (queries, keys, values), `qkv_bias [L, 3D]`, `out_kernel [L, D, D]`, `out_bias [L, D]`, `ff_in_kernel [L, D, F]`, `ff_in_bias [L, F]`, `ff_out_kernel [L, F, D]`, `ff_out_bias [L, D]`, `attention_norm_scale`, `attention_norm_bias`, `ff_norm_scale`, `ff_norm_bias` (`[L, D]`; after attention and feed-forward in BERT and ALBERT, before them in GPT-2) |
| `final_norm` (GPT-2) | `scale [D]`, `bias [D]` |
| `pooler` | `kernel [D, D]`, `bias [D]` |
| `mlm` | `kernel [D, E]`, `bias [E]`, `norm_scale [E]`, `norm_bias [E]`, `output_bias [V]` |
| `classifier` | `kernel [D, C]`, `bias [C]` |
| `output` (only untied) | `table [V, E]` |
"""  # noqa: E501  (a table row is one line)

import re
from collections.abc import Iterator
from typing import NamedTuple

from fairjax.pretrained.architecture import Architecture

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
  return list(_gpt2(arch) if arch.kind == 'gpt2' else _encoder(arch, head))


def _encoder(arch: Architecture, head: str) -> Iterator[Entry]:
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


def _gpt2(arch: Architecture) -> Iterator[Entry]:
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
  """Names of tensors that must hold the same values as another: copies of tied tables and biases.

  >>> from fairjax.pretrained.architecture import read_architecture
  >>> small = dict(model_type='gpt2', vocab_size=9, n_embd=4, n_layer=1, n_head=1, n_positions=8)
  >>> aliases(read_architecture(small, where='x'), 'lm')
  {'lm_head.weight': 'wte.weight'}
  """
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
  """Whether a tensor is one that published files hold without being needed.

  They are the buffers of positions and masks, the pooler, and the heads that were not asked for.
  """
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
  """A tensor's name without the body's prefix and with today's names of LayerNorm's arrays.

  >>> plain_name('bert.embeddings.LayerNorm.gamma', 'bert')
  'embeddings.LayerNorm.weight'
  """
  name = name.removeprefix(PREFIX[kind])
  name = re.sub(r'(LayerNorm|layer_norm)\.gamma$', r'\1.weight', name)
  return re.sub(r'(LayerNorm|layer_norm)\.beta$', r'\1.bias', name)


def full_name(name: str, kind: str) -> str:
  """The name with the body's prefix, as files with a head have it."""
  return name if name.startswith(_HEAD_NAMES) else PREFIX[kind] + name
