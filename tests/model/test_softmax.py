"""Plain and adaptive softmax, and the loss that never holds all scores."""

import dataclasses
import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from scipy.special import log_softmax

from fairjax.config import MeshConfig, ModelConfig
from fairjax.model import language_model, likelihood, softmax
from fairjax.model.likelihood import mean_nll, next_token_nll, table_nll, token_nll
from fairjax.model.softmax import all_logits, embed_tokens, parameter_table, vocabulary_clusters
from fairjax.train.sharding import make_mesh, on_mesh

SIZES = dict(vocab_size=211, model_dim=16, num_heads=2, head_dim=8)
CONFIGS = {
  'plain': ModelConfig(**SIZES),
  'padded': ModelConfig(**SIZES, vocab_multiple=16),
  'adaptive': ModelConfig(**SIZES, cutoffs=(20, 50, 110), div_val=2),
  'untied': ModelConfig(**SIZES, cutoffs=(20, 110), div_val=4, tie_projections=(False,) * 3),
  'one_width': ModelConfig(**SIZES, cutoffs=(20, 50), vocab_multiple=8),
}


def _params(config, dtype=np.float64):
  rng = np.random.default_rng(0)
  return {name: jnp.asarray(rng.normal(size=p.shape), dtype)
          for name, p in parameter_table(config).items()}


def _slow_log_probability(params, config, hidden):
  """Every word's log-probability given one hidden state, word by word."""
  params = {name: np.asarray(value) for name, value in params.items()}
  ends = [0, *config.cutoffs, config.vocab_size]
  ties = config.tie_projections or (False,) + (True,) * len(config.cutoffs)

  def scores(i):
    suffix = f'_{i}' if config.cutoffs else ''
    h = hidden
    if config.div_val > 1:
      kind = 'projection' if ties[i] else 'softmax_projection'
      h = params[kind + suffix] @ hidden
    return [float(params['embedding' + suffix][w] @ h + params['softmax_bias' + suffix][w])
            for w in range(ends[i + 1] - ends[i])], h

  head, h = scores(0)
  gates = [float(params['cluster_weight'][c] @ h + params['cluster_bias'][c])
           for c in range(len(config.cutoffs))]
  normaliser = np.log(np.sum(np.exp(head + gates)))
  found = [s - normaliser for s in head]
  for i, gate in enumerate(gates, start=1):
    tail, _ = scores(i)
    found += [gate - normaliser + s - np.log(np.sum(np.exp(tail))) for s in tail]
  return np.array(found)


def _inputs(config, shape=(3, 7), *, low=0, high=None):
  rng = np.random.default_rng(1)
  hidden = jnp.asarray(rng.normal(size=(*shape, config.model_dim)))
  return hidden, jnp.asarray(rng.integers(low, high or config.vocab_size, size=shape), jnp.int32)


def _float64(config):
  return dataclasses.replace(config, dtype='float64')


@pytest.mark.parametrize('name', CONFIGS)
def test_log_probabilities_are_those_of_a_word_by_word_implementation(name):
  with jax.enable_x64():
    config = _float64(CONFIGS[name])
    params = _params(config)
    hidden, _ = _inputs(config)
    logits = jax.jit(all_logits, static_argnums=1)(params, config, hidden)
    assert logits.shape == (3, 7, config.vocab_size)
    found = log_softmax(logits, axis=-1)
    np.testing.assert_allclose(
      found[1, 2], _slow_log_probability(params, config, np.asarray(hidden[1, 2])), atol=1e-12)
    if config.cutoffs:  # already normalised
      np.testing.assert_allclose(found, logits, atol=1e-12)


@pytest.mark.parametrize('name', CONFIGS)
def test_blocked_loss_and_gradients_are_those_of_all_scores(name):
  with jax.enable_x64():
    config = _float64(CONFIGS[name])
    params = _params(config)
    hidden, targets = _inputs(config)
    weights = jnp.asarray(np.random.default_rng(2).normal(size=targets.shape))

    def blocked(params, hidden, block):
      nll = token_nll(params, config, hidden, targets, block=block)
      return (nll * weights).sum(), nll

    def whole(params, hidden):
      nll = next_token_nll(all_logits(params, config, hidden), targets)
      return (nll * weights).sum(), nll

    (_, expected), expected_gradients = jax.jit(
      jax.value_and_grad(whole, (0, 1), has_aux=True))(params, hidden)
    for block in (7, 64):
      (_, found), gradients = jax.jit(jax.value_and_grad(
        functools.partial(blocked, block=block), (0, 1), has_aux=True))(params, hidden)
      np.testing.assert_allclose(found, expected, atol=1e-12)
      jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-11),
                   gradients, expected_gradients)


