"""The metrics in use: arrays and records in Python, JSONL on the command line; bad input."""

import json
import sys

import numpy as np
import pytest

from fairjax.cli.main import main
from fairjax.counterfactual import load_attribute
from fairjax.errors import UserError
from fairjax.measure import (
  OpinionScorer,
  group_fairness,
  individual_fairness,
  measure_fairness,
  measure_records,
  read_attributes,
  score_texts,
)
from fairjax.measure.estimates import SampleScores

COLOUR = "name: colour\nvalues: [Red, Blue, Green]\ntemplates: ['{value} is', 'Near {value} are']\n"
SIZE = "name: size\nvalues: [Big, Small]\ntemplates: ['The {value} one is']\n"


def make_records(attribute, *, samples=6, numbered=True, skip=0):
  """Records with one opinion word each and a recorded score."""
  rng = np.random.default_rng(len(attribute.name))
  records = []
  for t, a in np.ndindex(len(attribute.templates), len(attribute.values)):
    for i in range(samples - (skip if (t, a) == (0, 1) else 0)):
      good = bool(rng.integers(0, 2))
      records.append({
        'attribute': attribute.name, 'value': attribute.values[a].text, 'template': t,
        'prefix': attribute.prefix(t, a), 'continuation': f"{'good' if good else 'bad'} {i}",
        'scores': {'s': float(good)}} | ({'sample': i} if numbered else {}))
  return records


@pytest.fixture
def files(tmp_path):
  for name, text in (('colour', COLOUR), ('size', SIZE)):
    (tmp_path / f'{name}.yaml').write_text(text)
  (tmp_path / 'positive.txt').write_text('good\nenvious\n')
  (tmp_path / 'negative.txt').write_text('bad\nenvious\n')
  return tmp_path


def write(path, records):
  path.write_text(''.join(json.dumps(r) + '\n' for r in records))
  return path


def test_arrays_of_every_shape_give_the_same_numbers():
  rng = np.random.default_rng(0)
  scores = rng.random((2, 3, 15))
  named = {t: {v: scores[t, a].tolist() for a, v in enumerate('xyz')} for t in range(2)}
  estimates = [individual_fairness(s, permutations=30) for s in (
    scores, scores.tolist(), named, SampleScores.from_arrays(scores))]
  assert all(e == estimates[0] for e in estimates)
  one = group_fairness(scores[0], permutations=30)
  assert one == group_fairness(scores[:1], permutations=30) and one.group == 'subgroups against all'
  paired = individual_fairness(scores, permutations=30, coupled=True)
  assert paired.coupled and paired.value == estimates[0].value
  assert paired.null_mean != estimates[0].null_mean


@pytest.mark.parametrize(('scores', 'message'), [
  ([[0.1, float('nan')], [0.2, 0.3]], "value 'v0': score 2 is nan"),
  ([[0.1, 0.5], [-0.4, 0.3]], r'score 1 is -0.4.*use \(s \+ 1\) / 2'),
  ([[0.1]], 'at least 2'),
  ({0: {'a': [0.1], 'b': [0.2]}, 1: {'a': [0.1], 'c': [0.2]}}, 'every value is needed'),
  ([[[0.1], [0.2]], [[0.1], [0.2], [0.3]]], 'same number of values'),
])
def test_arrays_that_cannot_be_used_are_refused(scores, message):
  with pytest.raises(UserError, match=message):
    individual_fairness(scores, permutations=2)


def test_coupling_of_arrays_is_checked():
  with pytest.raises(UserError, match='same n'):
    individual_fairness([[0.1, 0.2], [0.3]], coupled=True)
  with pytest.raises(ValueError, match='property of SampleScores'):
    individual_fairness(SampleScores.from_arrays([[0.1], [0.3]]), coupled=True)


def test_subsets_of_templates_are_measured_by_themselves():
  scores = np.random.default_rng(1).random((4, 3, 25))
  samples = SampleScores.from_arrays(scores, templates='abcd', subgroups='xxy')
  part = measure_fairness(samples, permutations=20, subsets={'some': ['d', 'b']}).subsets['some']
  alone = measure_fairness(samples.select_templates(['d', 'b']), permutations=20)
  for name in ('individual', 'cross_subgroup', 'within_subgroup', 'group'):
    mine, other = getattr(part, name), getattr(alone, name)
    assert mine.value == pytest.approx(other.value, abs=1e-12)
    assert mine.std_error == pytest.approx(other.std_error, rel=1e-9)
    assert mine.null_mean == pytest.approx(other.null_mean, rel=0.2)


def test_threads_do_not_change_the_result(monkeypatch):
  samples = SampleScores.from_arrays(np.random.default_rng(2).random((3, 4, 30)), coupled=True)
  results = []
  for cores in (1, 3):
    monkeypatch.setattr('fairjax.measure.nulls.cores', lambda cores=cores: cores)
    results.append(measure_fairness(samples, permutations=700, seed=5))
  assert results[0].individual == results[1].individual and results[0].group == results[1].group
  assert np.array_equal(results[0].cells.null_p95, results[1].cells.null_p95)


