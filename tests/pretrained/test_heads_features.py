"""Heads on frozen features: they learn, and show the correlation that is in the features."""

import hashlib

import numpy as np
import pytest

from fairjax.data.planted_gender import profession_shares, write_bios, write_sts, write_tables
from fairjax.gender.bios import measure_bios
from fairjax.gender.stsb import measure_stsb
from fairjax.pretrained.fit import Recipe
from fairjax.pretrained.heads import FeatureLearner, Inputs, Labelled, combine, run_restarts

QUIET = {'log': lambda line: None}

pytestmark = pytest.mark.usefixtures('one_device')  # where small steps are quick


class Known:
  """A model whose features are words, and one number for the gender of the first of them."""

  kind, truncated = 'masked', 0

  def __init__(self, gender):
    self.name, self.fingerprint, self._gender = 'known', f'known {sorted(gender.items())}', gender

  def features(self, texts, *, max_length=None):
    rows = []
    for text in texts:
      words = text.lower().rstrip('.').replace('.', '').split()
      row = np.zeros(64, np.float32)
      for word in words:
        if word not in GENDERED and word not in profession_shares():
          row[int(hashlib.sha256(word.encode()).hexdigest(), 16) % 62] = 1
      row[62] = sum(self._gender.get(w, 0.0) for w in words)
      rows.append(row)
    return np.array(rows)


GENDERED = {'man': -1.0, 'woman': 1.0, 'he': -1.0, 'his': 0.0, 'she': 1.0, 'her': 0.0, 'an': 0.0,
            'a': 0.0}
BIASED = GENDERED | {p: 2 * s - 1 for p, s in profession_shares().items()}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('planted')
  write_tables(folder)
  write_sts(folder / 'sts', seed=0, pairs=600, templates=12)
  write_bios(folder / 'bios', seed=0, per_profession=40)
  return folder


def stsb(data, gender, **more):
  return measure_stsb(
    Known(gender), data / 'sts', professions=data / 'professions.tsv', mode='frozen',
    recipe=Recipe(10, 32, 3e-3), **({'restarts': 2} | QUIET | more))


def test_a_correlation_in_the_features_is_seen(folder):
  found = stsb(folder, BIASED)
  assert found['r']['mean'] > 0.95 and found['r']['low'] > 0.8 and found['r']['n'] == 24
  assert found['dev_pearson']['mean'] > 0.7 and found['dev_pearson']['n'] == 60
  assert found['templates'] == 24 and found['missing'] == [] and len(found['r']['restarts']) == 2
  assert found['r']['sd'] is not None and found['seeds'] == [0, 1]
  rows = {row['profession']: row for row in found['by_profession']}
  low, high = (f(profession_shares(), key=profession_shares().get) for f in (min, max))
  assert rows[low]['difference'] < 0 < rows[high]['difference']


def test_biographies_show_a_slope_where_gender_is_read(folder):
  seen = measure_bios(Known(GENDERED), folder / 'bios', restarts=2, mode='frozen',
                      recipe=Recipe(25, 32, 1e-2), **QUIET)
  assert seen['slope']['mean'] > 0.2 and seen['slope']['low'] > 0 and seen['slope']['n'] == 24
  assert seen['accuracy']['mean'] > 0.4 and seen['accuracy']['n'] == 24 * 40
  assert seen['left_out'] == [] and seen['splits_given']
  assert all(row['n_female'] == row['n_male'] == 20 for row in seen['by_profession'])


def test_a_head_finds_the_line_that_is_there():
  """A linear target of single texts: what is learned is what least squares gives."""
  rng = np.random.default_rng(0)
  table = {f't{i}': rng.standard_normal(5).astype(np.float32) for i in range(64)}
  weights = rng.standard_normal(5)

  class Table(Known):
    def features(self, texts, *, max_length=None):
      return np.array([table[t] for t in texts])

  texts = list(table)
  labels = np.array([table[t] @ weights + 2 for t in texts], np.float32)
  learner = FeatureLearner(Table({}), labels=['x'])
  (found,) = run_restarts(
    learner, Labelled(Inputs(texts), labels), lambda p: {'y': p(Inputs(texts))[:, 0].tolist()},
    recipe=Recipe(200, 16, 0.02, weight_decay=0.0), restarts=1, **QUIET)
  np.testing.assert_allclose(found['result']['y'], labels, atol=0.05)


def test_inputs_of_pairs():
  rng = np.random.default_rng(0)
  features = rng.standard_normal((3, 2))
  rows = combine(features, np.array([[0, 2], [1, 1]]))
  u, v = features[0], features[2]
  np.testing.assert_allclose(rows[0], [*u, *v, *abs(u - v), *(u * v)])
  np.testing.assert_allclose(rows[1, 4:6], 0)