def test_any_number_of_tokens_may_fall_into_one_cluster():
  """More tokens than are computed at a time, all of one cluster."""
  with jax.enable_x64():
    config = _float64(CONFIGS['adaptive'])
    params = _params(config)

    def summed(nll):
      def both(params, *arrays):
        found = nll(params, *arrays)
        return found.sum(), found
      return jax.jit(jax.grad(both, (0, 1), has_aux=True))

    ours = summed(lambda p, h, targets: token_nll(p, config, h, targets))
    whole = summed(lambda p, h, targets: next_token_nll(all_logits(p, config, h), targets))
    for low, high in ((0, 20), (110, 211), (50, 110)):
      arrays = _inputs(config, (5, 233), low=low, high=high)
      (gradients, found), (expected_gradients, expected) = (
        f(params, *arrays) for f in (ours, whole))
      np.testing.assert_allclose(found, expected, atol=1e-12)
      jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10),
                   gradients, expected_gradients)


@pytest.mark.parametrize(('name', 'mesh', 'mean'), [
  ('padded', (2, 2, 2), True), ('one_width', (2, 2, 2), False), ('padded', (1, 8, 1), False),
  *(pytest.param(*case, marks=pytest.mark.weekly) for case in (
    ('padded', (2, 2, 2), False), ('one_width', (2, 2, 2), True), ('padded', (1, 8, 1), True),
    ('one_width', (1, 8, 1), True), ('one_width', (1, 8, 1), False)))])
def test_split_over_devices_it_is_the_same(name, mesh, mean, few_at_once):
  if mean:
    few_at_once(3, 56)
  config = dataclasses.replace(CONFIGS[name], vocab_multiple=8)
  params = _params(config, np.float32)
  hidden, targets = _inputs(config, (8, 9))
  hidden = hidden.astype(jnp.float32)

  def loss(params, hidden):
    if mean:
      return mean_nll(params, config, hidden, targets)
    return token_nll(params, config, hidden, targets, block=16).sum()

  expected = jax.jit(jax.value_and_grad(loss, (0, 1)))(params, hidden)
  with on_mesh(make_mesh(MeshConfig(data=mesh[0], fsdp=mesh[1], model=mesh[2]))):
    found = jax.jit(jax.value_and_grad(loss, (0, 1)))(params, hidden)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(
    a, b, rtol=1e-5, atol=1e-6 if mean else 1e-5), found, expected)


@pytest.fixture
def few_at_once(monkeypatch):
  """Lets small inputs take the way of large ones: `few_at_once(tokens, words)`."""
  def limit(tokens, words):
    monkeypatch.setattr(likelihood, '_WHOLE', 0)
    monkeypatch.setattr(softmax, '_PART_TOKENS', 1)
    monkeypatch.setattr(softmax, '_PART_LOGITS', tokens * words)

  return limit


@pytest.mark.parametrize('name', ['plain', 'padded'])
@pytest.mark.parametrize('tokens, parts', [(21, 1), (4, 7), (1, 21)])
def test_the_mean_whose_forward_pass_makes_the_gradients_is_that_of_all_scores(
    name, tokens, parts, few_at_once):
  few_at_once(tokens, vocabulary_clusters(CONFIGS[name])[0].padded)
  with jax.enable_x64():
    config = _float64(CONFIGS[name])
    params = _params(config)
    hidden, targets = _inputs(config)
    jaxpr = str(jax.make_jaxpr(jax.grad(lambda h: mean_nll(params, config, h, targets)))(hidden))
    assert f'length={parts}' in jaxpr  # tokens in so many parts
    found, expected, mean = jax.jit(lambda *read: (
      jax.value_and_grad(lambda p, h: 3 * mean_nll(p, config, h, targets), (0, 1))(*read),
      jax.value_and_grad(lambda p, h: 3 * next_token_nll(
        all_logits(p, config, h), targets).mean(), (0, 1))(*read),
      mean_nll(read[0], config, read[1], targets)))(params, hidden)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), found, expected)
    np.testing.assert_allclose(mean, found[0] / 3, atol=1e-12)


