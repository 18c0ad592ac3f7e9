"""The Universal Sentence Encoder as a SavedModel: the encoder of Huang et al. 2020 (H-27).

Its weights are published as a SavedModel, which TensorFlow alone reads. A SavedModel is a program
that may read and write files: load only one whose origin is known.
"""

import hashlib
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from fairjax.errors import UserError, first_line

BATCH = 256  # texts at a time


class UniversalSentenceEncoder:
  """Texts to vectors by a SavedModel (Cer et al. 2018, arXiv:1803.11175)."""

  name = 'use'
  threshold = 0.4
  threshold_source = 'the paper, for this kind of encoder'

  def __init__(self, directory: str | os.PathLike):
    """Loads a local directory with `saved_model.pb`; nothing is fetched."""
    self._root = pathlib.Path(directory)
    if not (self._root / 'saved_model.pb').is_file():
      raise UserError(f'encoder use: {self._root} holds no saved_model.pb: name the folder of a '
                      'Universal Sentence Encoder (downloaded and unpacked)')
    try:
      import tensorflow as tf
    except ImportError as e:
      raise UserError(f"encoder use needs TensorFlow ({e}): pip install -e '.[train]' in "
                      "fairjax's folder; or use the encoder minilm") from None
    self._tf, self.fingerprint = tf, _fingerprint(self._root)
    try:
      # The loaded object owns the variables: it must live as long as its function.
      self._model = tf.saved_model.load(os.fspath(self._root))
    except Exception as e:  # TensorFlow raises whatever fits the damage
      raise UserError(f'encoder use: {self._root} cannot be loaded: {first_line(e)[:200]}'
                      ) from None
    self._call = self._model if callable(self._model) else self._model.signatures.get(
      'serving_default')
    if self._call is None:
      raise UserError(f'encoder use: {self._root} is no function of texts and has no signature '
                      'serving_default')
    self.encode(['a'])  # a model of another kind is refused before long work

  def encode(self, texts: Sequence[str]) -> np.ndarray:
    """Vectors `[R, D]` of R texts, float32."""
    if not len(texts):
      return np.zeros((0, 0), np.float32)
    return np.concatenate([self._encode(texts[i:i + BATCH]) for i in range(0, len(texts), BATCH)])

  def _encode(self, texts: Sequence[str]) -> np.ndarray:
    batch = self._tf.constant([t.encode('utf-8', 'replace') for t in texts])
    try:
      found = self._call(batch)
    except Exception as e:
      raise UserError(f'encoder use: {self._root} takes no texts: {first_line(e)[:200]}') from None
    if isinstance(found, dict):
      found = next(iter(found.values())) if len(found) == 1 else None
    vectors = None if found is None else np.asarray(found)
    if vectors is None or vectors.ndim != 2 or len(vectors) != len(texts):
      shape = 'several outputs' if vectors is None else f'shape {vectors.shape}'
      raise UserError(f'encoder use: {self._root} returns {shape} for {len(texts)} texts, not one '
                      'vector a text')
    if not np.isfinite(vectors).all():
      raise UserError(f'encoder use: {self._root} returns numbers that are not finite')
    return vectors.astype(np.float32, copy=False)


def _fingerprint(root: pathlib.Path) -> str:
  """SHA-256 over names and bytes of the graph, the variables and the assets."""
  digest = hashlib.sha256()
  files = [root / 'saved_model.pb']
  for folder in ('variables', 'assets'):
    files += sorted(p for p in (root / folder).rglob('*') if p.is_file())
  for path in files:
    digest.update(f'{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0'.encode())
    with path.open('rb') as file:
      while block := file.read(1 << 20):
        digest.update(block)
  return digest.hexdigest()
