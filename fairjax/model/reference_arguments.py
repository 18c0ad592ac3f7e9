"""The constructor's arguments of the authors' Transformer-XL as a `ModelConfig`."""

from collections.abc import Mapping
from typing import Any

from fairjax.config import ModelConfig
from fairjax.errors import UserError

NAMES = {
  'n_token': 'vocab_size', 'n_layer': 'num_layers', 'd_model': 'model_dim', 'n_head': 'num_heads',
  'd_head': 'head_dim', 'd_inner': 'ff_dim', 'tgt_len': 'segment_len', 'mem_len': 'memory_len'}
"""Constructor's argument -> field of `ModelConfig`."""

_WHOLE, _NUMBER, _BOOL = 'a whole number', 'a number', 'true or false'
_LISTS = {'cutoffs': _WHOLE, 'tie_projs': _BOOL}
# Further arguments that are read, and what they are.
_KINDS = {'div_val': _WHOLE, 'clamp_len': _WHOLE, 'proj_share_all_but_first': _BOOL,
          'pre_lnorm': _BOOL, 'untie_r': _BOOL, 'same_length': _BOOL, 'dropout': _NUMBER,
          'dropatt': _NUMBER}
_LENGTHS = ('mem_len',)  # may be 0
_SHOWN = 40  # characters of a wrong value


def model_config_of_reference(
  reference: Mapping[str, Any], dtype: str = 'float32', vocab_multiple: int = 1
) -> ModelConfig:
  """The constructor's arguments in this project's words.

  Raises:
    UserError: an argument lacks, is of another type, or has a value that is not covered.
  """
  given = _checked(reference)
  expected = {
    'attn_type': 0, 'tie_weight': True, 'ext_len': 0, 'sample_softmax': -1,
    'd_embed': given['d_model'], 'layer_norm_epsilon': 1e-5}
  for name, value in expected.items():
    if given.get(name, value) not in (value, None):
      raise UserError(f'reference checkpoint: {name}={given[name]} is not covered, only {value}')
  cutoffs = tuple(c for c in given.get('cutoffs') or () if c != given['n_token'])
  ends = (0, *cutoffs, given['n_token'])
  if any(a >= b for a, b in zip(ends, ends[1:], strict=False)):
    raise UserError(f'reference checkpoint: cutoffs={list(cutoffs)} must rise, above 0 and below '
                    f'n_token={given["n_token"]}')
  div_val = given.get('div_val', 1)
  if div_val > 1 and not cutoffs:
    raise UserError(f'reference checkpoint: {div_val=} without cutoffs is not covered')
  if div_val < 1 or given['d_model'] % div_val ** len(cutoffs):
    raise UserError(f'reference checkpoint: {div_val=} to the power of {len(cutoffs)}, the number '
                    f'of cutoffs, does not divide d_model={given["d_model"]}')
  ties: tuple[bool, ...] = ()
  if cutoffs and div_val > 1:
    ties = tuple(given.get('tie_projs') or (
      (False,) + (True,) * len(cutoffs) if given.get('proj_share_all_but_first', True)
      else (False,) * (len(cutoffs) + 1)))
    if len(ties) != len(cutoffs) + 1:
      raise UserError(f'reference checkpoint: tie_projs has {len(ties)} values, there are '
                      f'{len(cutoffs) + 1} clusters')
  return ModelConfig(
    **{ours: given[theirs] for theirs, ours in NAMES.items()},
    cutoffs=cutoffs, div_val=div_val, tie_projections=ties, vocab_multiple=vocab_multiple,
    clamp_len=given.get('clamp_len', -1),
    norm='pre' if given.get('pre_lnorm', False) else 'post',
    tie_position_biases=not given.get('untie_r', False),
    hidden_dropout=float(given.get('dropout', 0.0)),
    attention_dropout=float(given.get('dropatt', 0.0)),
    dtype=dtype)


def reference_notes(reference: Mapping[str, Any]) -> list[str]:
  """What arguments say that weights do not depend on and that is otherwise here, in lines."""
  if not reference.get('same_length'):
    return []
  return ['same_length=true of its arguments is left out: there every token sees mem_len keys '
          'before it, here the whole memory and its segment up to itself. The weights are the '
          'same; its likelihoods differ a little from those of its own code']


def cluster_order(reference: Mapping[str, Any]) -> int:
  """Step through the rows of the cluster weights: -1 where tail i (from 1) has row C - i.

  The authors' PyTorch code indexes the gates from the end; their TensorFlow code, and with it the
  published checkpoints and what reads them, from the start.
  """
  orders = {'reversed': -1, 'forward': 1}
  published = 'n_token' not in reference or 'model_type' in reference
  name = reference.get('cluster_order', 'forward' if published else 'reversed')
  if not isinstance(name, str) or name not in orders:
    raise UserError(f"reference checkpoint: cluster_order='{name}' is not one of reversed, forward")
  return orders[name]


def _checked(reference: Mapping[str, Any]) -> dict[str, Any]:
  """The arguments under the constructor's names, none missing or of another type; null is absent.

  Raises:
    UserError: what is wrong, all of it.
  """
  given = {name: value for name, value in reference.items() if value is not None}
  if 'n_token' not in given and 'vocab_size' in given:  # as published checkpoints call it
    given['n_token'] = given['vocab_size']
  given.setdefault('tgt_len', 128)  # the published evaluation's; weights do not depend on it
  missing = sorted(NAMES.keys() - given.keys())
  if missing:
    raise UserError(f'reference checkpoint: constructor arguments lack: {", ".join(missing)}')
  wrong = []
  for name, kind in (dict.fromkeys(NAMES, _WHOLE) | _KINDS).items():
    if name in given and not _is(given[name], kind):
      wrong.append(f'{name}={_short(given[name])} is not {kind}')
    elif name in NAMES and given[name] < (0 if name in _LENGTHS else 1):
      wrong.append(f'{name}={given[name]} is too small')
  for name, kind in _LISTS.items():
    found = given.get(name, [])
    if not (isinstance(found, list | tuple) and all(_is(value, kind) for value in found)):
      wrong.append(f'{name}={_short(found)} is not a list, of which each is {kind}')
  if wrong:
    raise UserError(f'reference checkpoint: constructor arguments: {"; ".join(wrong)}')
  return given


def _is(value: Any, kind: str) -> bool:
  if kind == _BOOL or isinstance(value, bool):
    return kind == _BOOL and isinstance(value, bool)
  return isinstance(value, int if kind == _WHOLE else int | float)


def _short(value: Any) -> str:
  text = repr(value)
  return text if len(text) <= _SHOWN else f'{text[:_SHOWN]}...'
