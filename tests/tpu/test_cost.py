"""The HLO counter against closed forms, XLA's own count of unrolled programs, and TPU text."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fairjax.config import DebiasConfig, MeshConfig, ModelConfig, SentimentConfig, TrainConfig
from fairjax.model import likelihood
from fairjax.tpu import cost as hlo
from fairjax.tpu import cost as hlo_cost
from fairjax.train import make_mesh, steps
from fairjax.train.optimizer import Adam

M, K = 48, 64


def compile_text(f, *shapes, **options):
  arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  return jax.jit(f, **options).lower(*arguments).compile()


def scanned(x, ws):
  return jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, ws)[0]


def nested(x, ws):
  def outer(x, _):
    return scanned(x, ws), None
  return jax.lax.scan(outer, x, None, length=3)[0]


@pytest.mark.parametrize(('f', 'times'), [(scanned, 5), (nested, 15)])
def test_flops_of_products_in_loops(f, times):
  compiled = compile_text(f, (M, K), (5, K, K))
  assert hlo_cost.count(compiled.as_text()).flops == times * 2 * M * K * K
  # What the count is for: XLA counts a body once.
  assert compiled.cost_analysis()['flops'] < 2 * 2 * M * K * K


@pytest.mark.parametrize('f', [scanned, nested])
def test_conditions_are_read_where_the_compiler_states_no_trip_count(f):
  text = compile_text(f, (M, K), (5, K, K)).as_text()
  bare = re.sub(r'"known_trip_count":\{"n":"\d+"\},?', '', text)
  assert bare != text
  full, read = hlo_cost.count(text), hlo_cost.count(bare)
  assert (read.flops, read.nbytes, read.notes) == (full.flops, full.nbytes, full.notes)


def test_bytes_of_a_loop_over_stacked_weights_count_each_slice_once():
  layers, width = 32, 256  # weights far larger than the rest
  text = compile_text(scanned, (8, width), (layers, width, width)).as_text()
  weights = 4 * layers * width * width
  # Each layer is read once; a copy of the slice would be written and read again.
  assert weights <= hlo_cost.count(text).nbytes <= 3.3 * weights


def test_bytes_of_in_place_updates_count_the_update():
  def f(x):
    def body(i, out):
      return jax.lax.dynamic_update_slice_in_dim(out, (x * i)[None], i, axis=0)
    return jax.lax.fori_loop(0, 64, body, jnp.zeros((64, 4096)))
  nbytes = hlo_cost.count(compile_text(f, (4096,)).as_text()).nbytes
  row = 4 * 4096
  assert 2 * 64 * row <= nbytes <= 5 * 64 * row  # 64 * 64 rows if the array counted


def test_unrolled_programs_agree_with_xla():
  def f(x, a, b):
    for _ in range(3):
      x = (x @ a) @ b
    return x
  compiled = compile_text(f, (M, K), (K, 96), (96, K))
  ours, theirs = hlo_cost.count(compiled.as_text()), compiled.cost_analysis()
  assert ours.flops == theirs['flops'] == 3 * 4 * M * K * 96
  assert ours.nbytes == theirs['bytes accessed'] == 4 * 3 * (M * K + K * 96 + 2 * M * 96 + 96 * K
                                                             + M * K)


def test_unrolled_gradients_agree_with_xla():
  def loss(w, x):
    for _ in range(4):
      x = jnp.tanh(x @ w)
    return (x * x).sum()
  compiled = compile_text(jax.grad(loss), (K, K), (M, K))
  ours, theirs = hlo_cost.count(compiled.as_text()), compiled.cost_analysis()
  products = (4 + 3 + 4) * 2 * M * K * K
  assert ours.flops == products
  np.testing.assert_allclose(theirs['flops'], products, rtol=0.05)  # theirs: elementwise too
  np.testing.assert_allclose(ours.nbytes, theirs['bytes accessed'], rtol=0.05)


@pytest.mark.parametrize('batch_dims', [0, 1, 2])
def test_flops_of_batched_products(batch_dims):
  batch = (3, 5)[:batch_dims]
  f = functools.partial(jnp.einsum, '...mk,...kn->...mn')
  text = compile_text(f, (*batch, M, K), (*batch, K, 32)).as_text()
  assert hlo_cost.count(text).flops == np.prod(batch, initial=1) * 2 * M * K * 32


@pytest.mark.parametrize('options', [
  {}, {'window_strides': (2, 3), 'padding': ((1, 2), (0, 0))},
  {'lhs_dilation': (2, 2), 'padding': ((1, 2), (0, 3))},
  {'rhs_dilation': (2, 1), 'padding': ((2, 2), (3, 3))}, {'feature_group_count': 2}])
def test_flops_of_convolutions_agree_with_xla(options):
  options = {'window_strides': (1, 1), 'padding': 'VALID'} | options
  groups = options.get('feature_group_count', 1)
  f = functools.partial(jax.lax.conv_general_dilated, **options)
  compiled = compile_text(f, (2, 6, 17, 19), (8, 6 // groups, 3, 4))
  text = compiled.as_text()
  assert 'convolution(' in text  # otherwise there is nothing to compare
  np.testing.assert_allclose(
    hlo_cost.count(text).flops, compiled.cost_analysis()['flops'], rtol=0.02)


def test_collectives_in_loops():
  mesh = make_mesh(MeshConfig())
  rows = NamedSharding(mesh, PartitionSpec('data'))

  @functools.partial(jax.shard_map, mesh=mesh, in_specs=PartitionSpec('data'),
                     out_specs=PartitionSpec('data'))
  def f(x):
    def body(x, _):
      return x + jax.lax.psum(x, 'data'), None
    return jax.lax.scan(body, x, None, length=7)[0]
  x = jax.ShapeDtypeStruct((8 * 16, K), jnp.float32, sharding=rows)
  cost = hlo_cost.count(jax.jit(f).lower(x).compile().as_text())
  assert cost.collectives == {'all-reduce': [7, 7 * 4 * 16 * K]}


def test_data_dependent_loops_count_their_bound_and_say_so():
  def f(x):
    return jax.lax.while_loop(lambda c: (c[0] < 9) & (c[1].sum() > 0),
                              lambda c: (c[0] + 1, c[1] @ c[1]), (0, x))[1]
  cost = hlo_cost.count(compile_text(f, (K, K)).as_text())
  assert cost.flops == 9 * 2 * K**3
  assert cost.notes['loop counted by its greatest length'] == 1


def test_unbounded_loops_say_so():
  def f(x):
    return jax.lax.while_loop(lambda x: x.sum() > 0, lambda x: x @ x, x)
  cost = hlo_cost.count(compile_text(f, (K, K)).as_text())
  assert cost.flops == 2 * K**3 and 'loop of unknown length counted once' in cost.notes


def test_the_tails_of_an_adaptive_softmax_count_as_often_as_they_may_run(monkeypatch):
  """How many tokens a tail has is known only when a step runs; all of them are the most."""
  monkeypatch.setattr(likelihood, '_TAIL_TOKENS', 4)
  mesh, stage = make_mesh(MeshConfig(), devices=jax.devices()[:1]), TrainConfig(batch_size=2)
  model = ModelConfig(vocab_size=48, num_layers=1, model_dim=16, num_heads=2, head_dim=8, ff_dim=32,
                      segment_len=8, memory_len=8, cutoffs=(16, 32))
  batch = {name: jax.ShapeDtypeStruct(shape, kind) for name, shape, kind in (
    ('inputs', (2, 8), np.int32), ('targets', (2, 8), np.int32), ('reset', (2,), bool))}
  step = steps.make_lm_step(model, Adam.of(stage), mesh)
  text = step.lower(steps.lm_state_template(model, stage, mesh), batch, 0, np.float32(0.1)
                    ).compile().as_text()
  notes = hlo_cost.count(text).notes
  assert 'loop of unknown length counted once' not in notes
  assert notes['loop counted by its greatest length'] == 4  # two tails, forward and backward


# As the TPU compiler writes: no trip counts, S(1) for on-chip memory, products as convolutions,
# loops that go on where an earlier one stopped.
TPU = '''HloModule jit_f, is_scheduled=true

%fused (p0: bf16[4,8,16], p1: f32[3,16,32]) -> bf16[4,8,32] {
  %p0 = bf16[4,8,16]{2,1,0:T(8,128)(2,1)} parameter(0)
  %p1 = f32[3,16,32]{2,1,0:T(8,128)} parameter(1)
  %w = bf16[3,16,32]{2,1,0:T(8,128)} convert(%p1)
  %zero = s32[] constant(0)
  %one = bf16[1,16,32]{2,1,0:T(8,128)} dynamic-slice(%w, %zero, %zero, %zero), dynamic_slice_sizes={1,16,32}
  ROOT %conv = bf16[4,8,32]{2,1,0:T(8,128)(2,1)S(1)} convolution(%p0, %one), window={size=1}, dim_labels=0bf_0io->0bf
}

%cond (s: (s32[], bf16[4,8,16])) -> pred[] {
  %limit = s32[]{:T(128)} constant(6)
  %s = (s32[]{:T(128)}, bf16[4,8,16]{2,1,0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%s), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %limit), direction=LT, metadata={op_name="jit(f)/while/cond/lt"}
}

%body (s.1: (s32[], bf16[4,8,16])) -> (s32[], bf16[4,8,16]) {
  %s.1 = (s32[]{:T(128)}, bf16[4,8,16]{2,1,0}) parameter(0)
  %i.1 = s32[]{:T(128)S(6)} get-tuple-element(%s.1), index=0
  %x = bf16[4,8,16]{2,1,0} get-tuple-element(%s.1), index=1
  %two = s32[]{:T(128)S(6)} constant(2)
  %next = s32[]{:T(128)S(6)} add(%i.1, %two)
  %start = (bf16[4,8,16]{2,1,0:S(1)}, bf16[4,8,16]{2,1,0}, u32[]{:S(2)}) copy-start(%x)
  %done = bf16[4,8,16]{2,1,0:S(1)} copy-done(%start)
  %back = (bf16[4,8,16]{2,1,0}, bf16[4,8,16]{2,1,0:S(1)}, u32[]{:S(2)}) copy-start(%done)
  %r = bf16[4,8,16]{2,1,0} all-reduce(%done), replica_groups={}, to_apply=%sum
  ROOT %t = (s32[]{:T(128)}, bf16[4,8,16]{2,1,0}) tuple(%next, %r)
}

ENTRY %main (x.1: bf16[4,8,16], w.1: f32[3,16,32]) -> bf16[4,8,32] {
  %x.1 = bf16[4,8,16]{2,1,0:T(8,128)(2,1)} parameter(0)
  %w.1 = f32[3,16,32]{2,1,0:T(8,128)} parameter(1)
  %zero.1 = s32[]{:T(128)} constant(0)
  %copy = s32[]{:T(128)} copy(%zero.1)
  %state = (s32[]{:T(128)}, bf16[4,8,16]{2,1,0}) tuple(%copy, %x.1)
  %loop = (s32[]{:T(128)}, bf16[4,8,16]{2,1,0}) while(%state), condition=%cond, body=%body
  %y = bf16[4,8,16]{2,1,0} get-tuple-element(%loop), index=1
  %kernel = bf16[4,8,16]{2,1,0} custom-call(%y, /*index=1*/%x.1), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"abc","cost_estimate":{"flops":"1000","transcendentals":"3","bytes_accessed":"7000"}}}
  %opaque = bf16[4,8,16]{2,1,0} custom-call(%kernel), custom_call_target="other"
  ROOT %out = bf16[4,8,32]{2,1,0:T(8,128)(2,1)S(1)} fusion(%opaque, %w.1), kind=kOutput, calls=%fused
}
'''  # noqa: E501


def test_tpu_text():
  cost = hlo_cost.count(TPU)
  array, trips = 2 * 4 * 8 * 16, 3  # from 0 below 6 in steps of 2
  # The product over (1, 16, 32) of the kernel meets one of its 4 batch positions' kernel elements.
  assert cost.flops == 1000 + 2 * 4 * 8 * 16 * 32
  scalars = 2 * 4 + trips * (4 + 4 + 1)  # copy; condition's operands and result
  loop = trips * 3 * array  # a copy reads, one and the all-reduce write; the rest is on the chip
  fusion = array + 4 * 16 * 32  # one of three slices of w in float32; the result is on the chip
  assert cost.nbytes == scalars + loop + 7000 + 2 * array + fusion
  assert cost.collectives == {'all-reduce': [trips, trips * array]}
  assert cost.notes == {
    'custom call tpu_custom_call counted by its own estimate': 1,
    'custom call other counted by its operands and results, without FLOPs': 1}


def test_a_collective_that_runs_beside_products_counts_where_it_starts():
  fused = '''%{name} (p.{n}: f32[4]) -> f32[8] {{
  %p.{n} = f32[4]{{0}} parameter(0)
  %g.{n} = f32[8]{{0}} all-gather(%p.{n}), channel_id={channel}, dimensions={{0}}
  ROOT %c.{n} = f32[8]{{0}} custom-call(%g.{n}), custom_call_target="{target}"
}}

'''
  parts = [('start', 5, 'AsyncCollectiveStart'), ('step', 5, 'x'), ('done', 5,
           'AsyncCollectiveDone'), ('other', 6, 'x')]
  text = ''.join(fused.format(name=name, n=n, channel=channel, target=target)
                 for n, (name, channel, target) in enumerate(parts))
  text += 'ENTRY %main (x: f32[4]) -> f32[8] {\n  %x = f32[4]{0} parameter(0)\n' + ''.join(
    f'  {"ROOT " * (name == "other")}%f.{name} = f32[8]{{0}} fusion(%x), kind=kCustom, '
    f'calls=%{name}\n' for name, _, _ in parts) + '}\n'
  assert hlo_cost.count(text).collectives == {'all-gather': [2, 2 * 8 * 4]}


def test_a_batched_product_with_holes_counts_its_real_positions():
  line = hlo.parse_module('''ENTRY %m (a: bf16[4,512,128], b: bf16[4,128,64]) -> bf16[4,512,64] {
  %a = bf16[4,512,128]{2,1,0} parameter(0)
  %b = bf16[4,128,64]{2,1,0} parameter(1)
  ROOT %c = bf16[4,512,64]{2,1,0} convolution(%a, %b), window={size=4 stride=3 lhs_dilate=4}, dim_labels=0bf_0io->0bf
}''').entry.root  # noqa: E501
  shapes = [hlo.ArrayShape('bf16', (4, 512, 128)), hlo.ArrayShape('bf16', (4, 128, 64))]
  assert hlo_cost.convolution_flops(line, shapes) == 4 * 2 * 512 * 128 * 64


@pytest.mark.parametrize('kind', ['lm', 'debias'])
def test_size_of_a_step_does_not_grow_with_depth(kind):
  """Neither what JAX traces nor what XLA makes of it: compiling 48 layers is compiling one."""
  mesh, stage = make_mesh(MeshConfig(), devices=jax.devices()[:1]), TrainConfig(batch_size=8)

  def array(*shape, dtype=jnp.int32):
    return jax.ShapeDtypeStruct((8, *shape), dtype)

  batch = {'inputs': array(8), 'targets': array(8), 'reset': array(dtype=jnp.bool_)}
  if kind == 'debias':
    batch |= {name: array(2) for name in ('branch_start', 'branch_len', 'original_end')}
    batch |= {'branch_tokens': array(2, 3), 'branch_weight': array(2, dtype=jnp.float32),
              'branch_counts': array(5)}

  def lower(num_layers, remat):
    model = ModelConfig(vocab_size=32, num_layers=num_layers, model_dim=16, num_heads=2, head_dim=8,
                        ff_dim=32, segment_len=8, memory_len=8, remat=remat)
    state = steps.lm_state_template(model, stage, mesh)
    if kind == 'lm':
      step, extra = steps.make_lm_step(model, Adam.of(stage), mesh), ()
    else:
      term = steps.FairnessTerm.of(DebiasConfig(), SentimentConfig())
      step = steps.make_debias_step(model, Adam.of(stage), term, mesh)
      extra = ({'embedding': np.float32(1)}, None)
    return step.lower(state, batch, 0, np.float32(0.1), *extra)

  for remat in ('full', 'none'):
    programs = [lower(layers, remat) for layers in (4, 12)]
    traced = [program.as_text().count('\n') for program in programs]
    assert traced[0] == traced[1], (remat, traced)
  made = [hlo.parse_module(p.compile().as_text()).num_instructions for p in programs]
  print(f'{kind}: {traced} lines of StableHLO, {made} instructions')
  assert made[1] <= made[0] + 20
