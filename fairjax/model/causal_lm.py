"""The protocol of causal language models, and the inputs and outputs of its forward pass.

Training steps, the curriculum, the evaluation and the measures name `CausalLM`, never a model;
`fairjax.model.language_model` makes a Transformer-XL.

Fields are pytree leaves: whole trees of shardings or of `jax.ShapeDtypeStruct` take the same form,
so they are annotated `Any` and a comment says the shape.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fairjax.config import ModelConfig
from fairjax.model.decoder_config import DecoderConfig
from fairjax.model.decoding import Decoder

Params = Any
"""Parameters of a model: a nested dictionary of arrays."""


REMAT = {'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
         'full': jax.checkpoint_policies.nothing_saveable}
"""What the forward pass saves, by `remat`; absent is none, which saves everything."""


@flax.struct.dataclass
class Memory:
  """State of a Transformer-XL: what the tokens before a segment left (Dai et al. 2019, sec. 3.2).

  In training row l holds the input of layer l, the embedding for l = 0, so that the weights of keys
  and values get gradients through it. For constant parameters it holds keys and values instead.
  """

  # [L, B, M, D], or [L, 2, N, B, M, H] keys and values; in the compute dtype, the newest token in
  # the last slot.
  hidden: Any
  length: Any  # [B] int32 in [0, M]: number of newest slots that are valid; others are never read

  @property
  def size(self) -> int:
    """M."""
    return self.hidden.shape[-2]

  def reset(self, mask: Bool[Array, 'B']) -> 'Memory':
    """Sets the length to 0 in the rows where `mask` is true: a new text starts there."""
    return dataclasses.replace(self, length=jnp.where(mask, 0, self.length))


def split_rows(x: jax.Array, parts: int, *, axis: int = 0) -> jax.Array:
  """Part i, on a new leading axis, has the rows i, i + parts, ... of an axis."""
  # So every device has the same share of its own rows in each part.
  shape = (*x.shape[:axis], x.shape[axis] // parts, parts, *x.shape[axis + 1:])
  return jnp.moveaxis(x.reshape(shape), axis + 1, 0)


def join_rows(x: jax.Array, *, axis: int = 0) -> jax.Array:
  """Inverts `split_rows`."""
  whole = jnp.moveaxis(x, 0, axis + 1)
  return whole.reshape(*whole.shape[:axis], -1, *whole.shape[axis + 2:])


@flax.struct.dataclass
class Branches:
  """Counterfactual continuations of prefixes of a row (the batch builder lays them out).

  Branch k of a row reads the row up to position start - 1, then its own pieces. Branches of length
  0 are padding; their outputs are finite and arbitrary.
  """

  tokens: Any  # [B, K, P] int32, 0 after the branch's length
  start: Any  # [B, K] int32 in [0, T), the position of the first piece
  length: Any  # [B, K] int32 in [0, P]
  original_end: Any  # [B, K] int32 in [start, T), last position of the span that is replaced
  weight: Any  # [B, K] float32 >= 0, 0 for padding
  # [B, K, N] bool: the branch goes on with the next tokens of the row; None: it ends with the value
  tail: Any = None

  @classmethod
  def from_batch(cls, batch: Mapping[str, Any]) -> 'Branches':
    """Takes the branch arrays of a batch; KeyError where one is missing."""
    return cls(
      tokens=batch['branch_tokens'], start=batch['branch_start'], length=batch['branch_len'],
      original_end=batch['original_end'], weight=batch['branch_weight'],
      tail=batch.get('branch_tail'))

  @property
  def value_end(self) -> Int[Array, 'B K']:
    """The piece at which the new value ends; 0 for padding."""
    tail = 0 if self.tail is None else self.tail.sum(-1, dtype=jnp.int32)
    return jnp.maximum(self.length - 1 - tail, 0)

  def compared(self) -> tuple[Int[Array, 'B J'], Int[Array, 'B J'], Float[Array, 'B J']]:
    """Where h-bar is compared, J = K (1 + N): places in the row, pieces, weights.

    Those are the end of the value and every token after it; they share the weight of the branch.
    """
    if self.tail is None:
      return self.original_end, self.value_end, self.weight
    used = jnp.concatenate([jnp.ones_like(self.tail[..., :1]), self.tail], axis=-1)
    after = jnp.arange(used.shape[-1], dtype=jnp.int32)[None, None] * used
    share = self.weight / used.sum(-1)
    places, pieces, weights = (x.reshape(x.shape[0], -1) for x in (
      self.original_end[..., None] + after, self.value_end[..., None] + after,
      share[..., None] * used))
    return places, pieces, weights


def wide(x: Any) -> Any:
  """Casts an array to float32 unless it is wider already."""
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def at_pieces(
  states: Float[Array, 'B K P D'], pieces: Int[Array, 'B J']
) -> Float[Array, 'B J D']:
  """States of branches at pieces of them, as many of each of the K branches."""
  pieces = pieces.reshape(*states.shape[:2], -1)
  found = jnp.take_along_axis(states, pieces[..., None], axis=2)
  return found.reshape(found.shape[0], -1, found.shape[-1])


def at_places(x: Float[Array, 'B T D'], places: Int[Array, 'B J']) -> Float[Array, 'B J D']:
  """States at places of a row, as an exact matmul: its gradient is no scatter."""
  chosen = jax.nn.one_hot(places, x.shape[1], dtype=x.dtype)
  return jnp.einsum('bkt,btd->bkd', chosen, x, precision=jax.lax.Precision.HIGHEST)


@flax.struct.dataclass
class Documents:
  """The documents of a row, which do not see each other."""

  segment_ids: Any  # [B, T] int32, the number of the document; -1 for padding
  positions: Any  # [B, T] int32, from 0 at the first token of each document

  @classmethod
  def from_batch(cls, batch: Mapping[str, Any]) -> 'Documents | None':
    """Takes the arrays of a batch; None where its rows are pieces of one text."""
    return cls(batch['segment_ids'], batch['positions']) if 'segment_ids' in batch else None


@flax.struct.dataclass
class Pairs:
  """States of a prefix and of its counterfactual.

  `h_bar` is read where `Branches.compared` says, `hidden` (the input of the softmax) at the end of
  the value. `h_bar` is the mean of the outputs of the last two layers (H-20), in float32 or wider;
  the configuration says whether a norm comes before.
  """

  h_bar: Any  # [B, J, D]
  h_bar_branch: Any  # [B, J, D]
  hidden: Any  # [B, K, D] in the compute dtype
  hidden_branch: Any  # [B, K, D]


@flax.struct.dataclass
class Output:
  """Result of one segment."""

  hidden: Any  # [B, T, D] in the compute dtype, input of `CausalLM.logits`
  state: Any  # a `State` for the next segment; carries no gradient
  pairs: Pairs | None  # with branches
  h_bar_at: Any  # [B, K, D] with positions, else None


@runtime_checkable
class State(Protocol):
  """State that a segment passes to the next one; a pytree, perhaps without a leaf.

  Rows are on axis 0 of leaves with one axis, on axis 1 of others (behind that of the layers).
  """

  def reset(self, mask: Bool[Array, 'B']) -> 'State':
    """Forgets the rows where `mask` is true."""


S = TypeVar('S', bound=State)


@runtime_checkable
class CausalLM(Protocol[S]):
  """A causal language model as pure functions of its parameters.

  A model is hashable and equal to every other of the same configuration, so that compiled programs
  are cached by it.
  """

  config: ModelConfig | DecoderConfig

  def __hash__(self) -> int:
    """That of the configuration."""
    return hash(self.config)

  def reading(self, *, segment_len: int, memory_len: int) -> 'CausalLM':
    """The same model for segments of another length that keep another number of tokens.

    Its parameters fit. A model that keeps nothing between segments is its own.
    """

  def init(self, key: Array) -> Params:
    """Draws parameters, boxed with their logical axes (`flax.linen.Partitioned`)."""

  def init_state(self, batch_size: int, *, cached: bool = False) -> S:
    """The state at the beginning of every row's text.

    `cached` keeps keys and values instead of hidden states, for constant parameters: the same
    outputs with less work.
    """

  def state_axes(self, *, cached: bool = False) -> S:
    """A tuple of logical axes (or None for an axis that is not split) at each leaf of the state."""

  def apply(
    self, params: Params, tokens: Int[Array, 'B T'], state: S,
    branches: Branches | None = None, *, positions: Int[Array, 'B K'] | None = None,
    documents: Documents | None = None, dropout_key: Array | None = None,
  ) -> Output:
    """Reads one segment, and its counterfactual branches in the same pass.

    Args:
      params: of `init`, unboxed.
      tokens: `[B, T]` int32 in [0, V).
      state: of `init_state` or of the previous segment's `Output`.
      branches: counterfactuals. Values and gradients are those of separate passes.
      positions: `[B, K]` int32 in [0, T): where to return h-bar of the segment; any K.
      documents: of each row; None: a row is one text. Only for models without memory.
      dropout_key: of the dropout masks; None: no dropout.
    """

  def logits(self, params: Params, hidden: Float[Array, '*S D']) -> Float[Array, '*S V']:
    """Logits of the next token, float32 or wider, for few positions."""

  def nll(
    self, params: Params, hidden: Float[Array, 'B T D'], targets: Int[Array, 'B T']
  ) -> Float[Array, 'B T']:
    """Negative log-likelihood of the next tokens, nats, without all logits in memory."""

  def mean_nll(
    self, params: Params, hidden: Float[Array, 'B T D'], targets: Int[Array, 'B T']
  ) -> Float[Array, '']:
    """Mean of `nll`, for training; differentiable once."""
    return jnp.mean(self.nll(params, hidden, targets))

  def decoder(self) -> Decoder:
    """Cached decoding with the same parameters, for sampling."""


def init_memory(config: ModelConfig, batch_size: int, *, cached: bool = False) -> Memory:
  """An empty memory, with which a text starts: zeros in the compute dtype, none of them valid.

  `[L, B, M, D]`, or `cached` `[L, 2, N, B, M, H]`; see `CausalLM.init_state`.
  """
  c = config
  shape: tuple[int, ...] = (c.num_layers, batch_size, c.memory_len, c.model_dim)
  if cached:
    shape = (c.num_layers, 2, c.num_heads, batch_size, c.memory_len, c.head_dim)
  return Memory(
    hidden=jnp.zeros(shape, jnp.dtype(c.dtype)), length=jnp.zeros((batch_size,), jnp.int32))
