"""Which parameters a further training may move: none of the embedding, or of the first k layers.

Webster et al. 2020, section 6 and figure 2 (W-19): from no frozen layer over E, the embedding, up
to all layers but the last. Freezing k layers freezes the embedding too, as the figure counts. An
output table that is tied to the embedding is frozen with it.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fairjax.errors import UserError
from fairjax.pretrained.architecture import Architecture

NONE, EMBEDDING, ALL = 'none', 'embedding', 'all'
_EMBEDDING = ('embeddings', 'projection')
_BODY = (*_EMBEDDING, 'layers', 'final_norm')


def parse_freeze(text: str, arch: Architecture, *, where: str = '--freeze') -> int:
  """Frozen layers that a word asks for: -1 for 'none', 0 for 'embedding', k, L for 'all'.

  Args:
    text: 'none', 'embedding', 'all', or a number of layers from 1 to L.
    arch: of the model.
    where: the option, for messages.

  Raises:
    UserError: something else, or layers of an ALBERT, which share their parameters.

  >>> from fairjax.pretrained.architecture import read_architecture
  >>> small = dict(model_type='gpt2', vocab_size=9, n_embd=4, n_layer=3, n_head=1, n_positions=8)
  >>> arch = read_architecture(small, where='x')
  >>> [parse_freeze(word, arch) for word in ('none', 'embedding', '2', 'all')]
  [-1, 0, 2, 3]
  """
  if text in (NONE, EMBEDDING, ALL):
    return {NONE: -1, EMBEDDING: 0, ALL: arch.num_layers}[text]
  if not text.isdecimal() or not 1 <= int(text) <= arch.num_layers:
    raise UserError(f"{where}: '{text}' is not none, embedding, all, or a number of layers from 1 "
                    f'to {arch.num_layers}')
  if int(text) < arch.num_layers and arch.kind == 'albert':
    raise UserError(f'{where}={text}: the layers of an ALBERT share their parameters, so that the '
                    'first of them cannot be frozen: give none, embedding or all')
  return int(text)


def trainable_mask(params: Mapping[str, Mapping[str, Any]], arch: Architecture, freeze: str
                   ) -> dict[str, dict[str, np.ndarray]]:
  """What may move, for every array of parameters (`names`).

  Heads (pooler, classes, masked tokens) always may.

  Args:
    params: of the model; only their names and numbers of axes are read.
    arch: of the same model.
    freeze: see `parse_freeze`.

  Returns:
    The same tree of float32 arrays of 0 (frozen) and 1: `[1, ...]` with one number for the whole
    array, or `[L, 1, ...]` for stacked layers; they can be multiplied with the parameters.

  Raises:
    UserError: as `parse_freeze`.
  """
  layers = parse_freeze(freeze, arch)

  def mask(group, array):
    shape = (1,) * np.ndim(array)
    if group == 'layers':
      moves = np.arange(np.shape(array)[0]) >= layers
      if layers >= arch.num_layers:  # ALBERT stacks fewer than it applies
        moves[:] = False
      return moves.astype(np.float32).reshape(-1, *shape[1:])
    frozen = (group in _EMBEDDING and layers >= 0) or (group in _BODY and layers >= arch.num_layers)
    return np.full(shape, 0.0 if frozen else 1.0, np.float32)

  return {group: {name: mask(group, array) for name, array in arrays.items()}
          for group, arrays in params.items()}


def masked(tree: Any, mask: Any) -> Any:
  """Gradients or updates with zeros at what is frozen; `mask` of `trainable_mask`."""
  return jax.tree.map(lambda a, m: a * m.astype(a.dtype), tree, mask)


def frozen_words(freeze: str) -> str:
  """The option in words, for logs and tables.

  >>> frozen_words('2')
  'embedding and the first 2 layers frozen'
  """
  fixed = {NONE: 'nothing frozen', EMBEDDING: 'embedding frozen', ALL: 'all but the head frozen'}
  return fixed.get(freeze) or f'embedding and the first {freeze} layers frozen'
