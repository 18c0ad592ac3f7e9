"""The fused kernel compiles for every TPU that it is for, without a TPU.

Needs libtpu (`pip install libtpu`), which compiles for a named topology on any machine. Each
compilation runs in a process of its own: libtpu is loaded once per process and never for tests that
do not need it.
"""

import json

import pytest

CODE = '''
import json, sys
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from fairjax.config import ModelConfig
from fairjax.model.attention_paths import (
  choose_attention, main_attention, segment_and_branches, takes_branches)

topology, dtype, (T, M, H, K, P) = *sys.argv[1:3], map(int, sys.argv[3:])
devices = topologies.get_topology_desc(platform='tpu', topology_name=topology).devices
mesh = Mesh(np.array(devices[:1]), ('x',), axis_types=(AxisType.Auto,))
config = ModelConfig(segment_len=T, memory_len=M, head_dim=H, dtype=dtype)

def array(*shape, dtype=jnp.dtype(dtype)):
  return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec()))

N, B, S, Q = 8, 2, M + T, K * P
arrays = (array(N, B, T + Q, H), array(2, N, B, S + Q, H), array(N, S + P, H), array(N, H),
          array(N, H))

def attention(*arrays, start, length):
  if K:
    return segment_and_branches(config, *arrays, start, length, segment_len=T)
  return main_attention(config, *arrays, length)

def gradients(arrays, start, length):
  out, vjp = jax.vjp(lambda *a: attention(*a, start=start, length=length), *arrays)
  return vjp(out)

with jax.set_mesh(mesh):
  compiled = jax.jit(gradients).lower(
    arrays, array(B, K, dtype=jnp.int32), array(B, dtype=jnp.int32)).compile()
  takes = takes_branches(config, T, M, (K, P))
print(json.dumps({
  'takes': takes,
  'path': choose_attention(config, devices[0].device_kind),
  'kernels': compiled.as_text().count('custom_call_target="tpu_custom_call"'),
  'temporary': compiled.memory_analysis().temp_size_in_bytes}))
'''


def _compile(run_with_libtpu, topology, dtype, sizes):
  """What the compiler says of T, M, H, K and P."""
  done = run_with_libtpu('-c', CODE, topology, dtype, *map(str, sizes))
  assert done.returncode == 0, done.stderr[-2000:]
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.libtpu
@pytest.mark.parametrize('topology', ['v4:2x2x1', 'v5e:2x2', 'v5p:2x2x1', 'v6e:2x2'])
@pytest.mark.parametrize('sizes', [
  (512, 512, 128, 0, 0), (4096, 4096, 128, 0, 0), (640, 100, 64, 0, 0), (512, 512, 128, 4, 4),
  (640, 100, 64, 3, 2)])
def test_forward_and_backward_compile_for(topology, sizes, run_with_libtpu):
  found = _compile(run_with_libtpu, topology, 'bfloat16', sizes)
  assert (found['path'], found['kernels'], found['takes']) == ('kernel', 2, True)
  # The scores of T = M = 4096 would be 1 GiB.
  assert found['temporary'] <= 100 * 2 ** 20


@pytest.mark.libtpu
@pytest.mark.parametrize(('topology', 'dtype', 'sizes'), [
  ('v4:2x2x1', 'float32', (768, 768, 64, 4, 4)), ('v4:2x2x1', 'bfloat16', (1024, 1024, 64, 4, 8)),
  ('v4:2x2x1', 'float32', (256, 256, 64, 8, 16)),
  ('v5e:2x2', 'bfloat16', (4096, 4096, 128, 8, 8)), ('v5e:2x2', 'float32', (3072, 3072, 64, 8, 8)),
  ('v5e:2x2', 'float32', (1024, 1024, 64, 16, 16)),
  ('v5p:2x2x1', 'bfloat16', (2048, 2048, 128, 8, 8)),
  ('v5p:2x2x1', 'float32', (2048, 2048, 64, 4, 4)),
  ('v6e:2x2', 'float32', (3072, 3072, 64, 8, 8)),
  ('v6e:2x2', 'bfloat16', (1024, 1024, 64, 16, 16))])
def test_branches_that_are_let_in_fit_into_the_core(topology, dtype, sizes, run_with_libtpu):
  """Near the most that `kernel_runs_on` lets in."""
  found = _compile(run_with_libtpu, topology, dtype, sizes)
  assert (found['path'], found['kernels'], found['takes']) == ('kernel', 2, True)
