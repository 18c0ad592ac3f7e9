"""Weights of the authors' PyTorch Transformer-XL as parameters of `TransformerXL`.

Letters: L layers, D model width, N heads, H head width, F feed-forward width, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fairjax.config import ModelConfig
from fairjax.errors import UserError

_PREFIX = 'transformer.'  # of published checkpoints, whose softmax (`crit.`) has none


def params_from_reference(
  state_dict: Mapping[str, np.ndarray], reference_config: Mapping[str, Any], *,
  dtype: str = 'float32',
) -> tuple[ModelConfig, dict[str, Any]]:
  """Renames and reshapes a state dict of the reference implementation (Dai et al. 2019).

  Args:
    state_dict: the reference's tensor names, with or without its `transformer.` prefix, to arrays.
    reference_config: its constructor's arguments (`n_layer`, `d_model`, `pre_lnorm`, ...).
    dtype: compute dtype of the model; parameters are float32, or float64 for 'float64'.

  Returns:
    The model's config (`segment_len` = tgt_len, `memory_len` = mem_len), and NumPy parameters for
    `TransformerXL.apply({'params': params}, ...)`.

  Raises:
    UserError: an adaptive softmax or another variant that is not covered, a tensor that lacks, is
      left over or has another shape than the arguments say, an untied softmax.
  """
  _check_covered(reference_config)
  config = _model_config(reference_config, dtype)
  tensors = _Tensors(state_dict, np.float64 if dtype == 'float64' else np.float32)
  layers, width = config.num_layers, config.model_dim
  heads = (config.num_heads, config.head_dim)
  inner = config.num_heads * config.head_dim

  def stack(name, shape):
    return np.stack([tensors.take(f'layers.{i}.{name}', shape) for i in range(layers)])

  qkv = stack('dec_attn.qkv_net.weight', (3 * inner, width)).transpose(0, 2, 1)
  qkv = qkv.reshape(layers, width, 3, *heads)
  relative = stack('dec_attn.r_net.weight', (inner, width)).transpose(0, 2, 1)
  output = stack('dec_attn.o_net.weight', (width, inner)).transpose(0, 2, 1)
  embedding = tensors.take('word_emb.emb_layers.0.weight', (config.vocab_size, width))
  softmax = tensors.take('crit.out_layers.0.weight', embedding.shape)
  if not np.array_equal(softmax, embedding):
    raise UserError('reference checkpoint: crit.out_layers.0.weight differs from '
                    'word_emb.emb_layers.0.weight: only tied checkpoints (tie_weight) can be read')
  params = {
    'embedding': embedding,
    'softmax_bias': tensors.take('crit.out_layers.0.bias', (config.vocab_size,)),
    'layers': {
      'query': qkv[:, :, 0],
      'key_value': qkv[:, :, 1:],
      'relative': relative.reshape(layers, width, *heads),
      'output': output.reshape(layers, *heads, width),
      'attention_norm_scale': stack('dec_attn.layer_norm.weight', (width,)),
      'attention_norm_bias': stack('dec_attn.layer_norm.bias', (width,)),
      'ff_in': stack('pos_ff.CoreNet.0.weight', (config.ff_dim, width)).transpose(0, 2, 1),
      'ff_in_bias': stack('pos_ff.CoreNet.0.bias', (config.ff_dim,)),
      'ff_out': stack('pos_ff.CoreNet.3.weight', (width, config.ff_dim)).transpose(0, 2, 1),
      'ff_out_bias': stack('pos_ff.CoreNet.3.bias', (width,)),
      'ff_norm_scale': stack('pos_ff.layer_norm.weight', (width,)),
      'ff_norm_bias': stack('pos_ff.layer_norm.bias', (width,)),
    },
  }
  for ours, theirs in (('content_bias', 'r_w_bias'), ('position_bias', 'r_r_bias')):
    if config.tie_position_biases:
      params[ours] = tensors.take(theirs, heads)
    else:
      params['layers'][ours] = stack(f'dec_attn.{theirs}', heads)
  tensors.check_all_taken()
  return config, params


class _Tensors:
  """A state dict that notices what nobody took."""

  def __init__(self, state_dict: Mapping[str, np.ndarray], dtype: type):
    self._arrays = {name.removeprefix(_PREFIX): array for name, array in state_dict.items()}
    self._arrays.pop('pos_emb.inv_freq', None)  # a constant, recomputed bit for bit
    self._left = set(self._arrays)
    self._dtype = dtype

  def take(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The tensor of that name, its shape checked."""
    if name not in self._arrays:
      raise UserError(f'reference checkpoint: tensor {name} lacks: is it a complete state dict of '
                      'a Transformer-XL whose constructor arguments are those given?')
    array = np.asarray(self._arrays[name])
    if array.shape != shape:
      raise UserError(f'reference checkpoint: tensor {name} has shape {array.shape}, but the '
                      f'constructor arguments say {shape}: correct the arguments')
    self._left.discard(name)
    return array.astype(self._dtype)

  def check_all_taken(self) -> None:
    """Refuses to drop a tensor silently."""
    if self._left:
      raise UserError(f'reference checkpoint: {len(self._left)} tensors are not understood, e.g. '
                      f'{min(self._left)}: correct the constructor arguments')


def _check_covered(reference: Mapping[str, Any]) -> None:
  """Names the first argument whose value this reader does not cover."""
  if reference.get('cutoffs') or reference.get('div_val', 1) != 1:
    cutoffs, div_val = list(reference.get('cutoffs') or []), reference.get('div_val', 1)
    raise UserError(f'reference checkpoint: it has an adaptive softmax ({cutoffs=}, {div_val=}); '
                    'only plain softmax checkpoints (cutoffs=[], div_val=1) can be read')
  expected = {
    'attn_type': 0, 'same_length': False, 'tie_weight': True, 'ext_len': 0, 'sample_softmax': -1,
    'd_embed': reference.get('d_model')}
  for name, value in expected.items():
    if reference.get(name, value) not in (value, None):
      raise UserError(
        f'reference checkpoint: {name}={reference[name]} is not covered, only {value}')


def _model_config(reference: Mapping[str, Any], dtype: str) -> ModelConfig:
  """The constructor's arguments in this project's words."""
  names = {
    'n_token': 'vocab_size', 'n_layer': 'num_layers', 'd_model': 'model_dim', 'n_head': 'num_heads',
    'd_head': 'head_dim', 'd_inner': 'ff_dim', 'tgt_len': 'segment_len', 'mem_len': 'memory_len'}
  missing = sorted(names.keys() - reference.keys())
  if missing:
    raise UserError(f'reference checkpoint: constructor arguments lack: {", ".join(missing)}')
  return ModelConfig(
    **{ours: int(reference[theirs]) for theirs, ours in names.items()},
    clamp_len=int(reference.get('clamp_len', -1)),
    norm='pre' if reference.get('pre_lnorm', False) else 'post',
    tie_position_biases=not reference.get('untie_r', False),
    hidden_dropout=float(reference.get('dropout', 0.0)),
    attention_dropout=float(reference.get('dropatt', 0.0)),
    dtype=dtype)
