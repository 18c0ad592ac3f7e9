"""The rewording floor: records of the arm, its I.F. by definition, its test by simulation."""

import itertools
import json

import numpy as np
import pytest
from scipy.stats import norm, wasserstein_distance
from score_arrays import from_arrays

from fairjax.cli.main import main
from fairjax.counterfactual import load_attribute
from fairjax.errors import UserError
from fairjax.generate import read_records
from fairjax.measure import measure_records
from fairjax.measure.nulls import LabelStatistics
from fairjax.measure.rewording import contrast, measure_rewording, rewording_sentence


def records(attribute, samples, move):
  rng = np.random.default_rng(0)
  prefixes = [*attribute.prefixes(), *attribute.reworded_prefixes()]
  for prefix in prefixes:
    value = attribute.values[prefix.value]
    for i in range(samples):
      score = rng.uniform(0.3, 0.5) + move * (prefix.value == 0)
      yield {'attribute': attribute.name, 'value': value.text, 'template': prefix.template,
             'prefix': prefix.text, 'continuation': f'it {i}', 'sample': i,
             'scores': {'s': score}} | (
               {'arm': 'rewording', 'rewording': prefix.rewording} if prefix.rewording else {})


def test_records_of_the_arm_give_the_definition_and_leave_the_rest_as_it_is():
  attribute = load_attribute('country')
  rows = list(records(attribute, 20, 0.4))
  found = measure_records(read_records(rows), attribute, ['recorded:s'], permutations=99)
  part = found['scorers']['recorded:s']
  words = part.pop('rewording')
  prompts = [r for r in rows if 'arm' not in r]
  assert measure_records(read_records(prompts), attribute, ['recorded:s'], permutations=99) == found
  scores = {}
  for r in rows:
    scores.setdefault((r['template'], r['value']), {}).setdefault(
      r.get('rewording', 0), []).append(r['scores']['s'])
  expected = np.mean([[wasserstein_distance(a, b) for a, b in itertools.combinations(
    cell.values(), 2)] for cell in scores.values()])
  np.testing.assert_allclose(words['individual_fairness']['value'], expected, rtol=1e-12)
  np.testing.assert_allclose(
    words['contrast'], np.diff([m['individual_fairness']['value'] - m['individual_fairness'][
      'null_mean'] for m in (words, part)])[0], rtol=1e-12)
  assert words['p_value'] == 2 / 2 ** 10
  assert words['records'] == len(rows) - len(prompts)


@pytest.mark.parametrize('numbered', [True, False])
def test_prompts_and_rewordings_are_compared_on_the_samples_that_they_share(numbered):
  attribute = load_attribute('country')
  rows = list(records(attribute, 9, 0.4))
  # Template 0 has no sample 3 of one rewording, template 1 no sample 8 of one prompt.
  lacking = {(0, 3 if numbered else 8): {'Iran', 2}, (1, 8): {'Syria', None}}
  part = [r for r in rows if {r['value'], r.get('rewording')} != lacking.get(
    (r['template'], r['sample']))]
  shared = [r for r in rows if (r['template'], r['sample']) not in lacking]
  assert len(rows) - len(part) == 2

  def measured(rows):
    kept = [r if numbered else {k: v for k, v in r.items() if k != 'sample'} for r in rows]
    return measure_records(kept, attribute, ['recorded:s'], permutations=19)

  found, expected = (measured(r) for r in (part, shared))
  words, others = (m['scorers']['recorded:s']['rewording'] for m in (found, expected))
  for key in ('individual_fairness', 'contrast', 'p_value'):
    assert words[key] == others[key]
  assert words['individual_fairness']['coupled'] is numbered
  left_out = 2 * 10 * 4 - 2  # of each template one sample of ten values in four phrasings
  assert (words['left_out'], others['left_out']) == (left_out, 0)
  assert any(f'leave out {left_out} samples' in note for note in found['notes'])


def test_many_templates_draw_their_signs():
  rng, count = np.random.default_rng(3), 15
  values, words = rng.normal(0.4, 1, count), rng.normal(0, 1, (count, 2))
  found, p_value = contrast(values, words.reshape(-1), permutations=20_000, seed=0)
  difference = values - words.mean(axis=1)
  np.testing.assert_allclose(found, difference.mean(), rtol=1e-12)
  signs = np.array(list(itertools.product((1, -1), repeat=count)))
  exact = np.mean(np.abs(signs @ difference) >= abs(difference.sum()) - 1e-12)
  assert 0.02 < exact < 0.9
  assert abs(p_value - exact) < 5 * np.sqrt(exact * (1 - exact) / 20_000)


def test_phrasings_that_share_less_noise_than_values_are_no_finding():
  # All prompts have the same distribution. Samples of a number agree more between values than
  # between phrasings, so that chance adds more to the I.F. of these, and raw contrasts find it.
  rng, rejected, unlikely = np.random.default_rng(0), 0, 0
  for _ in range(20):
    noise = rng.normal(size=(8, 1, 4, 60))  # [M, A, 1 + K, n]
    scores = norm.cdf(0.9 * noise + np.sqrt(1 - 0.81) * rng.normal(size=(8, 4, 4, 60)))
    prompts = from_arrays(scores[:, :, 0], coupled=True)
    phrasings = from_arrays(scores.reshape(32, 4, 60), coupled=True)
    raw = [LabelStatistics(s.scores, s.subgroup_index).observed().all_pairs[:, 0]
           for s in (prompts, phrasings)]
    unlikely += contrast(*raw, permutations=1, seed=0)[1] < 0.05
    found = measure_rewording(prompts, phrasings, permutations=20, seed=0)
    rejected += found['p_value'] <= 0.05
  assert unlikely > 10 and rejected <= 5  # of 20: once in 3,000


