"""A run that is opened by its workdir; thresholds; perplexity with memory."""

import dataclasses
import json
import pathlib
import tarfile
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_sampler import CONFIG, make_params

from fairjax.config import Config, MeasureConfig, MeshConfig, ModelConfig
from fairjax.config_io import load_config, to_dict
from fairjax.data import batches as streams
from fairjax.errors import UserError
from fairjax.files import write_json, write_sealed_json
from fairjax.measure.content import content_options
from fairjax.model import TransformerXL, init_memory, language_model
from fairjax.model.likelihood import next_token_nll
from fairjax.run.job import Job
from fairjax.run.results import Run, open_run
from fairjax.train import make_mesh
from fairjax.vocabulary import build_word_vocabulary

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden'


def save_model(workdir, *, fingerprint=None):
  """The files of a finished run, without arrays."""
  vocabulary = build_word_vocabulary(
    ['a b c d'], size=10, directory=workdir / 'data' / 'vocabulary')
  config = dataclasses.replace(Config(), model=ModelConfig(
    num_layers=2, model_dim=8, attention='kernel'))
  write_json(workdir / 'config.json', {'config': to_dict(config)})
  write_sealed_json(workdir / 'lm' / 'DONE', {
    'step': 1, 'digest': 'd', 'summary': {},
    'identity': {'vocabulary': fingerprint or vocabulary.fingerprint}})


def test_a_run_is_opened_without_its_corpus(tmp_path):
  save_model(tmp_path)
  before = sorted(tmp_path.rglob('*'))
  run = open_run(tmp_path)
  assert run.model_config.vocab_size == run.vocabulary.size == 7
  assert run.model_config.attention == 'auto'  # the kernel needs a TPU
  assert run.metadata(run.find_model('baseline')) == {
    'vocabulary': run.vocabulary.fingerprint, 'digest': 'd', 'model': 'baseline'}
  assert run.attribute.name == 'country'
  assert not run.has_data and sorted(tmp_path.rglob('*')) == before
  with pytest.raises(UserError, match='no finished data'):
    _ = run.prepared


def test_a_model_that_the_configuration_had_earlier_is_found(tmp_path):
  save_model(tmp_path)
  run = open_run(tmp_path)
  write_sealed_json(tmp_path / 'debias' / 'country-embedding-3' / 'DONE', {
    'digest': 'e', 'identity': {'vocabulary': run.vocabulary.fingerprint, 'method': 'embedding',
                                'fairness_weight': 3.0}})
  model = run.find_model('country-embedding-3')
  assert (model.method, model.weight) == ('embedding', 3.0)


@pytest.mark.parametrize('lacking', ['config.json', 'vocabulary.json', 'lm/DONE'])
def test_what_a_workdir_lacks_is_named(tmp_path, lacking):
  save_model(tmp_path)
  next(p for p in tmp_path.rglob('*') if str(p).endswith(lacking)).unlink()
  with pytest.raises(UserError, match=lacking):
    open_run(tmp_path).find_model('baseline')


def test_another_model_or_vocabulary_is_refused(tmp_path):
  save_model(tmp_path / 'run')
  with pytest.raises(UserError, match="unknown model 'basline'.*did you mean 'baseline'"):
    open_run(tmp_path / 'run').find_model('basline')
  save_model(tmp_path / 'mixed', fingerprint='0' * 64)
  with pytest.raises(UserError, match='another vocabulary'):
    open_run(tmp_path / 'mixed').find_model('baseline')


def options_of(*, encoder='encoder', baseline_threshold=None, **measure):
  return content_options(
    MeasureConfig(**measure), encoder, {'kl': 0.5}, baseline_threshold=baseline_threshold)


def test_thresholds():
  plain = options_of(similarity_samples=3)
  assert (plain.encoder, plain.samples, plain.threshold) == ('encoder', 3, None)
  assert plain.next_token == {'kl': 0.5}
  given = options_of(similarity_threshold='0.35')
  assert (given.threshold, given.baseline_share) == (0.35, None)
  calibrated = {'similarity_threshold': 'baseline:0.2'}
  first = options_of(**calibrated)
  assert (first.threshold, first.baseline_share) == (None, 0.2)
  later = options_of(**calibrated, baseline_threshold=lambda: 0.61)
  assert (later.threshold, later.baseline_share) == (0.61, 0.2)
  none = options_of(**calibrated, encoder=None, baseline_threshold=lambda: 1 / 0)
  assert none.encoder is None and none.threshold is None


