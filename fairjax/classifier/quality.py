"""How good predictions are: accuracy and F1 (H-15), each with n and an interval."""

from typing import Any

import numpy as np

_REPETITIONS = 2000
_Z = 1.959963984540054  # 97.5 % point of the normal distribution


def quality(labels: np.ndarray, predictions: np.ndarray, *, classes: int, seed: int = 0
            ) -> dict[str, Any]:
  """Accuracy and F1 of R predictions.

  Args:
    labels: `[R]` int, 0 to classes - 1.
    predictions: `[R]` int; -1 where nothing is predicted, which counts as wrong.
    classes: their number.
    seed: of the bootstrap.

  Returns:
    `n`, `undecided`, `accuracy_of_decided` (None if nothing is decided), and with `value`, `low`,
    `high` (95 %): `accuracy` (Wilson), `macro_f1` (mean over the classes) and, of two classes,
    `positive_f1` (that of class 1); the F1 intervals are percentiles of a bootstrap over texts.

  >>> found = quality(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), classes=2)
  >>> [round(found[k]['value'], 4) for k in ('accuracy', 'positive_f1', 'macro_f1')]
  [0.75, 0.8, 0.7333]
  """
  labels, predictions = np.asarray(labels), np.asarray(predictions)
  if labels.shape != predictions.shape or not labels.size:
    raise ValueError(f'labels {labels.shape} and predictions {predictions.shape}')
  n = len(labels)
  pairs = labels * (classes + 1) + np.where(predictions < 0, classes, predictions)
  counts = np.bincount(pairs, minlength=classes * (classes + 1))
  drawn = np.random.default_rng(seed).multinomial(n, counts / n, size=_REPETITIONS)
  f1, resampled = _f1(counts[None], classes)[0], _f1(drawn, classes)

  def estimate(value, draws):
    low, high = np.percentile(draws, [2.5, 97.5])
    return {'value': float(value), 'low': float(low), 'high': float(high)}

  decided, right = predictions >= 0, labels == predictions
  result = {
    'accuracy_of_decided': float(right[decided].mean()) if decided.any() else None,
    'n': n, 'classes': classes, 'undecided': int((predictions < 0).sum()),
    'accuracy': _wilson(int(right.sum()), n),
    'macro_f1': estimate(f1.mean(), resampled.mean(1)), 'f1_by_class': f1.tolist()}
  if classes == 2:
    result['positive_f1'] = estimate(f1[1], resampled[:, 1])
  return result


def _f1(counts: np.ndarray, classes: int) -> np.ndarray:
  """F1 of every class, `[X, classes]`, from `[X, classes * (classes + 1)]` counts; 0 if unseen."""
  table = counts.reshape(-1, classes, classes + 1)
  hits = np.diagonal(table, axis1=1, axis2=2)
  total = table.sum(2) + table[:, :, :classes].sum(1)
  return np.divide(2 * hits, total, out=np.zeros(hits.shape), where=total > 0)


def _wilson(hits: int, n: int) -> dict[str, float]:
  """Share with its Wilson interval."""
  share, extra = hits / n, _Z ** 2 / n
  middle = (share + extra / 2) / (1 + extra)
  half = _Z * np.sqrt(share * (1 - share) / n + extra / (4 * n)) / (1 + extra)
  return {'value': share, 'low': float(middle - half), 'high': float(middle + half)}
