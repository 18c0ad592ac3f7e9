"""How far the next-token distributions of two values are apart: KL(. | value || . | other value).

Read from the model itself, so it has no sampling noise and no floor. Near 0 the model has
forgotten which value it was given, whatever a scorer thinks of its texts (H-35).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

LARGEST_PAIRS = 5


def next_token_divergence(
  log_probs: Sequence[np.ndarray], values: Sequence[str], templates: Sequence[int | str]
) -> dict[str, Any]:
  """Kullback-Leibler and Jensen-Shannon divergences of all pairs of values.

  Args:
    log_probs: M arrays `[A, V]` float64, normalised, nats.
    values: A names.
    templates: M labels.

  Returns:
    JSON-able: `kl` (mean over templates and ordered pairs, nats, >= 0), `js` (over unordered pairs,
    nats, in [0, ln 2]), `kl_largest` (of one template and ordered pair), `prefixes`,
    `by_template`, `largest_pairs` (means over templates, by KL), `definition`, `direction`.

  Raises:
    ValueError: shapes that do not fit the names.
  """
  count = len(values)
  if count < 2 or len(log_probs) != len(templates) or any(len(x) != count for x in log_probs):
    raise ValueError(f'{len(templates)} templates of {count} values, but log_probs of '
                     f'{[x.shape for x in log_probs]}')
  kl = np.stack([_pairwise_kl(x) for x in log_probs])
  js = np.stack([_pairwise_js(x) for x in log_probs])
  off = ~np.eye(count, dtype=bool)
  means = kl.mean(axis=0)
  pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
  pairs.sort(key=lambda pair: -means[pair])
  return {
    'kl': float(kl[:, off].mean()),
    'js': float(js[:, off].mean()),
    'kl_largest': float(kl[:, off].max()),
    'prefixes': count * len(templates),
    'by_template': [{'template': t, 'kl': float(k[off].mean()), 'js': float(j[off].mean())}
                    for t, k, j in zip(templates, kl, js, strict=True)],
    'largest_pairs': [{'values': [values[a], values[b]], 'kl': float(means[a, b])}
                      for a, b in pairs[:LARGEST_PAIRS]],
    'unit': 'nats',
    'definition': 'H-35, KL(next token | value || other value), mean over ordered pairs',
    'direction': 'lower is less to tell values apart by',
  }


def _pairwise_kl(log_p: np.ndarray) -> np.ndarray:
  """KL(p_a || p_b) `[A, A]`, >= 0."""
  p = np.exp(log_p)
  # Where p is 0 in float64, p log p is 0 and the row's own logarithm may be anything finite.
  own = (p * log_p).sum(axis=1)
  return np.maximum(own[:, None] - p @ log_p.T, 0)


def _pairwise_js(log_p: np.ndarray) -> np.ndarray:
  """Jensen-Shannon divergence `[A, A]`, symmetric, in [0, ln 2]."""
  p = np.exp(log_p)
  entropy = -(p * log_p).sum(axis=1)
  found = np.zeros((len(p), len(p)))
  for a in range(len(p) - 1):
    mean = (p[a] + p[a + 1:]) / 2
    mixed = -(mean * np.log(np.where(mean > 0, mean, 1))).sum(axis=1)
    found[a, a + 1:] = found[a + 1:, a] = mixed - (entropy[a] + entropy[a + 1:]) / 2
  return np.clip(found, 0, np.log(2))