def read_by_segments(params, tokens, *, memory_len, segment):
  """A slow reading with uncached memory, segment by segment: total nats."""
  config = dataclasses.replace(CONFIG, memory_len=memory_len)
  model = TransformerXL(config)

  @jax.jit
  def read(inputs, targets, memory):
    output = model.apply({'params': params}, inputs, memory)
    logits = language_model(model.config).logits(params, output.hidden)
    return next_token_nll(logits, targets).sum(), output.state

  memory, nll = init_memory(config, 1), 0.0
  for i in range(0, len(tokens) - 1, segment):
    part, memory = read(jnp.asarray(tokens[None, i:i + segment]),
                        jnp.asarray(tokens[None, i + 1:i + 1 + segment]), memory)
    nll += float(part)
  return nll


def test_perplexity_carries_memory_of_the_asked_length(monkeypatch, tmp_path):
  params, segment = make_params(CONFIG), 4
  tokens = np.random.default_rng(0).integers(2, 12, 13)

  def eval_batches(store, *, batch_size, segment_len, start_ids):
    assert start_ids is None
    for i in range(0, 12, segment):
      yield {'inputs': tokens[None, i:i + segment].astype(np.int32),
             'targets': tokens[None, i + 1:i + 1 + segment].astype(np.int32),
             'reset': np.array([i == 0]), 'weights': np.ones((1, segment), np.float32)}

  monkeypatch.setattr(streams, 'eval_batches', eval_batches)
  store, found, lines = types.SimpleNamespace(documents=1, words=6, num_bytes=40), {}, []
  run = Run(Config(), tmp_path, lines.append)
  run.prepared = types.SimpleNamespace(store=lambda split: store)
  run.model_config, run.mesh = CONFIG, make_mesh(MeshConfig(), jax.devices()[:1])
  for memory_len in (0, 5, -1):
    run.config = Config(measure=MeasureConfig(eval_memory_len=memory_len, eval_batch_size=1))
    found[memory_len] = p = run.perplexity(params, 'test')
    used = CONFIG.memory_len if memory_len < 0 else memory_len
    assert (p['memory_len'], p['tokens'], p['words']) == (used, 12, 6)
    nll = read_by_segments(params, tokens, memory_len=used, segment=segment)
    assert p['nll'] == pytest.approx(nll, rel=1e-5)
    assert p['word'] == pytest.approx(np.exp(nll / 6), rel=1e-4)
    assert p['bits_per_byte'] == pytest.approx(nll / 40 / np.log(2), rel=1e-5)
  # With all of the text remembered, segments give what one long pass gives.
  whole = read_by_segments(params, tokens, memory_len=CONFIG.memory_len, segment=12)
  assert found[-1]['nll'] == pytest.approx(whole, rel=1e-5)
  for shorter in (0, 5):  # and what is forgotten shows
    assert abs(found[shorter]['nll'] - whole) > 1e-3
  store.documents = 0
  assert run.perplexity(params, 'test') is None and 'test holds no document' in lines[-1]


@pytest.mark.tf
def test_a_workdir_of_format_1_goes_on(tmp_path):
  """What fairjax 0.1 left: its texts measured again are its measures, and nothing is made anew."""
  with tarfile.open(GOLDEN / 'workdir_format1.tar.gz') as archive:
    archive.extractall(tmp_path, filter='data')
  path, lines = tmp_path / 'measures' / 'baseline' / 'country.json', []
  before = json.loads(path.read_text())
  for scorer in before['measures']['scorers'].values():
    scorer['lexicon_words_unmatchable'] = []  # which it did not say
  path.unlink()
  (tmp_path / 'DONE').unlink()
  job = Job(load_config(str(tmp_path / 'config.json')), tmp_path, log=lines.append)
  job.run()
  after = json.loads(path.read_text())
  expected = before['measures'] | {
    'next_token_divergence': after['measures']['next_token_divergence']}
  # BLAS adds in another order on another processor.
  assert after['measures'] == jax.tree.map(
    lambda x: pytest.approx(x, rel=1e-12) if isinstance(x, float) else x, expected)
  for found in ('test', 'test_sensitive'):
    assert after['perplexity'][found]['token'] == pytest.approx(
      before['perplexity'][found]['token'], rel=1e-5)
  assert after['measures']['next_token_divergence']['kl'] == pytest.approx(
    before['measures']['next_token_divergence']['kl'], rel=1e-3)
  text = '\n'.join(lines)
  assert '[lm] finished earlier: nothing to do' in text and 'complete (200 records)' in text
  assert (tmp_path / 'report' / 'index.html').is_file()
