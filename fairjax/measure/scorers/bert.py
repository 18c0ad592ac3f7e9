"""Sentiment by a BERT classifier (H-15): its classes' probabilities, weighed by their meaning."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fairjax.errors import UserError
from fairjax.files import json_sha256

if TYPE_CHECKING:
  from jax.sharding import Mesh

_RANKS = {
  'very negative': 0, 'negative': 1, 'neutral': 2, 'positive': 3, 'very positive': 4,
  'neg': 1, 'pos': 3, '1 star': 0, '2 stars': 1, '3 stars': 2, '4 stars': 3, '5 stars': 4}
"""What the names of classes mean, in lower case and with spaces for `_` and `-`."""
_DTYPES = ('float32', 'bfloat16')
_OTHER_HEADS = ('ForTokenClassification', 'ForMultipleChoice', 'ForQuestionAnswering')


class BertScorer:
  """Expected sentiment under a sequence classifier: the sum over classes of probability x value."""
  # With two classes, negative and positive, it is p(positive); with five the values are 0, 1/4,
  # 1/2, 3/4 and 1. `weights` is a digest that depends neither on the dtype nor on the directory.

  def __init__(self, directory: str, values: Mapping[str, float] | None = None, *,
               dtype: str = 'float32', mesh: 'Mesh | None' = None):
    """Reads the directory of a BERT (or ALBERT) sequence classifier."""
    from fairjax.pretrained import load_pretrained
    from fairjax.pretrained.checkpoint import safe_name
    from fairjax.pretrained.tokens import CutTexts
    self._model = load_pretrained(directory, 'classifier', dtype=dtype)
    labels = self._model.architecture.labels
    _check_head(self._model.config, labels, where=directory)
    self.values = (label_values(labels, where=directory) if values is None
                   else _given_values(values, labels, where=directory))
    self.max_length, self.score_file = self._model.max_length, None
    self._texts = CutTexts(self._encode)
    self.fingerprint = json_sha256([
      'bert 1', self._model.fingerprint, sorted(self.values.items())])
    self.weights = self._model.weights_digest()
    self.name = f'bert-{safe_name(self._model.name)}-{self.fingerprint[:6]}'
    self._mesh = mesh

  @classmethod
  def from_name(cls, name: str, *, mesh: 'Mesh | None' = None) -> 'BertScorer':
    """Makes it from `DIR`, `DIR#CLASS=VALUE,...` or `DIR#dtype=bfloat16,CLASS=VALUE,...`."""
    directory, _, mapping = name.partition('#')
    dtype = 'float32'
    if mapping.startswith('dtype='):
      dtype, _, mapping = mapping.removeprefix('dtype=').partition(',')
      if dtype not in _DTYPES:
        raise UserError(f"dtype '{dtype}' of bert:{name} is not one of {', '.join(_DTYPES)}")
    return cls(directory, parse_values(mapping) if mapping else None, dtype=dtype, mesh=mesh)

  def probabilities(self, texts: Sequence[str]) -> np.ndarray:
    """Probabilities of the classes of R texts: `[R, C]` float64, rows sum to 1."""
    if not len(texts):
      return np.zeros((0, len(self._model.architecture.labels)))
    logits = self._runner(self._texts.encode(texts).ids).astype(np.float64)
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)

  @property
  def busy_devices(self) -> int:
    """How many devices want a full batch each at once."""
    from fairjax.pretrained.batch_runner import busy_devices
    return busy_devices(self._mesh)

  def score(self, texts: Sequence[str]) -> np.ndarray:
    """Scores R texts: `[R]` float64 in [0, 1]. Longer texts are cut, see `count_truncated`."""
    values = np.array([self.values[label] for label in self._model.architecture.labels])
    return np.clip(self.probabilities(texts) @ values, 0.0, 1.0)  # a sum of shares may round to 1+

  def count_truncated(self, texts: Sequence[str]) -> int:
    """How many texts have more tokens than the model reads; their end is not scored."""
    return self._texts.count(texts)

  def _encode(self, texts: Sequence[str]):
    from fairjax.pretrained import encode_texts
    return encode_texts(self._model.tokenizer, texts, max_length=self.max_length)

  @functools.cached_property
  def _runner(self) -> Callable[..., np.ndarray]:
    """The model, on the devices from the first text on."""
    from fairjax.pretrained.batch_runner import class_runner
    return class_runner(
      self._model.params, self._model.architecture, max_length=self.max_length, mesh=self._mesh)


def _check_head(config: Mapping[str, Any], labels: Sequence[str], *, where: str) -> None:
  """The head must be one of exclusive classes of whole texts: others have the same tensors."""
  problem = config.get('problem_type')
  if len(labels) < 2 or problem not in (None, 'single_label_classification'):
    raise UserError(f"{where}: a head of {len(labels)} class{'es' * (len(labels) != 1)}"
                    + (f' for {problem}' if problem else '')
                    + ' gives no probabilities of classes that exclude each other: it cannot score,'
                    ' give a classifier of two classes or more')
  named = config.get('architectures')
  other = [name for name in (named if isinstance(named, list) else [named])
           if str(name).endswith(_OTHER_HEADS)]
  if other:
    raise UserError(f'{where}: config.json says {other[0]}, which is no classifier of whole texts: '
                    'give one that was saved as ...ForSequenceClassification')


def label_values(labels: Sequence[str], *, where: str) -> dict[str, float]:
  """Values of classes by the meaning of their names, equally spaced from 0 to 1."""
  plain = [label.lower().replace('_', ' ').replace('-', ' ').strip() for label in labels]
  example = ','.join(f'{label}={i / (len(labels) - 1):g}' for i, label in enumerate(labels))
  hint = f'say what each means with values from 0 to 1, e.g. bert:{where}#{example}'
  unknown = [label for label, name in zip(labels, plain, strict=True) if name not in _RANKS]
  if unknown:
    raise UserError(f"{where}: the meaning of class '{unknown[0]}' is not known: {hint}")
  ranks = [_RANKS[name] for name in plain]
  ordered = sorted(ranks)
  if len(set(ranks)) < len(ranks) or ordered != [4 - r for r in ordered[::-1]]:
    raise UserError(f"{where}: the classes {', '.join(labels)} are not symmetrical about neutral: "
                    f'{hint}')
  return {label: ordered.index(rank) / (len(ranks) - 1)
          for label, rank in zip(labels, ranks, strict=True)}


def parse_values(text: str) -> dict[str, float]:
  """Reads `CLASS=VALUE,CLASS=VALUE`."""
  values: dict[str, float] = {}
  for part in text.split(','):
    label, has_value, number = part.rpartition('=')
    try:
      value = float(number)
    except ValueError:
      value = math.nan
    if not has_value or not label or label in values or not 0 <= value <= 1:
      raise UserError(f"'{part}' in '{text}': classes need the form CLASS=VALUE, each once, with a "
                      'value from 0 (negative) to 1 (positive)')
    values[label] = value
  return values


def _given_values(values: Mapping[str, float], labels: Sequence[str], *, where: str
                  ) -> dict[str, float]:
  """The user's values, if they name exactly the model's classes."""
  if set(values) != set(labels):
    raise UserError(f"{where}: values are given for {', '.join(sorted(values))}, but its classes "
                    f"are {', '.join(labels)}")
  return {label: values[label] for label in labels}
