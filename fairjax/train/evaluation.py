"""Likelihood of held-out text, segment after segment with memory, on the mesh (H-25)."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from fairjax.model import CausalLM, Documents
from fairjax.train.sharding import ROWS, batch_sharding, on_mesh, to_devices, to_host
from fairjax.train.steps import Params, state_sharding


@functools.lru_cache
def make_segment_nll(
  model: CausalLM, batch_size: int, mesh: Mesh
) -> tuple[Callable, Callable]:
  """Jitted `() -> memory` and `(params, memory, batch) -> (nll [B, T], memory)`, no dropout."""
  def segment_nll(params, memory, batch):
    output = model.apply(params, batch['inputs'], memory.reset(batch['reset']),
                         documents=Documents.from_batch(batch))
    nll = model.nll(params, output.hidden, batch['targets'])
    return jnp.where(batch['weights'] > 0, nll, 0), output.state

  sharding = state_sharding(model, mesh, cached=True)
  empty = jax.jit(
    lambda: model.init_state(batch_size, cached=True), out_shardings=sharding)
  return empty, jax.jit(
    segment_nll, donate_argnums=1, out_shardings=(batch_sharding(mesh), sharding))


def evaluate_nll(
  model: CausalLM, params: Params, batches: Iterable[Mapping[str, np.ndarray]], mesh: Mesh
) -> tuple[float, int]:
  """(Sum of nats, number of tokens that count) of a finite stream of batches, memory carried.

  Batches hold this process's rows: `inputs`, `targets` [B, T] int32, `reset` [B] bool and `weights`
  [B, T] (1 for a token that counts, 0 for padding), those of decoders also `segment_ids` and
  `positions`. The rows are the same on every mesh: where its devices do not divide them, each
  process adds rows that nothing counts. A group of processes calls it together.
  """
  memory, rows, total, tokens = None, 0, 0.0, 0
  names, more = ('inputs', 'targets', 'reset', 'weights'), ('segment_ids', 'positions')
  for batch in batches:
    if memory is None:
      rows = _process_rows(len(batch['inputs']), mesh)
      empty, segment_nll = make_segment_nll(model, rows * jax.process_count(), mesh)
      memory = empty()
    arrays = to_devices({name: _fill(batch[name], rows, name == 'reset')
                         for name in (*names, *(n for n in more if n in batch))}, mesh)
    with on_mesh(mesh):
      nll, memory = segment_nll(params, memory, arrays)
    total += float(to_host(nll).astype(np.float64).sum())
    tokens += int((to_host(arrays['weights']) > 0).sum())
  return total, tokens


def _process_rows(rows: int, mesh: Mesh) -> int:
  """Rows of each process, one as many as the other, that its devices divide."""
  devices = math.prod(mesh.shape[axis] for axis in ROWS) // jax.process_count()
  most = int(np.max(multihost_utils.process_allgather(np.int32(rows))))
  return -(-most // devices) * devices


def _fill(x: np.ndarray, rows: int, value: bool) -> np.ndarray:
  """Further rows: of weight 0, and reset, so that their memory stays empty."""
  return np.pad(x, [(0, rows - len(x))] + [(0, 0)] * (x.ndim - 1), constant_values=value)
