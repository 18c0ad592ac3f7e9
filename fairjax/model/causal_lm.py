"""What goes into a forward pass of the Transformer-XL besides tokens, and what comes out.

Letters: B batch rows, T segment length, M memory length, K branches per row, P pieces per branch,
D model width, L layers. Fields are pytree leaves: whole trees of shardings or of
`jax.ShapeDtypeStruct` take the same form, so they are annotated `Any` and a comment says the shape.
"""

from collections.abc import Mapping
from typing import Any

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool

from fairjax.config import ModelConfig


@flax.struct.dataclass
class Memory:
  """What the tokens before a segment left (Dai et al. 2019, section 3.2).

  In training row l holds what layer l read: the embedding for l = 0, the output of layer l - 1
  otherwise, so that the weights of keys and values get gradients through it. With parameters that
  stay the same its keys and values are kept instead, which need not be computed again.
  """

  # [L, B, M, D], or [L, 2, N, B, M, H] keys and values; in the compute dtype, the newest state in
  # the last slot.
  hidden: Any
  length: Any  # [B] int32 in [0, M]: newest slots that hold a state; the others are never read

  @property
  def size(self) -> int:
    """M."""
    return self.hidden.shape[-2]

  def reset(self, mask: Bool[Array, 'B']) -> 'Memory':
    """Forgets the rows where `mask` is true: nothing of their memory is read again.

    Args:
      mask: `[B]` bool, true where a new stream starts.

    Returns:
      The memory with length 0 in those rows.
    """
    return self.replace(length=jnp.where(mask, 0, self.length))


@flax.struct.dataclass
class Branches:
  """Counterfactual continuations of prefixes of a row (the batch builder lays them out).

  Branch k of a row says: up to position start - 1 the row as it is, then these pieces. Branches
  with length 0 are padding; what comes out for them is finite and means nothing.
  """

  tokens: Any  # [B, K, P] int32, 0 behind the branch's length
  start: Any  # [B, K] int32 in [0, T), the position of the first piece
  length: Any  # [B, K] int32 in [0, P]
  original_end: Any  # [B, K] int32 in [start, T), last position of the span that is replaced
  weight: Any  # [B, K] float32 >= 0, 0 for padding

  @classmethod
  def from_batch(cls, batch: Mapping[str, Any]) -> 'Branches':
    """Takes the branch arrays out of a batch of the counterfactual feature converter.

    Raises:
      KeyError: if branch_tokens, branch_start, branch_len, original_end or branch_weight lacks.
    """
    return cls(
      tokens=batch['branch_tokens'], start=batch['branch_start'], length=batch['branch_len'],
      original_end=batch['original_end'], weight=batch['branch_weight'])


@flax.struct.dataclass
class Pairs:
  """States of a prefix and of its counterfactual, read at the last token of each.

  `h_bar` is the mean of the outputs of the last two layers (H-20), the last one after the final
  norm only with `h_bar_final_norm`, in float32 or wider; `hidden` is what the softmax reads there.
  """

  h_bar: Any  # [B, K, D]
  h_bar_branch: Any  # [B, K, D]
  hidden: Any  # [B, K, D] in the compute dtype
  hidden_branch: Any  # [B, K, D]


@flax.struct.dataclass
class Output:
  """Result of one segment."""

  hidden: Any  # [B, T, D] in the compute dtype, input of `TransformerXL.logits`
  memory: Memory  # for the next segment; carries no gradient
  pairs: Pairs | None  # when branches were given
  h_bar_at: Any  # [B, K, D] when positions were given, else None


def init_memory(config: ModelConfig, batch_size: int, *, cached: bool = False) -> Memory:
  """Builds an empty memory, with which a stream starts.

  Args:
    config: of the model.
    batch_size: B.
    cached: keep keys and values, for evaluation; the same outputs with less work.

  Returns:
    Zeros of shape `[L, B, M, D]`, or `[L, 2, N, B, M, H]`, in the compute dtype, none of them
    valid.
  """
  c = config
  shape = (c.num_layers, batch_size, c.memory_len, c.model_dim)
  if cached:
    shape = (c.num_layers, 2, c.num_heads, batch_size, c.memory_len, c.head_dim)
  return Memory(
    hidden=jnp.zeros(shape, jnp.dtype(c.dtype)), length=jnp.zeros((batch_size,), jnp.int32))
