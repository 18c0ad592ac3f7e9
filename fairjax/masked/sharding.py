"""Where the parameters of BERT and ALBERT live: the table of their logical axes.

The meaning of the names is that of the curriculum (`fairjax.train.sharding.RULES`): widths over
`fsdp`, vocabulary, heads and feed-forward over `model`. Adam's moments lie where their parameters
do; what is as wide as the model alone (norms, biases behind a sum) is on every device.
"""

import math
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from fairjax.errors import UserError
from fairjax.pretrained import Architecture
from fairjax.train.sharding import axes_sharding, replicated

AXES = {
  'embeddings': {'word': ('vocab', 'embed'), 'position': (None, 'embed'),
                 'token_type': (None, 'embed')},
  'projection': {'kernel': ('embed', None)},
  'layers': {
    'qkv_kernel': ('layers', 'embed', 'heads'), 'qkv_bias': ('layers', 'heads'),
    'out_kernel': ('layers', 'heads', 'embed'), 'ff_in_kernel': ('layers', 'embed', 'mlp'),
    'ff_in_bias': ('layers', 'mlp'), 'ff_out_kernel': ('layers', 'mlp', 'embed')},
  'mlm': {'kernel': ('embed', None), 'output_bias': ('vocab',)},
  'output': {'table': ('vocab', 'embed')},
}
"""Group -> array -> the names of its axes; see `fairjax.pretrained.names`. Others are not split."""


def state_shardings(abstract: Any, mesh: Mesh) -> Any:
  """A sharding for every leaf of parameters, or of a state that holds trees like them.

  Args:
    abstract: tree of `jax.eval_shape`.
    mesh: of `make_mesh`.
  """
  def sharding(path, leaf) -> NamedSharding:
    names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
    axes = AXES.get(names[-2], {}).get(names[-1]) if len(names) > 1 else None
    return replicated(mesh) if axes is None else axes_sharding(axes, mesh)

  return jax.tree_util.tree_map_with_path(sharding, abstract)


def check_mesh(params: Any, arch: Architecture, mesh: Mesh) -> None:
  """Refuses a mesh whose axes do not divide what they split.

  Args:
    params: of the model; only shapes are read.
    arch: of the same model.
    mesh: of `make_mesh`.

  Raises:
    UserError: the line names the first array, and what would fit.
  """
  sizes: dict[str, dict[str, int]] = {'fsdp': {}, 'model': {'its attention heads': arch.num_heads}}
  leaves = jax.tree_util.tree_leaves_with_path(params)
  shardings = jax.tree.leaves(state_shardings(params, mesh))
  for (path, leaf), sharding in zip(leaves, shardings, strict=True):
    for size, axis in zip(leaf.shape, sharding.spec, strict=False):
      if axis is not None:
        sizes[axis]['.'.join(key.key for key in path)] = size
  for axis, found in sizes.items():
    parts = mesh.shape[axis]
    for name, size in found.items():
      if size % parts:
        most = math.gcd(*found.values(), mesh.size)
        fits = ', '.join(str(n) for n in range(1, most + 1) if most % n == 0)
        raise UserError(f'--mesh.{axis}={parts} does not divide {size} ({name}): of the numbers '
                        f'that divide the {mesh.size} devices this model allows {fits}')
