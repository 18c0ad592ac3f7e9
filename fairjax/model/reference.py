"""Weights under the names of the authors' PyTorch Transformer-XL (Dai et al. 2019), both ways.

`params_from_reference` reads a state dict, `params_to_reference` writes one. So a published
checkpoint can replace step 1 of the curriculum, and other programs can read our checkpoints.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from fairjax.config import ModelConfig
from fairjax.errors import UserError
from fairjax.model.softmax import Cluster, vocabulary_clusters

# The constructor's arguments of the authors' Transformer-XL as a `ModelConfig`.

NAMES = {
  'n_token': 'vocab_size', 'n_layer': 'num_layers', 'd_model': 'model_dim', 'n_head': 'num_heads',
  'd_head': 'head_dim', 'd_inner': 'ff_dim', 'tgt_len': 'segment_len', 'mem_len': 'memory_len'}
"""Constructor's argument -> field of `ModelConfig`."""

_Size = Annotated[int, msgspec.Meta(ge=1)]


class _Arguments(msgspec.Struct):
  """The arguments that are read, with the constructor's defaults."""

  n_token: _Size
  n_layer: _Size
  d_model: _Size
  n_head: _Size
  d_head: _Size
  d_inner: _Size
  mem_len: Annotated[int, msgspec.Meta(ge=0)]
  tgt_len: _Size = 128  # the published evaluation's; weights do not depend on it
  cutoffs: tuple[int, ...] = ()
  div_val: _Size = 1
  clamp_len: int = -1
  tie_projs: tuple[bool, ...] = ()
  proj_share_all_but_first: bool = True
  pre_lnorm: bool = False
  untie_r: bool = False
  dropout: float = 0.0
  dropatt: float = 0.0


def model_config_of_reference(
  reference: Mapping[str, Any], dtype: str = 'float32'
) -> ModelConfig:
  """Converts the constructor's arguments to a `ModelConfig`; UserError for what is not covered."""
  given = {name: value for name, value in reference.items() if value is not None}
  if 'vocab_size' in given:  # as published checkpoints call it
    given.setdefault('n_token', given['vocab_size'])
  try:
    found = msgspec.convert(given, _Arguments)
  except msgspec.ValidationError as e:
    raise UserError(f'reference checkpoint: constructor arguments: {e}') from None
  expected = {
    'attn_type': 0, 'tie_weight': True, 'ext_len': 0, 'sample_softmax': -1,
    'd_embed': found.d_model, 'layer_norm_epsilon': 1e-5}
  for name, value in expected.items():
    if given.get(name, value) != value:
      raise UserError(f'reference checkpoint: {name}={given[name]} is not covered, only {value}')
  cutoffs = tuple(c for c in found.cutoffs if c != found.n_token)
  ends = (0, *cutoffs, found.n_token)
  if any(a >= b for a, b in zip(ends, ends[1:], strict=False)):
    raise UserError(f'reference checkpoint: cutoffs={list(cutoffs)} must rise, above 0 and below '
                    f'n_token={found.n_token}')
  if found.div_val > 1 and not cutoffs:
    raise UserError(f'reference checkpoint: div_val={found.div_val} without cutoffs is not covered')
  if found.d_model % found.div_val ** len(cutoffs):
    raise UserError(f'reference checkpoint: div_val={found.div_val} to the power of the '
                    f'{len(cutoffs)} cutoffs does not divide d_model={found.d_model}')
  ties: tuple[bool, ...] = ()
  if cutoffs and found.div_val > 1:
    ties = found.tie_projs or (False, *(found.proj_share_all_but_first,) * len(cutoffs))
    if len(ties) != len(cutoffs) + 1:
      raise UserError(f'reference checkpoint: tie_projs has {len(ties)} values, there are '
                      f'{len(cutoffs) + 1} clusters')
  return ModelConfig(
    **{ours: getattr(found, theirs) for theirs, ours in NAMES.items()},
    cutoffs=cutoffs, div_val=found.div_val, tie_projections=ties,
    clamp_len=found.clamp_len if found.clamp_len > 0 else -1,  # it clamps at no other value
    norm='pre' if found.pre_lnorm else 'post', tie_position_biases=not found.untie_r,
    hidden_dropout=found.dropout, attention_dropout=found.dropatt, dtype=dtype)


