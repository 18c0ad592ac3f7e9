"""The Transformer-XL language model, with counterfactual branches fused into its forward pass.

Dai et al. 2019 (arXiv:1901.02860). Huang et al. 2020 (arXiv:1911.03064), section 4, compares
h(x_1:i) with h(x~_1:i) where only token i differs: in a causal model both share everything before
i, so the counterfactual is a *branch* of a few more queries, not a second sequence.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fairjax.config import ModelConfig
from fairjax.model import partitioning
from fairjax.model.attention import drop, sinusoids
from fairjax.model.causal_lm import (
  REMAT,
  Branches,
  CausalLM,
  Documents,
  Memory,
  Output,
  Pairs,
  Params,
  at_pieces,
  at_places,
  init_memory,
  wide,
)
from fairjax.model.decoding import TransformerXLDecoder
from fairjax.model.layers import Block, Context, States, at_positions, extend, keep_mask, layer_norm
from fairjax.model.likelihood import mean_nll, token_nll
from fairjax.model.softmax import Parameter, all_logits, embed_tokens, parameter_table


class TransformerXL(nn.Module):
  """Language model over segments with memory.

  Parameters (float32; float64 for a float64 model): those of embedding and softmax, which are tied
  (`fairjax.model.softmax.parameter_table`); `content_bias` and `position_bias` [N, H] (u and v;
  inside `layers` as [L, N, H] unless `tie_position_biases`); `layers`, stacked on axis 0 (see
  `Block`); `final_norm_scale` and `final_norm_bias` [D] with `final_norm`.
  """

  config: ModelConfig

  def setup(self):
    """Declares the parameters."""
    c = self.config
    self.dtype = jnp.dtype(c.dtype)
    param_dtype = jnp.promote_types(self.dtype, jnp.float32)
    normal = nn.initializers.normal(c.init_std)

    def param(name, init, shape, axes):
      return self.param(name, nn.with_logical_partitioning(init, axes), shape, param_dtype)

    self.softmax = {name: param(name, _initial(p), p.shape, p.axes)
                    for name, p in parameter_table(c).items()}
    self.position_biases = ()
    if c.tie_position_biases:
      self.position_biases = tuple(
        param(name, normal, (c.num_heads, c.head_dim), ('heads', 'head_dim'))
        for name in ('content_bias', 'position_bias'))
    if c.final_norm:
      self.final_norm = (
        param('final_norm_scale', nn.initializers.ones, (c.model_dim,), (None,)),
        param('final_norm_bias', nn.initializers.zeros, (c.model_dim,), (None,)))
    block = Block
    if c.remat != 'none':
      block = nn.remat(Block, policy=REMAT[c.remat], prevent_cse=False)
    layers = nn.scan(
      block, variable_axes={'params': 0}, split_rngs={'params': True},
      in_axes=(0, 0, nn.broadcast, nn.broadcast), out_axes=0, length=c.num_layers,
      unroll=c.scan_unroll, metadata_params={nn.PARTITION_NAME: 'layers'})
    if c.scan_unroll < c.num_layers and not self.is_initializing():
      # The cast stands before the loop. Inside it, the backward pass would keep every layer's
      # weights a second time and stack all gradients at twice their width. Without a loop nothing
      # is stacked, and the cast fuses with the product.
      layers = nn.map_variables(layers, 'params', trans_in_fn=self._cast)
    self.layers = layers(c)

  def __call__(
    self,
    tokens: Int[Array, 'B T'],
    memory: Memory,
    branches: Branches | None = None,
    *,
    positions: Int[Array, 'B K'] | None = None,
    train: bool = False,
  ) -> Output:
    """Reads one segment.

    Arguments as in `CausalLM.apply`; T may differ from `config.segment_len`. Values and gradients
    of branches are exactly those of separate passes over (x_1, ..., x_start-1, pieces): see
    `branch_attention`. Branches never write memory.

    `train`: dropout on. Needs the rng stream 'dropout' if a rate is positive. A branch piece uses
    the masks of the position that it replaces (the last one those of `original_end`), so that a
    branch identical to the original gives the identical h-bar.
    """
    c = self.config
    key = None
    if train and max(c.hidden_dropout, c.attention_dropout) > 0:
      key = self.make_rng('dropout')
    key_layers, key_in, key_distance, key_extra, key_out = (
      (None,) * 5 if key is None else jax.random.split(key, 5))
    context = self._context(tokens.shape, memory, branches, (key_distance, key_extra))
    keep_in, keep_out = (
      keep_mask(k, tokens.shape + (c.model_dim,), rate=c.hidden_dropout)
      for k in (key_in, key_out))
    ids = tokens
    if branches is not None:
      pieces = branches.tokens.astype(tokens.dtype)
      ids = jnp.concatenate([tokens, pieces.reshape(tokens.shape[0], -1)], axis=1)
    embedded = drop(
      embed_tokens(self.softmax, c, ids), extend(keep_in, context.replaced),
      rate=c.hidden_dropout)
    reads_two_layers = branches is not None or positions is not None
    states = States(
      now=partitioning.constrain(embedded, 'rows'), before=embedded if reads_two_layers else None)
    biases = tuple(jnp.asarray(b, self.dtype) for b in self.position_biases)
    layer_keys = None if key is None else jax.random.split(key_layers, c.num_layers)
    states, kept = self.layers(states, memory.hidden, layer_keys, biases, context)
    length = jnp.minimum(memory.length + tokens.shape[1], memory.size)
    main, *before = (
      x[:, :tokens.shape[1]] for x in (states.now, states.before) if x is not None)
    read_by_softmax = drop(self._final(main), keep_out, rate=c.hidden_dropout)
    h_bar_at = None
    if positions is not None:
      h_bar_at = self._h_bar(at_places(main, positions), at_places(before[0], positions))
    return Output(
      hidden=partitioning.constrain(read_by_softmax, 'rows'),
      state=Memory(hidden=kept, length=length),
      pairs=self._pairs(states, read_by_softmax, branches, keep_out), h_bar_at=h_bar_at)

  def _context(self, shape, memory, branches, keys) -> Context:
    """Lengths, embedded distances and positions of branches, which all layers share."""
    c = self.config
    segment_len, memory_len = shape[1], memory.size
    num_pieces = 0 if branches is None else branches.tokens.shape[2]
    distances = jnp.asarray(sinusoids(
      num_distances=memory_len + segment_len + num_pieces, model_dim=c.model_dim,
      clamp_len=c.clamp_len), self.dtype)
    # Distances that only branches reach have a dropout key of their own, so that the segment's
    # masks are the same with and without branches.
    keeps = [
      keep_mask(key, (n, c.model_dim), rate=c.hidden_dropout)
      for key, n in zip(keys[::-1], (num_pieces, memory_len + segment_len), strict=True)]
    keep = None if keeps[0] is None else jnp.concatenate(keeps)
    context = Context(
      memory_length=memory.length, distances=drop(distances, keep, rate=c.hidden_dropout))
    if branches is None:
      return context
    piece = np.arange(num_pieces)[None, None, :]
    end = branches.original_end[:, :, None]
    value_end = branches.value_end[:, :, None]
    replaced = jnp.where(
      piece == value_end, end, jnp.minimum(branches.start[:, :, None] + piece, end))
    if branches.tail is not None:
      after = jnp.minimum(end + piece - value_end, shape[1] - 1)
      replaced = jnp.where(piece > value_end, after, replaced)
    return dataclasses.replace(context, start=branches.start, replaced=replaced)

  def _cast(self, weights):
    return jax.tree.map(lambda x: x.astype(self.dtype), weights)

  def _final(self, x):
    """Final norm, where the model has one."""
    if not self.config.final_norm:
      return x
    return layer_norm(x, *(p.astype(self.dtype) for p in self.final_norm))

  def _h_bar(self, last, before):
    """Mean of the outputs of the last two layers (H-20), in float32 or wider."""
    if self.config.h_bar_final_norm:
      last = self._final(last)
    return 0.5 * (wide(last) + wide(before))

  def _pairs(self, states, hidden, branches, keep_out) -> Pairs | None:
    """Reads both sides of every pair."""
    if branches is None:
      return None
    segment_len, shape = hidden.shape[1], branches.tokens.shape
    end, (here, there, _) = branches.original_end, branches.compared()
    main, main_before = (x[:, :segment_len] for x in (states.now, states.before))
    branch, branch_before = (
      at_pieces(x[:, segment_len:].reshape(*shape, -1), there) for x in (states.now, states.before))
    last = branch
    if branches.tail is not None:
      last = at_pieces(states.now[:, segment_len:].reshape(*shape, -1), branches.value_end)
    keep = None
    if keep_out is not None:
      keep = at_positions(keep_out, end[:, :, None])[:, :, 0]
    return Pairs(
      h_bar=self._h_bar(at_places(main, here), at_places(main_before, here)),
      h_bar_branch=self._h_bar(branch, branch_before),
      hidden=at_places(hidden, end),
      hidden_branch=drop(self._final(last), keep, rate=self.config.hidden_dropout))


def _initial(parameter: Parameter):
  """Normal draws; rows that pad the vocabulary are 0, so that padding changes no other number."""
  def init(key, shape, dtype):
    drawn = (parameter.rows, *shape[1:])
    rows = nn.initializers.normal(parameter.std)(key, drawn, dtype)
    return jnp.pad(rows, [(0, shape[0] - drawn[0])] + [(0, 0)] * (len(shape) - 1))

  return init if parameter.std else nn.initializers.zeros


@dataclasses.dataclass(frozen=True)
class TransformerXLModel(CausalLM['Memory']):
  """`TransformerXL` as a `CausalLM`; its state is its memory."""

  config: ModelConfig

  def reading(self, *, segment_len: int, memory_len: int) -> 'TransformerXLModel':
    """See `CausalLM`."""
    return TransformerXLModel(dataclasses.replace(
      self.config, segment_len=segment_len, memory_len=memory_len))

  def init(self, key: Array) -> Params:
    """See `CausalLM`."""
    # Parameters depend neither on lengths nor on how attention is computed.
    shortest = dataclasses.replace(self.config, memory_len=1, attention='shift')
    tokens = jnp.zeros((1, 1), jnp.int32)
    return TransformerXL(shortest).init(key, tokens, init_memory(shortest, 1))['params']

  def init_state(self, batch_size: int, *, cached: bool = False) -> Memory:
    """See `CausalLM`."""
    return init_memory(self.config, batch_size, cached=cached)

  def state_axes(self, *, cached: bool = False) -> Memory:
    """See `CausalLM`."""
    return Memory(hidden=(None, None, 'heads', 'rows') if cached else (None, 'rows'),
                  length=('rows',))

  def apply(
    self, params: Params, tokens: Int[Array, 'B T'], state: Memory,
    branches: Branches | None = None, *, positions: Int[Array, 'B K'] | None = None,
    documents: Documents | None = None, dropout_key: Array | None = None,
  ) -> Output:
    """See `CausalLM`."""
    if documents is not None:
      raise ValueError('a Transformer-XL keeps its memory across documents')
    return cast(Output, TransformerXL(self.config).apply(
      {'params': params}, tokens, state, branches, positions=positions,
      train=dropout_key is not None,
      rngs=None if dropout_key is None else {'dropout': dropout_key}))

  def logits(self, params: Params, hidden: Float[Array, '*S D']) -> Float[Array, '*S V']:
    """See `CausalLM`; log-probabilities for an adaptive softmax."""
    return all_logits(params, self.config, hidden)

  def nll(
    self, params: Params, hidden: Float[Array, 'B T D'], targets: Int[Array, 'B T']
  ) -> Float[Array, 'B T']:
    """See `CausalLM`."""
    return token_nll(params, self.config, hidden, targets)

  def mean_nll(
    self, params: Params, hidden: Float[Array, 'B T D'], targets: Int[Array, 'B T']
  ) -> Float[Array, '']:
    """See `CausalLM`."""
    return mean_nll(params, self.config, hidden, targets)

  def decoder(self) -> TransformerXLDecoder:
    """See `CausalLM`."""
    return TransformerXLDecoder(self.config)


def language_model(config: ModelConfig) -> CausalLM:
  """Makes the Transformer-XL of a configuration, which has its vocabulary size."""
  return TransformerXLModel(config)


def parameter_counts(config: ModelConfig) -> dict[str, int]:
  """Counts of parameters by their shapes, without rows that only pad the vocabulary.

  `total`, of which `layers` (with position biases and final norm) and `embedding` (with the
  softmax, which is tied to it).
  """
  abstract = nn.unbox(jax.eval_shape(TransformerXLModel(config).init, jax.random.key(0)))
  table = parameter_table(config)
  embedding = sum(math.prod((p.rows, *p.shape[1:])) for p in table.values())
  rest = {name: value for name, value in abstract.items() if name not in table}
  layers = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(rest))
  return {'total': layers + embedding, 'layers': layers, 'embedding': embedding}


def format_parameters(counts: Mapping[str, int]) -> str:
  """Formats the result of `parameter_counts`: '1.5 M parameters: 1.0 M in the layers, ...'."""
  total, layers, embedding = (counts[k] / 1e6 for k in ('total', 'layers', 'embedding'))
  return (f'{total:.1f} M parameters: {layers:.1f} M in the layers, {embedding:.1f} M in embedding '
          'and softmax')
