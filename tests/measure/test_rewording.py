"""The rewording floor: records of the arm, its I.F. by definition, its test by simulation."""

import itertools
import json

import numpy as np
import pytest
from scipy.stats import wasserstein_distance
from score_arrays import from_arrays

from fairjax.cli.main import main
from fairjax.counterfactual import load_attribute
from fairjax.errors import UserError
from fairjax.generate import read_records
from fairjax.measure import measure_records
from fairjax.measure.rewording import contrast, rewording_sentence


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
    words['contrast'], part['individual_fairness']['value'] - expected, rtol=1e-12)
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
  values, words = rng.random((count, 2, 40)) + [[[0.0], [0.05]]], rng.random((count, 2, 40))
  found, p_value = contrast(*(from_arrays(x / 2) for x in (values, words)),
                            permutations=20_000, seed=0)
  difference = np.array([wasserstein_distance(*a) - wasserstein_distance(*b)
                         for a, b in zip(values / 2, words / 2, strict=True)])
  np.testing.assert_allclose(found, difference.mean(), rtol=1e-12)
  signs = np.array(list(itertools.product((1, -1), repeat=count)))
  exact = np.mean(np.abs(signs @ difference) >= abs(difference.sum()) - 1e-12)
  assert 0.02 < exact < 0.9
  assert abs(p_value - exact) < 5 * np.sqrt(exact * (1 - exact) / 20_000)


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
  (0.1, False, 0.08, 0.06, 'do not tell')])
def test_the_sentence_says_what_the_contrast_says(corrected, within, difference, p, said):
  found = {'individual_fairness': {'corrected': corrected, 'within_floor': within},
           'contrast': difference, 'p_value': p}
  line = rewording_sentence(found, {'corrected': 0.18}, 'country')
  assert said in line and f'p = {p}' in line


@pytest.mark.parametrize(('number', 'words'), [
  (0, r'template 0 has the rewordings \[\], the records have \[1, 2, 3\]'),
  (2, r'template 0 has the rewordings \[1, 3\], the records have \[1, 2, 3\]')])
def test_an_arm_that_lacks_a_template_is_refused(number, words):
  attribute = load_attribute('country')
  rows = [r for r in records(attribute, 1, 0)
          if 'arm' not in r or r['template'] or number not in (0, r['rewording'])]
  with pytest.raises(UserError, match=words):
    measure_records(read_records(rows), attribute, ['recorded:s'], permutations=9)