def _compiled_gradients(config, length, loss):
  params = {name: jax.ShapeDtypeStruct(p.shape, jnp.float32)
            for name, p in parameter_table(config).items()}
  hidden = jax.ShapeDtypeStruct((4, length, config.model_dim), jnp.float32)
  targets = jax.ShapeDtypeStruct((4, length), jnp.int32)
  return jax.jit(jax.value_and_grad(loss, (0, 1))).lower(params, hidden, targets).compile()


@pytest.mark.parametrize('words, products, loops', [(8192, 3, 4), (32768, 4, 8)])
def test_the_mean_costs_three_products_up_to_16_thousand_words(words, products, loops):
  config = ModelConfig(vocab_size=words, model_dim=512, num_heads=4, head_dim=128)
  compiled = _compiled_gradients(
    config, 256, lambda p, h, t: mean_nll(p, config, h, t))
  once = 2 * 4 * 256 * 512 * words / loops  # XLA counts the body of a loop once
  assert compiled.cost_analysis()['flops'] == pytest.approx(products * once, rel=0.01)
  table = words * 512 * 4
  assert compiled.memory_analysis().temp_size_in_bytes < 50 * 2**20 + 2 * table


def test_neither_pass_holds_the_scores_of_all_words():
  config = ModelConfig(vocab_size=100_000, model_dim=32, num_heads=2, head_dim=16)

  def temporaries(nll):
    compiled = _compiled_gradients(config, 128, lambda p, h, t: nll(p, h, t).sum())
    return compiled.memory_analysis().temp_size_in_bytes

  scores = 512 * config.vocab_size * 4
  table = config.vocab_size * 32 * 4
  blocked = temporaries(lambda p, h, t: token_nll(p, config, h, t))
  whole = temporaries(lambda p, h, t: next_token_nll(all_logits(p, config, h), t))
  assert whole >= scores
  assert blocked <= 50 * 2**20 and blocked < scores / 4 + table


def test_padding_changes_no_initial_parameter_and_is_never_a_word():
  plain, padded = CONFIGS['plain'], CONFIGS['padded']
  assert vocabulary_clusters(padded)[0].padded == 224
  params = _params(padded, np.float32)
  hidden, _ = _inputs(padded)
  changed = params | {'embedding': params['embedding'].at[211:].set(1e3)}
  hidden = hidden.astype(jnp.float32)
  assert jax.eval_shape(lambda p: all_logits(p, padded, hidden), params).shape[-1] == 211
  targets = jnp.zeros((3, 7), jnp.int32)
  nll = jax.jit(lambda p: token_nll(p, padded, hidden, targets, block=64))
  np.testing.assert_array_equal(nll(params), nll(changed))
  a, b = (nn.unbox(jax.jit(language_model(c).init)(jax.random.key(0))) for c in (plain, padded))
  np.testing.assert_array_equal(a['embedding'], b['embedding'][:211])
  assert not b['embedding'][211:].any()


@pytest.mark.parametrize('name', ['plain', 'adaptive', 'one_width'])
def test_embedding_reads_the_row_of_each_token(name):
  config = CONFIGS[name]
  params = _params(config, np.float32)
  found = np.asarray(jax.jit(embed_tokens, static_argnums=1)(params, config, jnp.arange(211)))
  for token in (0, 19, 20, 49, 50, 109, 110, 210):
    i = sum(token >= cut for cut in config.cutoffs)
    suffix = f'_{i}' if config.cutoffs else ''
    row = np.asarray(params['embedding' + suffix][token - (0, *config.cutoffs)[i]])
    if config.div_val > 1:
      row = row @ np.asarray(params['projection' + suffix])
    np.testing.assert_allclose(found[token], 4.0 * row, rtol=1e-5, atol=1e-5)


