"""The sentiment projection f_sh: from h-bar to the sentiment of the text so far (H-19)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class SentimentProjection(nn.Module):
  """Multi-layer perceptron on h-bar (Huang et al. 2020, section 4, "sentiment regularization").

  `num_layers` matrices with ReLU between them: the paper's three layers are D -> 128 -> 128 -> 1.
  Parameters `weight_i`, `bias_i` are float32 (float64 for float64 inputs).
  """

  num_layers: int = 3
  hidden_dim: int = 128

  @nn.compact
  def __call__(
    self, h_bar: Float[Array, '*S D']
  ) -> tuple[Float[Array, '*S'], Float[Array, '*S E']]:  # E: width of the last hidden layer
    """The log-odds that the sentiment is positive, and the last hidden layer after ReLU (>= 0).

    The regulariser compares the latter (H-22); both are float32 or wider. `h_bar` is the mean of
    the outputs of the last two layers (H-20).
    """
    hidden = h_bar.astype(jnp.promote_types(h_bar.dtype, jnp.float32))
    for i in range(self.num_layers - 1):
      hidden = jax.nn.relu(self._dense(hidden, self.hidden_dim, i))
    return self._dense(hidden, 1, self.num_layers - 1)[..., 0], hidden

  def _dense(self, x, width, index):
    """Affine layer number `index`."""
    weight = self.param(f'weight_{index}', nn.initializers.lecun_normal(),
                        (x.shape[-1], width), x.dtype)
    bias = self.param(f'bias_{index}', nn.initializers.zeros, (width,), x.dtype)
    return jnp.einsum('...d,de->...e', x, weight) + bias[(None,) * (x.ndim - 1)]
