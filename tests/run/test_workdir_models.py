"""Scorers and encoders on the devices of several processes: the results of one, and failures."""

import inspect
import pathlib
import re
import types

import numpy as np
import pytest
import shared_model_cases
from groups import ends, starter

from fairjax.measure import Scorer, load_scorer, score_texts
from fairjax.measure.scorers.bert import BertScorer
from fairjax.measure.scorers.cache import read_score_file
from fairjax.measure.similarity import load_encoder
from fairjax.pretrained.batch_runner import busy_devices
from fairjax.run import workdir as group_module
from fairjax.run.workdir import SharedModels

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'pretrained'


@pytest.fixture(scope='module')
def group(tmp_path_factory, repository):
  """(folder, (code, printed, errors) of three processes with two devices each)."""
  folder = tmp_path_factory.mktemp('shared')
  with starter(repository) as start:
    return folder, ends(start(lambda place: [
      '-m', 'tests.shared_model_cases', place, GOLDEN, folder / 'group.npz'], 3, devices=2))


def test_three_processes_score_what_one_scores_and_the_first_decides(group, tmp_path):
  folder, found = group
  assert [re.findall(r'^shared (.*)$', text, re.M) for _, text, _ in found] == [
    [f'{len(shared_model_cases.TEXTS)}'], ['None'], ['None']], found
  shared_model_cases.run(SharedModels(), GOLDEN, tmp_path / 'one.npz')
  one, many = (np.load(p, allow_pickle=False)
               for p in (tmp_path / 'one.npz', folder / 'group.npz'))
  assert one['scores'].std() > 0.001 and one['cut'].min() > 0 and one['none'].shape[0] == 0
  for name in ('scores', 'vectors'):
    np.testing.assert_allclose(many[name], one[name], rtol=0, atol=1e-6)
  for name in ('cut', 'none'):
    np.testing.assert_array_equal(many[name], one[name])
  headers, known = zip(*(read_score_file(p / f'{n}.jsonl') for p, n in (
    (tmp_path, 'one'), (folder, 'group'))), strict=True)
  assert headers[0] == headers[1] and known[0].keys() == known[1].keys()


def test_outside_of_lead_a_model_of_all_refuses(group):
  _, found = group
  assert 'called outside of lead()' in found[0][1]


def test_a_failure_of_the_first_ends_all(group):
  """Instead of leaving the others to wait for texts."""
  _, found = group
  assert [code for code, _, _ in found] == [2, 2, 2], found
  assert 'a score file is damaged' in found[0][1]
  assert all('process 0 ended with code 2' in error for _, _, error in found[1:])


def test_a_led_model_is_what_it_leads_for_every_python(monkeypatch):
  """From 3.12 on `isinstance` with a protocol looks at attributes only, not at `__getattr__`."""
  monkeypatch.setattr(group_module.processes, 'count', lambda: 2)
  models = SharedModels()
  scorer = load_scorer(f'bert:{GOLDEN / "bert_classifier"}')
  encoder = load_encoder(f'minilm:{GOLDEN / "bert_mlm"}')
  for model, method in ((scorer, 'score'), (encoder, 'encode')):
    shared = models.add(model, method)
    for name in ('name', 'fingerprint', method):
      inspect.getattr_static(shared, name)
    assert (shared.name, shared.fingerprint) == (model.name, model.fingerprint)
    assert shared.max_length == model.max_length and shared.busy_devices == 1
  assert isinstance(models.add(scorer, 'score'), Scorer)


def test_more_devices_are_given_more_texts_at_once():
  device = types.SimpleNamespace(platform='tpu')
  mesh = types.SimpleNamespace(devices=np.array([[device] * 2] * 6), shape={'data': 6, 'model': 2})
  assert busy_devices(mesh) == 6 and busy_devices() == 1
  scorer = BertScorer(str(GOLDEN / 'bert_classifier'), mesh=mesh)
  sizes = []
  scorer.score = lambda texts: sizes.append(len(texts)) or np.full(len(texts), 0.5)
  score_texts([f'text {i}' for i in range(30_000)], scorer)
  assert sizes == [24_000, 6_000]