# Prints what makes arrays of the table's size in the loss and its gradients, on one device.
TABLES = """
import re
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from fairjax.config import ModelConfig
from fairjax.model.likelihood import mean_nll
from fairjax.model.softmax import parameter_table

devices = topologies.get_topology_desc(platform='tpu', topology_name='v5e:2x2').devices
mesh = Mesh(np.array(devices[:1]), ('x',), axis_types=(AxisType.Auto,))
config = ModelConfig(vocab_size=32000, model_dim=1024, dtype='bfloat16')

def array(shape, dtype):
  return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec()))

params = {name: array(p.shape, jnp.float32) for name, p in parameter_table(config).items()}
step = jax.jit(jax.value_and_grad(lambda p, h, t: mean_nll(p, config, h, t), (0, 1)))
compiled = step.lower(
  params, array((16, 512, 1024), jnp.bfloat16), array((16, 512), jnp.int32)).compile()
print(*re.findall(r'= \\w+\\[32000,1024\\]\\{\\S* ([a-z-]+)\\(', compiled.as_text()))
"""


@pytest.mark.libtpu
def test_on_tpus_the_table_is_read_once_a_pass_and_its_gradient_written_once(run_with_libtpu):
  done = run_with_libtpu('-c', TABLES)
  assert done.returncode == 0, done.stderr[-2000:]
  made = [x for x in done.stdout.split() if x not in ('parameter', 'get-tuple-element')]
  # The bfloat16 table; zeros, into which each block of the backward pass writes its gradient.
  assert sorted(made) == ['broadcast', 'convert', 'dynamic-update-slice']


# The loss of a bfloat16 model against float64. Hidden states, tables and projections are bfloat16
# numbers, and the projected states happen to be exact ones too, so that the oracle, which sums in
# float64, has the same terms. The rest is the float32 rounding of the sums, bounded by counting.

ROWS, TOKENS = 4, 64  # the mean of so many is a power of two, which rounds nothing
U, U_NARROW = 2.0 ** -24, 2.0 ** -8  # largest share of one rounding to float32, to bfloat16
MODELS = {name: dataclasses.replace(config, dtype='bfloat16') for name, config in CONFIGS.items()}


def _bfloat16_inputs(config):
  """Parameters, hidden states of few bits, targets; the parameters as the model reads them."""
  rng = np.random.default_rng(0)
  params = {}
  for name, p in parameter_table(config).items():
    values = rng.normal(size=p.shape)
    if 'projection' in name:  # sums of 16 products are multiples of 1/32 below 8: eight bits
      values = rng.integers(-1, 2, size=p.shape) / 4
    params[name] = values.astype(np.float32)
  hidden = rng.integers(-4, 5, size=(ROWS, TOKENS, config.model_dim)) / 8
  targets = rng.integers(0, config.vocab_size, size=(ROWS, TOKENS)).astype(np.int32)
  read = {name: x.astype(np.float64) if 'bias' in name else _narrow(x)
          for name, x in params.items()}
  return params, jnp.asarray(hidden, jnp.bfloat16), jnp.asarray(targets), read


def _narrow(x):
  return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def _expected(config, hidden, targets, read):
  logs = np.array([[_slow_log_probability(read, config, h) for h in row]
                   for row in np.asarray(hidden, np.float64)])
  return -np.take_along_axis(logs, np.asarray(targets)[..., None], -1)[..., 0], np.exp(logs)


def _bound(config, hidden, read):
  """What float32 sums may be off.

  A score adds E products and a bias: E roundings of at most the sum of their sizes; a normaliser
  adds V exponentials, whose arguments are off by two scores; then a logarithm and the chosen score.
  Twice, for the head and a tail.
  """
  width = config.model_dim
  largest = max(np.abs(x).sum(-1).max() for name, x in read.items() if name.startswith('embedding'))
  state = max([np.abs(np.asarray(hidden, np.float64)).max()] + [
    np.abs(np.asarray(hidden, np.float64) @ x.T).max()
    for name, x in read.items() if 'projection' in name])
  size = largest * state + max(np.abs(x).max() for name, x in read.items() if 'bias' in name)
  return 2 * U * ((2 * width + 6) * size + config.vocab_size + 10)