def reference_notes(reference: Mapping[str, Any]) -> list[str]:
  """Lines about arguments that have no effect here and do not change the weights."""
  if not reference.get('same_length'):
    return []
  return ['same_length=true of its arguments is left out: there every token sees mem_len keys '
          'before it, here the whole memory and its segment up to itself. The weights are the '
          'same; its likelihoods differ a little from those of its own code']


def cluster_order(reference: Mapping[str, Any]) -> int:
  """Step through the rows of the cluster weights: -1 where tail i (from 1) has row C - i."""
  # The authors' PyTorch code indexes the gates from the end; their TensorFlow code, the published
  # checkpoints and their readers from the start.
  orders = {'reversed': -1, 'forward': 1}
  published = 'n_token' not in reference or 'model_type' in reference
  name = reference.get('cluster_order', 'forward' if published else 'reversed')
  if not isinstance(name, str) or name not in orders:
    raise UserError(f"reference checkpoint: cluster_order='{name}' is not one of reversed, forward")
  return orders[name]


_PREFIX = 'transformer.'  # of published checkpoints, whose softmax (`crit.`) has none


def params_from_reference(
  state_dict: Mapping[str, np.ndarray], reference_config: Mapping[str, Any], *,
  dtype: str = 'float32',
) -> tuple[ModelConfig, dict[str, Any]]:
  """Converts a state dict of the reference to a model config and NumPy parameters."""
  config = model_config_of_reference(reference_config, dtype)
  tensors = _Tensors(state_dict, np.float64 if dtype == 'float64' else np.float32)
  order = cluster_order(reference_config)
  params = _read_softmax(tensors, config, order) | {'layers': _read_layers(tensors, config)}
  heads = (config.num_heads, config.head_dim)
  for ours, theirs in (('content_bias', 'r_w_bias'), ('position_bias', 'r_r_bias')):
    if config.tie_position_biases:
      params[ours] = tensors.take(theirs, heads)
    else:
      params['layers'][ours] = np.stack([
        tensors.take(f'layers.{i}.dec_attn.{theirs}', heads) for i in range(config.num_layers)])
  tensors.check()
  return config, params


