"""Losses against NumPy in float64, closed forms and finite differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.spatial.distance
import scipy.special
import scipy.stats
from model_oracle import golden_decoder

from fairjax.config import DebiasConfig, MeshConfig, SentimentConfig, TrainConfig
from fairjax.data.token_store import DocumentRows
from fairjax.train import make_mesh
from fairjax.train import steps as losses
from fairjax.train.optimizer import Adam

RNG = np.random.default_rng(0)


def test_cosine_loss_is_scipy_cosine_distance():
  a, b = RNG.normal(size=(2, 3, 4, 5))
  weights = RNG.integers(0, 3, size=(3, 4)).astype(float)
  expected = np.average(
    [[scipy.spatial.distance.cosine(x, y) for x, y in zip(r, s, strict=True)]
     for r, s in zip(a, b, strict=True)], weights=weights)
  with jax.enable_x64(True):
    found = losses.cosine_fairness_loss(jnp.asarray(a), jnp.asarray(b), jnp.asarray(weights))
    assert abs(float(found) - expected) < 1e-12


def test_cosine_loss_ignores_padding_even_nan_and_is_zero_without_pairs():
  a, b = jnp.ones((1, 2, 3)), jnp.ones((1, 2, 3)).at[0, 1].set(jnp.nan)
  weights = jnp.array([[1.0, 0.0]])
  value, gradient = jax.value_and_grad(losses.cosine_fairness_loss)(a, b, weights)
  assert abs(float(value)) < 1e-6
  assert np.isfinite(np.asarray(gradient)).all()
  assert float(losses.cosine_fairness_loss(a, a, jnp.zeros((1, 2)))) == 0.0


def test_cosine_loss_of_zero_vectors_is_one_with_finite_gradient():
  value, gradient = jax.value_and_grad(losses.cosine_fairness_loss)(
    jnp.zeros((1, 1, 4)), jnp.ones((1, 1, 4)), jnp.ones((1, 1)))
  assert float(value) == 1.0
  assert np.isfinite(np.asarray(gradient)).all()


def test_divergences_are_scipy_ones():
  p, q = RNG.normal(size=(2, 2, 3, 7))
  weights = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]])
  soft_p, soft_q = scipy.special.softmax(p, -1), scipy.special.softmax(q, -1)
  kl = np.average(scipy.stats.entropy(soft_p, soft_q, axis=-1), weights=weights)
  js = np.average(scipy.spatial.distance.jensenshannon(soft_p, soft_q, axis=-1) ** 2,
                  weights=weights)
  with jax.enable_x64(True):
    found = losses.next_token_divergences(jnp.asarray(p), jnp.asarray(q), jnp.asarray(weights))
    assert abs(float(found['kl']) - kl) < 1e-12
    assert abs(float(found['js']) - js) < 1e-12


def test_js_of_disjoint_distributions_is_ln_2():
  p = jnp.array([[[50.0, -50.0]]])
  found = losses.next_token_divergences(p, -p, jnp.ones((1, 1)))
  np.testing.assert_allclose(found['js'], np.log(2), rtol=1e-6)


def test_binary_cross_entropy_is_the_log_likelihood_and_stays_finite():
  logits, labels = np.array([-3.0, 0.2, 80.0, -80.0]), np.array([0.0, 1.0, 1.0, 1.0])
  expected = -np.mean(np.where(labels > 0, scipy.special.log_expit(logits),
                               scipy.special.log_expit(-logits)))
  found = losses.binary_cross_entropy(jnp.asarray(logits, jnp.float32),
                                      jnp.asarray(labels, jnp.float32))
  np.testing.assert_allclose(found, expected, rtol=1e-6)


B, T, K, P, N = 3, 14, 4, 2, 2


def document_batch(start_ids):
  """Rows of random documents, and branches in them; the last branches are padding."""
  rng = np.random.default_rng(0)
  sizes = [4, 6, 1, 11, 3, 5, 2]
  tokens = np.concatenate([[*rng.integers(3, 61, size), 2] for size in sizes]).astype(np.uint16)
  rows = DocumentRows(tokens, np.zeros((0, 3), int), np.cumsum(np.array(sizes) + 1), batch_size=B,
                      segment_len=T, start_ids=start_ids)
  batch = rows.read(0)
  start, length, end = np.zeros((3, B, K), np.int32)
  pieces, tail = np.zeros((B, K, P + N), np.int32), np.zeros((B, K, N), bool)
  for row in range(B):
    places = np.flatnonzero((batch['positions'][row] >= len(start_ids))
                            & (batch['segment_ids'][row] >= 0))
    for k, at in enumerate(sorted(rng.choice(places, K - 1, replace=False))):
      same = batch['segment_ids'][row] == batch['segment_ids'][row, at]
      start[row, k], end[row, k] = at, min(at + rng.integers(2), np.flatnonzero(same)[-1])
      new = rng.integers(3, 61, rng.integers(1, P + 1)).tolist()
      after = batch['inputs'][row][same & (np.arange(T) > end[row, k])][:N].tolist()
      length[row, k], tail[row, k, :len(after)] = len(new + after), True
      pieces[row, k, :length[row, k]] = new + after
  return batch | {
    'branch_tokens': pieces, 'branch_tail': tail, 'branch_start': start, 'branch_len': length,
    'original_end': end, 'branch_weight': (length > 0).astype(np.float32),
    'branch_counts': np.zeros((B, 5), np.int32)}


def document_texts(batch):
  """Each document of the rows alone: texts, targets, weights, and what its branches compare.

  A comparison is (number of the text, its place, the other text, its place, weight).
  """
  texts, targets, weights, pairs = [], [], [], []
  for row in range(B):
    ids = batch['segment_ids'][row]
    for document in range(ids.max() + 1):
      own = np.flatnonzero(ids == document)
      number, size = len(texts), len(own)
      for found, name in ((texts, 'inputs'), (targets, 'targets'), (weights, 'weights')):
        found.append(np.pad(batch[name][row, own], (0, T + P - size)))
      for k in np.flatnonzero(batch['branch_weight'][row]):
        start, end = batch['branch_start'][row, k], batch['original_end'][row, k]
        if start in own:
          new = batch['branch_tokens'][row, k, :batch['branch_len'][row, k]]
          other, after = [*batch['inputs'][row, own[0]:start], *new], batch['branch_tail'][row, k]
          share = np.float32(1) / np.float32(1 + after.sum())  # the batch's weights are float32
          for j in range(1 + after.sum()):
            pairs.append((number, end - own[0] + j, np.pad(other, (0, T + P - len(other))),
                          len(other) - 1 - after.sum() + j, share))
  return ([jnp.asarray(np.array(x)) for x in (texts, targets, weights)],
          [jnp.asarray(np.array(x)) for x in zip(*pairs, strict=True)])


def sentiment_features(projection, layer, h):
  """What f_sh compares (H-22), from its weights."""
  for i in range(2):
    h = jnp.maximum(h @ projection[f'weight_{i}'] + projection[f'bias_{i}'][None], 0)
  if layer == 'hidden':
    return h
  p = 1 / (1 + jnp.exp(-(h @ projection['weight_2'] + projection['bias_2'][None])))
  return jnp.concatenate([1 - p, p], axis=-1)


@pytest.mark.parametrize(('name', 'start_ids', 'gradient', 'layer'), [
  ('llama', (1,), 'both', 'hidden'), ('gpt2', (), 'branch', 'probability')])
@jax.enable_x64()
def test_the_step_of_a_decoder_is_that_of_each_document_alone(name, start_ids, gradient, layer):
  (model, params), batch = golden_decoder(name), document_batch(start_ids)
  factors, sentiment = {'embedding': 3.0, 'sentiment': 2.0}, SentimentConfig(hidden_dim=8)
  rng = np.random.default_rng(2)
  projection = {f'{kind}_{i}': jnp.asarray(rng.normal(size=shape[kind == 'bias':]))
                for i, shape in enumerate([(16, 8), (8, 8), (8, 1)]) for kind in ('weight', 'bias')}
  (texts, targets, weights), (number, place, others, there, used) = document_texts(batch)
  mesh = make_mesh(MeshConfig(), jax.devices()[:1])
  stage = TrainConfig(batch_size=B, clip_norm=1e9)
  term = losses.FairnessTerm.of(
    DebiasConfig(monitor_every=0, gradient=gradient, sentiment_layer=layer), sentiment)
  step = losses.make_debias_step(model, Adam.of(stage), term, mesh)
  state = losses.init_lm_state(model, stage, mesh, seed=0, params=params)
  state, metrics = step(state, batch, 0, np.float32(0), factors, projection)
  _, plain = losses.make_lm_step(model, Adam.of(stage), mesh)(
    losses.init_lm_state(model, stage, mesh, seed=0, params=params), batch, 0, np.float32(0))

  @jax.jit
  @functools.partial(jax.value_and_grad, has_aux=True)
  def slow(params, frozen):
    everywhere = jnp.tile(jnp.arange(T + P), (len(texts), 1))
    whole = model.apply(params, texts, model.init_state(len(texts)), positions=everywhere)
    nll = (model.nll(params, whole.hidden, targets) * weights).sum() / weights.sum()
    others_h = model.apply(params, others, model.init_state(len(others)),
                           positions=there[:, None]).h_bar_at[:, 0]
    if gradient == 'branch':  # the original's states are those of other parameters
      whole = model.apply(frozen, texts, model.init_state(len(texts)), positions=everywhere)
    here, fairness = whole.h_bar_at[number, place], 0.0
    for part, factor in factors.items():
      x, y = (h if part == 'embedding' else sentiment_features(projection, layer, h)
              for h in (here, others_h))
      cosine = (x * y).sum(-1) / jnp.linalg.norm(x, axis=-1) / jnp.linalg.norm(y, axis=-1)
      fairness += factor * ((1 - cosine) * used).sum() / used.sum()
    return nll + fairness, nll

  (loss, nll), wanted = slow(params, params)
  assert not {'kl', 'js'} & metrics.keys()  # without the monitor
  assert float(plain['loss'][0]) == pytest.approx(float(nll), rel=1e-12)
  assert float(metrics['total_loss'][0]) == pytest.approx(float(loss), rel=1e-12)
  first_moment = state.opt_state[1].mu
  jax.tree.map(lambda m, g: np.testing.assert_allclose(m / (1 - stage.adam_b1), g, rtol=0,
                                                       atol=1e-11), first_moment, wanted)
  assert weights.sum() == batch['weights'].sum()
  assert used.sum() == pytest.approx(batch['branch_weight'].sum()) and len(used) > used.sum() + 3