@pytest.mark.parametrize('block', [0, 64])
@pytest.mark.parametrize('name', MODELS)
def test_likelihoods_are_sums_in_float32(name, block):
  config = MODELS[name]
  params, hidden, targets, read = _bfloat16_inputs(config)
  found = jax.jit(lambda *read: token_nll(read[0], config, *read[1:], block=block))(
    params, hidden, targets)
  assert found.dtype == jnp.float32
  expected, _ = _expected(config, hidden, targets, read)
  worst, bound = np.abs(found - expected).max(), _bound(config, hidden, read)
  print(f'{name}, block {block}: {worst:.1e} of at most {bound:.1e}')
  assert worst <= bound < 2e-4


@pytest.mark.parametrize('name', ['plain', 'padded'])
@pytest.mark.parametrize('way', ['mean', 'mean of tokens'])
def test_the_mean_and_its_gradients_are_sums_in_float32(name, way, few_at_once):
  config = MODELS[name]
  few_at_once(40, 224)
  params, hidden, targets, read = _bfloat16_inputs(config)

  def loss(params, hidden):
    if way == 'mean':
      return mean_nll(params, config, hidden, targets)
    return jnp.mean(token_nll(params, config, hidden, targets, block=64))

  found, (d_params, d_hidden) = jax.jit(jax.value_and_grad(loss, (0, 1)))(params, hidden)
  assert found.dtype == jnp.float32 and d_hidden.dtype == jnp.bfloat16
  nll, shares = _expected(config, hidden, targets, read)
  bound, n = _bound(config, hidden, read), ROWS * TOKENS
  assert abs(float(found) - nll.mean()) <= bound + n * U * nll.mean()
  d_scores = (shares - np.eye(config.vocab_size)[np.asarray(targets)]).reshape(n, -1) / n
  # Of the bias: n terms as they are, each a share of its own error; the sum is in float32.
  error = np.abs(d_params['softmax_bias'][:config.vocab_size] - d_scores.sum(0))
  sizes = np.abs(d_scores).sum(0)
  assert d_params['softmax_bias'].dtype == jnp.float32
  assert (error <= (bound + n * U) * sizes + U).all()
  # Of the table: each term is rounded to bfloat16 once, before the product; the sums are not.
  flat = np.asarray(hidden, np.float64).reshape(n, -1)
  sizes = np.abs(d_scores).T @ np.abs(flat)
  gradient = d_params['embedding'][:config.vocab_size]
  error = np.abs(gradient - d_scores.T @ flat)
  assert (error <= (U_NARROW + bound + n * U) * sizes + U).all()
  # Terms next to the middle of two bfloat16 numbers may go the other way; most sums have none.
  error = np.abs(gradient - _narrow(d_scores).T @ flat)
  assert np.median(error / sizes) <= n * U


@pytest.mark.parametrize('cap', [0.0, 3.0])
@pytest.mark.parametrize('axes', [{}, {'data': 2, 'model': 4}])
def test_the_nll_of_a_table_and_its_gradients_in_blocks_on_any_mesh(cap, axes, monkeypatch):
  monkeypatch.setattr(softmax, 'BLOCK', 1)  # so 1,024 words at a time: 3 blocks, or 3 a device
  rng = np.random.default_rng(0)
  words, rows, size, width = 10_003 if axes else 2501, 2, 3, 5
  with jax.enable_x64():
    table, hidden = (jnp.asarray(rng.normal(size=s)) for s in ((words, width), (rows, size, width)))
    targets = jnp.asarray(rng.integers(0, words, (rows, size)), jnp.int32).at[0, 0].set(words - 1)

    def direct(table, hidden):
      logits = hidden @ table.T
      return next_token_nll(jnp.tanh(logits / cap) * cap if cap else logits, targets)

    def in_blocks(table, hidden):
      return table_nll(table, hidden, targets, dtype='float64', cap=cap)

    mesh = make_mesh(MeshConfig(**axes), jax.devices()[:math.prod(axes.values())])
    with on_mesh(mesh):
      nll, vjp = jax.vjp(jax.jit(in_blocks), table, hidden)
      gradients = vjp(jnp.arange(1.0, 7).reshape(rows, size))
    expected, vjp = jax.vjp(jax.jit(direct), table, hidden)
    np.testing.assert_allclose(nll, expected, rtol=1e-13)
    for found, exact in zip(gradients, vjp(jnp.arange(1.0, 7).reshape(rows, size)), strict=True):
      np.testing.assert_allclose(found, exact, rtol=1e-11, atol=1e-14)