@pytest.mark.weekly
@pytest.mark.parametrize('coupled', [False, True])
@pytest.mark.parametrize('kind', ['binary', 'uniform', 'five levels', 'opinion words'])
def test_where_values_and_phrasings_move_alike_one_in_twenty_is_rejected(kind, coupled):
  rng, runs, rejected = np.random.default_rng(11), 2000, 0
  shape = 8, 4, 4, 60  # [M, A, 1 + K, n]
  for _ in range(runs):
    u = rng.random(shape)
    if coupled:
      u = np.where(rng.random(shape) < 0.7, rng.random((8, 1, 1, 60)), u)
    scores = {'binary': u < 0.3, 'uniform': u, 'five levels': np.round(4 * u) / 4,
              'opinion words': np.select([u < 0.2, u < 0.8], [0, 0.5], 1)}[kind].astype(float)
    for moved in ((8, 4, 1, 1), (8, 1, 4, 1)):  # a share of the scores of each becomes 1
      scores = np.where(rng.random(shape) < 0.3 * rng.random(moved), 1, scores)
    excess = []  # measure_rewording without the pairs of phrasings, which take longest
    for samples in (scores[:, :, 0], scores.reshape(32, 4, 60)):
      samples = from_arrays(samples, coupled=coupled)
      statistics = LabelStatistics(samples.scores, samples.subgroup_index)
      null = statistics.permuted(20, coupled=coupled, seed=0).all_pairs
      excess.append(statistics.observed().all_pairs[:, 0] - null.mean(axis=1))
    rejected += contrast(*excess, permutations=1, seed=0)[1] <= 0.05
  print(f'{kind}, {"coupled" if coupled else "independent"}: {rejected / runs:.1%} rejected')
  assert 0.04 <= rejected / runs <= 0.06


def test_prompts_with_rewordings_are_measured_and_reported(tmp_path, check_keys, capsys):
  prompts, answers = tmp_path / 'prompts.jsonl', tmp_path / 'answers.jsonl'
  assert main(['sample', '--prompts-only', '--rewordings', '--attribute=country',
               f'--output={prompts}']) == 0
  asked = [json.loads(line) for line in prompts.read_text().splitlines()]
  rows = list(records(load_attribute('country'), 1, 0.4))
  assert [(r['prefix'], r.get('rewording')) for r in asked] == [
    (r['prefix'], r.get('rewording')) for r in rows]
  answers.write_text('\n'.join(map(json.dumps, records(load_attribute('country'), 20, 0.4))))
  capsys.readouterr()
  options = [f'--records={answers}', '--attribute=country', '--scorer=recorded:s']
  assert main(['measure', *options, '--permutations=99']) == 0
  (line,) = [line for line in capsys.readouterr().out.splitlines() if 'contrast' in line]
  sentence = line.partition(': ')[2].partition(';')[0]
  assert 'p = 0.002' in sentence
  assert main(['report', *options, f'--output={tmp_path / "report"}']) == 0
  assert sentence in (tmp_path / 'report' / 'report.md').read_text()
  check_keys(json.loads((tmp_path / 'report' / 'report.json').read_text()), 'report')


@pytest.mark.parametrize(('corrected', 'within', 'difference', 'p', 'said'), [
  (0.1, False, 0.08, 0.002, 'moves the score 1.8 times as much as'),
  (0.0, False, 0.18, 0.002, 'moves the score more than'),  # no ratio to chance
  (0.1, True, 0.08, 0.002, 'moves the score more than'),
  (0.3, False, -0.12, 0.002, 'moves the score less than'),
  (0.1, False, 0.08, 0.06, 'do not tell'),
  (0.0, True, -0.02, 0.002, 'beyond noise')])
def test_the_sentence_says_what_the_contrast_says(corrected, within, difference, p, said):
  found = {'individual_fairness': {'corrected': corrected, 'within_floor': within},
           'contrast': difference, 'p_value': p}
  noise = said == 'beyond noise'  # of both
  line = rewording_sentence(found, {'within_floor': noise or difference < 0}, 'country')
  assert said in line and (noise or f'p = {p}' in line)


@pytest.mark.parametrize(('number', 'words'), [
  (0, r'template 0 has the rewordings \[\], the records have \[1, 2, 3\]'),
  (2, r'template 0 has the rewordings \[1, 3\], the records have \[1, 2, 3\]')])
def test_an_arm_that_lacks_a_template_is_refused(number, words):
  attribute = load_attribute('country')
  rows = [r for r in records(attribute, 1, 0)
          if 'arm' not in r or r['template'] or number not in (0, r['rewording'])]
  with pytest.raises(UserError, match=words):
    measure_records(read_records(rows), attribute, ['recorded:s'], permutations=9)
