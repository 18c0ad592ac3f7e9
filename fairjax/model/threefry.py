"""Threefry-2x32 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), elementwise.

Written out here because one fused loop draws numbers several times faster on CPU than `jax.random`,
because an elementwise function is split over devices like any other, and so that no setting or
version of JAX changes a result.
"""

from typing import Any

import numpy as np

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key: tuple[Any, Any], counter: tuple[Any, Any]) -> tuple[Any, Any]:
  """The block cipher, 20 rounds, as `jax.random` uses it.

  Args:
    key: two uint32 arrays (or scalars).
    counter: two uint32 arrays; all four have one shape or are scalars.

  Returns:
    Two uint32 arrays.
  """
  keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
  a, b = counter[0] + keys[0], counter[1] + keys[1]
  for i in range(5):
    for rotation in _ROTATIONS[i % 2]:
      a = a + b
      b = a ^ (b << np.uint32(rotation) | b >> np.uint32(32 - rotation))
    a = a + keys[(i + 1) % 3]
    # Scalars first: added to the array one by one, XLA on CPU took far more temporary memory.
    b = b + (keys[(i + 2) % 3] + np.uint32(i + 1))
  return a, b