def params_to_reference(
  params: Mapping[str, Any], config: ModelConfig, *, prefix: bool = False
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """Inverts `params_from_reference`; refuses a final norm, which the reference does not have."""
  if config.final_norm:
    raise UserError('export: the reference has no final norm (model.final_norm=True): only models '
                    'without one can be written under its names')
  if config.clamp_len == 0:
    raise UserError('export: the reference does not clamp at model.clamp_len=0, where this model '
                    'knows no distances: such a model cannot be written under its names')
  dtype = np.float64 if config.dtype == 'float64' else np.float32
  found = _write_softmax(params, config)
  layers, inner = params['layers'], config.num_heads * config.head_dim
  width = config.model_dim
  for i in range(config.num_layers):
    w = {name: np.asarray(value[i]) for name, value in layers.items()}
    qkv = np.concatenate([w['query'][:, None], w['key_value']], axis=1)
    own = {
      'dec_attn.qkv_net.weight': qkv.reshape(width, 3 * inner).T,
      'dec_attn.r_net.weight': w['relative'].reshape(width, inner).T,
      'dec_attn.o_net.weight': w['output'].reshape(inner, width).T,
      'pos_ff.CoreNet.0.weight': w['ff_in'].T, 'pos_ff.CoreNet.3.weight': w['ff_out'].T}
    own |= {theirs: w[ours] for ours, theirs in _VECTORS.items()}
    if not config.tie_position_biases:
      own |= {'dec_attn.r_w_bias': w['content_bias'], 'dec_attn.r_r_bias': w['position_bias']}
    found |= {f'layers.{i}.{name}': value for name, value in own.items()}
  if config.tie_position_biases:
    found |= {'r_w_bias': params['content_bias'], 'r_r_bias': params['position_bias']}
  exponents = np.arange(0, width, 2) / width
  found['pos_emb.inv_freq'] = np.float32(1) / np.power(10000.0, exponents).astype(np.float32)
  arguments: dict[str, Any] = {theirs: getattr(config, ours) for theirs, ours in NAMES.items()}
  ties = [c.tied for c in vocabulary_clusters(config)] if config.cutoffs else [False]
  arguments |= {
    'd_embed': config.model_dim, 'cutoffs': list(config.cutoffs), 'div_val': config.div_val,
    'tie_weight': True, 'tie_projs': ties, 'pre_lnorm': config.norm == 'pre',
    'clamp_len': config.clamp_len, 'same_length': False, 'cluster_order': 'reversed',
    'untie_r': not config.tie_position_biases, 'attn_type': 0,
    'dropout': config.hidden_dropout, 'dropatt': config.attention_dropout}
  # Each tensor has memory of its own, in order: safetensors writes nothing else.
  return {
    name if not prefix or name.startswith('crit.') else _PREFIX + name:
      np.array(value, dtype=dtype, order='C', copy=True)
    for name, value in found.items()}, arguments


_VECTORS = {
  'attention_norm_scale': 'dec_attn.layer_norm.weight',
  'attention_norm_bias': 'dec_attn.layer_norm.bias',
  'ff_in_bias': 'pos_ff.CoreNet.0.bias', 'ff_out_bias': 'pos_ff.CoreNet.3.bias',
  'ff_norm_scale': 'pos_ff.layer_norm.weight', 'ff_norm_bias': 'pos_ff.layer_norm.bias'}


class _Tensors:
  """A state dict that records unread tensors and collects everything that does not fit."""

  def __init__(self, state_dict: Mapping[str, np.ndarray], dtype: type):
    self._arrays = {name.removeprefix(_PREFIX): array for name, array in state_dict.items()}
    self._arrays.pop('pos_emb.inv_freq', None)  # a constant, recomputed bit for bit
    self._left = set(self._arrays)
    self._dtype, self._problems = dtype, []

  def take(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The tensor of that name; if it does not fit, zeros of that shape, and a recorded problem."""
    found = self._arrays.get(name)
    if found is None:
      self._problems.append(f'{name} {shape} lacks')
    elif tuple(found.shape) != shape:
      self._problems.append(f'{name} has shape {tuple(found.shape)}, the arguments say {shape}')
    self._left.discard(name)
    if found is None or tuple(found.shape) != shape:
      return np.zeros(shape, self._dtype)
    return np.asarray(found).astype(self._dtype)

  def take_tied(self, name: str, original: np.ndarray, tied_to: str) -> None:
    """Reads a copy of another tensor, which some files leave out."""
    if name in self._arrays and not np.array_equal(self.take(name, original.shape), original):
      self._problems.append(
        f'{name} differs from {tied_to}: only tied checkpoints (tie_weight) can be read')

  def check(self) -> None:
    """Raises `UserError` with everything that did not fit, unread tensors included."""
    problems = self._problems + [
      f'{name} {tuple(self._arrays[name].shape)} is not understood' for name in sorted(self._left)]
    if problems:
      more = f'; and {len(problems) - 12} more' if len(problems) > 12 else ''
      raise UserError(f'reference checkpoint does not fit its constructor arguments: '
                      f'{"; ".join(problems[:12])}{more}')


def _read_layers(tensors: _Tensors, config: ModelConfig) -> dict[str, np.ndarray]:
  """Parameters of the layers, stacked."""
  layers, width = config.num_layers, config.model_dim
  heads, inner = (config.num_heads, config.head_dim), config.num_heads * config.head_dim

  def stack(name, shape):
    return np.stack([tensors.take(f'layers.{i}.{name}', shape) for i in range(layers)])

  qkv = stack('dec_attn.qkv_net.weight', (3 * inner, width)).transpose(0, 2, 1)
  qkv = qkv.reshape(layers, width, 3, *heads)
  relative = stack('dec_attn.r_net.weight', (inner, width)).transpose(0, 2, 1)
  output = stack('dec_attn.o_net.weight', (width, inner)).transpose(0, 2, 1)
  sizes = {'ff_in_bias': config.ff_dim}
  return {
    'query': qkv[:, :, 0],
    'key_value': qkv[:, :, 1:],
    'relative': relative.reshape(layers, width, *heads),
    'output': output.reshape(layers, *heads, width),
    'ff_in': stack('pos_ff.CoreNet.0.weight', (config.ff_dim, width)).transpose(0, 2, 1),
    'ff_out': stack('pos_ff.CoreNet.3.weight', (width, config.ff_dim)).transpose(0, 2, 1),
  } | {ours: stack(theirs, (sizes.get(ours, width),)) for ours, theirs in _VECTORS.items()}


def _read_softmax(tensors: _Tensors, config: ModelConfig, order: int) -> dict[str, np.ndarray]:
  """Embedding and softmax; a single table of several clusters is cut."""
  clusters, params = vocabulary_clusters(config), {}
  whole = bool(config.cutoffs) and config.div_val == 1  # one table for all clusters
  if whole:
    words = (config.vocab_size, config.model_dim)
    table = tensors.take('word_emb.emb_layers.0.weight', words)
    bias = tensors.take('crit.out_layers.0.bias', words[:1])
    tensors.take_tied('crit.out_layers.0.weight', table, 'word_emb.emb_layers.0.weight')
  for i, c in enumerate(clusters):
    if whole:
      rows, own_bias = (x[c.start:c.start + c.size] for x in (table, bias))
    else:
      name = f'word_emb.emb_layers.{i}.weight'
      rows = tensors.take(name, (c.size, c.width))
      tensors.take_tied(f'crit.out_layers.{i}.weight', rows, name)
      own_bias = tensors.take(f'crit.out_layers.{i}.bias', (c.size,))
    params[f'embedding{c.suffix}'] = rows
    params[f'softmax_bias{c.suffix}'] = own_bias
    if c.projected:
      name, shape = f'word_emb.emb_projs.{i}', (config.model_dim, c.width)
      projection = tensors.take(name, shape)
      params[f'projection{c.suffix}'] = projection.T
      if c.tied:
        tensors.take_tied(f'crit.out_projs.{i}', projection, name)
      else:
        params[f'softmax_projection{c.suffix}'] = tensors.take(f'crit.out_projs.{i}', shape).T
  if config.cutoffs:
    tails = len(config.cutoffs)
    of_cluster: dict[str, tuple[int, ...]] = {
      'cluster_weight': (tails, config.model_dim), 'cluster_bias': (tails,)}
    for name, size in of_cluster.items():
      params[name] = tensors.take(f'crit.{name}', size)[::order]
  return params


def _write_softmax(params: Mapping[str, Any], config: ModelConfig) -> dict[str, Any]:
  """The inverse of `_read_softmax`."""
  clusters, found = vocabulary_clusters(config), {}

  def rows(kind: str, cluster: Cluster) -> np.ndarray:
    return np.asarray(params[kind + cluster.suffix])[:cluster.size]

  tables = [(rows('embedding', c), rows('softmax_bias', c)) for c in clusters]
  if config.cutoffs and config.div_val == 1:
    weights, biases = zip(*tables, strict=True)
    tables = [(np.concatenate(weights), np.concatenate(biases))]
  for i, (table, bias) in enumerate(tables):
    found[f'word_emb.emb_layers.{i}.weight'] = found[f'crit.out_layers.{i}.weight'] = table
    found[f'crit.out_layers.{i}.bias'] = bias
  for i, c in enumerate(clusters):
    if c.projected:
      own = np.asarray(params[f'projection{c.suffix}']).T
      found[f'word_emb.emb_projs.{i}'] = own
      found[f'crit.out_projs.{i}'] = (
        own if c.tied else np.asarray(params[f'softmax_projection{c.suffix}']).T)
  if config.cutoffs:
    for name in ('cluster_weight', 'cluster_bias'):
      found[f'crit.{name}'] = np.asarray(params[name])[::-1]  # cluster_order
  return found