def test_two_lines_audit_a_file(files):
  attribute = load_attribute(str(files / 'colour.yaml'))
  lexicon = (files / 'positive.txt', files / 'negative.txt')
  measures = measure_records(make_records(attribute), str(files / 'colour.yaml'),
                             ['opinion', 'recorded:s'], lexicon=lexicon, permutations=9)
  opinion, recorded = measures['scorers'].values()
  assert opinion['individual_fairness'] == recorded['individual_fairness']
  assert opinion['lexicon_words_in_both'] == ['envious']
  assert any('1 of its words stand in both lists' in note for note in measures['notes'])
  assert np.shape(opinion['cells']['p_holm']) == (2, 3) == np.shape(opinion['samples'])
  assert [p['values'] for p in opinion['largest_pairs']][0] in opinion['pairs']['values']


def test_several_attributes_in_one_file_each_as_if_alone(files, capsys):
  attributes = [load_attribute(str(files / f'{n}.yaml')) for n in ('colour', 'size')]
  records = [r for a in attributes for r in make_records(a)]
  mixed = [records[i] for i in np.random.default_rng(3).permutation(len(records))]
  path = write(files / 'r.jsonl', mixed)
  arguments = ['measure', f'--records={path}', '--scorer=recorded:s', '--permutations=19']
  named = [f'--attribute={files / n}.yaml' for n in ('colour', 'size')]
  assert main([*arguments, *named, '--json', f'--output={files}/m.json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert list(found) == ['colour', 'size'] and json.loads((files / 'm.json').read_text()) == found
  write(path, [r for r in records if r['attribute'] == 'size'])
  assert main([*arguments, named[1], '--json']) == 0
  alone = json.loads(capsys.readouterr().out)
  assert alone['scorers']['recorded:s'] == found['size']['scorers']['recorded:s']
  assert main([*arguments, named[0]]) == 2
  assert "attribute is 'size', not 'colour'" in capsys.readouterr().err
  assert main([*arguments, named[1], named[1]]) == 2
  assert 'named twice' in capsys.readouterr().err
  with pytest.raises(UserError, match='no records of attribute colour'):
    read_attributes([r for r in records if r['attribute'] == 'size'], attributes)


def test_words_for_people_name_groups_p_values_and_notes(files, capsys):
  attribute = load_attribute(str(files / 'colour.yaml'))
  path = write(files / 'r.jsonl', make_records(attribute, skip=2))
  assert main(['measure', f'--records={path}', f'--attribute={files}/colour.yaml',
               '--scorer=recorded:s', '--permutations=19']) == 0
  out = capsys.readouterr().out
  assert 'n = 4-6 per prefix, independent samples' in out and 'p = ' in out and 'corrected' in out
  assert "note: n differs: 1 of 6 prefixes have fewer than 6 samples, fewest 4 (template 0, value" \
    in out
  assert 'not all values of a template have the same numbers' in out
  assert '19 permutations are too few' in out


def test_repeated_records_are_refused_or_reported(files):
  attribute = load_attribute(str(files / 'colour.yaml'))
  records = make_records(attribute)
  with pytest.raises(UserError, match='occurs twice: remove one'):
    measure_records([*records, records[3]], attribute, ['recorded:s'], permutations=2)
  free = make_records(attribute, numbered=False)
  measures = measure_records([*free, free[3], free[3]], attribute, ['recorded:s'], permutations=2)
  assert any(note.startswith('2 of 38 records repeat') for note in measures['notes'])
  measures = measure_records(free, attribute, ['recorded:s'], permutations=99)
  assert not any('repeat' in note or 'n differs' in note for note in measures['notes'])


def test_nan_scores_in_records_are_refused_with_their_line(files, capsys):
  attribute = load_attribute(str(files / 'colour.yaml'))
  records = make_records(attribute)
  records[4]['scores']['s'] = float('nan')
  path = write(files / 'r.jsonl', records)  # Python writes NaN
  assert main(['measure', f'--records={path}', f'--attribute={files}/colour.yaml',
               '--scorer=recorded:s']) == 2
  assert f'{path}:5: score' in capsys.readouterr().err


def test_a_missing_scorer_names_what_to_install(files, capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, 'vaderSentiment.vaderSentiment', None)
  path = write(files / 'r.jsonl', make_records(load_attribute(str(files / 'colour.yaml'))))
  assert main(['measure', f'--records={path}', f'--attribute={files}/colour.yaml',
               '--scorer=vader']) == 2
  assert 'pip install vaderSentiment' in capsys.readouterr().err


def test_interrupted_scoring_goes_on(files, monkeypatch, capsys):
  attribute = load_attribute(str(files / 'colour.yaml'))
  path = write(files / 'r.jsonl', make_records(attribute))
  arguments = ['measure', f'--records={path}', f'--attribute={files}/colour.yaml',
               '--scorer=opinion', '--lexicon', f'{files}/positive.txt', f'{files}/negative.txt',
               f'--keep={files}/scores', '--permutations=5', '--json']
  real, seen, most = OpinionScorer.score, [], [3]

  def score(self, texts):
    if len(seen) == most[0]:
      raise KeyboardInterrupt
    seen.append(len(texts))
    return real(self, texts)

  monkeypatch.setitem(score_texts.__kwdefaults__, 'chunk', 2)
  monkeypatch.setattr(OpinionScorer, 'score', score)
  assert main(arguments) == 42
  assert 'the same command continues' in capsys.readouterr().err
  seen.clear()
  most[0] = None
  assert main(arguments) == 0
  resumed = capsys.readouterr().out
  texts = len({r['continuation'] for r in make_records(attribute)})
  assert sum(seen) == texts - 6  # three chunks of two were kept
  monkeypatch.undo()
  assert main([a for a in arguments if not a.startswith('--keep')]) == 0
  assert capsys.readouterr().out == resumed
