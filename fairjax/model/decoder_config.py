"""Sizes and switches of a pretrained decoder: what its published config.json says."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """Sizes and switches of a decoder-only model."""

  vocab_size: int
  model_dim: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  ff_dim: int
  max_positions: int
  norm_eps: float
  activation: str  # of `decoder.ACTIVATIONS`
  tied: bool  # the output table is the embedding
  layer_norm: bool = False  # with mean and bias; else RMS norm (arXiv:1910.07467)
  norm_plus_one: bool = False  # the norm's scale is 1 + its weight (Gemma)
  gated: bool = True  # feed-forward with a gate (arXiv:2002.05202)
  rope_theta: float = 10000.0  # base of rotary embeddings (arXiv:2104.09864); 0: learned positions
  # (factor,), Llama 3's (factor, low, high, positions), or YaRN's (factor, fast, slow, positions,
  # stretch): of layers that have no base of their own
  rope_scaling: tuple[float, ...] = ()
  local_rope_theta: float = 0.0  # of layers with a window; 0: that of the others
  windows: tuple[int, ...] = ()  # by layer: tokens that it sees, 0: all; (): all in every layer
  qkv_bias: bool = False
  other_bias: bool = False  # in the attention's output and the feed-forward
  qk_norm: bool = False  # queries and keys are normed by head
  post_norms: bool = False  # what a block adds is normed (Gemma, OLMo)
  query_scale: float = 1.0
  embedding_scale: float = 1.0
  attention_cap: float = 0.0  # scores go through cap * tanh(x / cap) (Gemma 2); 0: they do not
  logit_cap: float = 0.0  # and logits
  h_bar: str = 'raw'  # mean of the last two layers' outputs (H-20), or of both 'normed' by the last
  # norm: in some models one dimension holds nearly all of the raw outputs' length; 'layer:N': of
  # the outputs of layer N and the one before it
  dtype: str = 'float32'  # compute: float32 | bfloat16 | float64; parameters stay float32 (64)
  remat: str = 'none'  # none | dots (keep products) | full
  scan_unroll: int = 1  # layers per iteration of the scan
  pre_norms: bool = True  # what a block reads is normed (not in OLMo)
  joint_qk_norm: bool = False  # `qk_norm` is of all heads together (OLMo)
  parallel: bool = False  # attention and feed-forward read the same (GPT-NeoX)
  rotary_share: float = 1.0  # of a head's dimensions, the first ones, that are rotated (GPT-NeoX)
  rotated: tuple[int, ...] = ()  # by layer: 0 where positions do not count (SmolLM3); (): all do

  @property
  def h_bar_layer(self) -> int:
    """The layer at which h-bar is read, from 1."""
    kind, _, number = self.h_bar.partition(':')
    return int(number) if kind == 'layer' else self.num_layers
