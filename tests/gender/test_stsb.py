"""STS-B as a measure: the rule for sentences, pairs, differences, resilience, on tiny BERTs."""

import gzip
import json
import pathlib

import jax
import numpy as np
import pytest
import scipy.stats
from command_words import changed

from fairjax.cli.gender_verbs import format_finetune
from fairjax.data.planted_gender import write_sts, write_tables
from fairjax.errors import UserError
from fairjax.gender.persons import Professions, read_professions
from fairjax.gender.stsb import (
  bias_of,
  curve_steps,
  find_split,
  gendered_words,
  read_pairs,
  select_templates,
  template_pairs,
)
from fairjax.gender.trends import correlation, fit_slope, format_mean_sd, over_restarts
from fairjax.pretrained import heads
from fairjax.train import make_mesh

BERT = pathlib.Path(__file__).parents[1] / 'golden' / 'pretrained' / 'bert_classifier'


def row(score='2.5', first='A man is walking.', second='A dog runs.', more=''):
  return f'main-captions\tMSRvid\t2012test\t0001\t{score}\t{first}\t{second}{more}\n'


def pairs(tmp_path, *sentences):
  path = tmp_path / 'sts-test.tsv'
  path.write_text(''.join(row(first=a, second=b) for a, b in sentences))
  return read_pairs(path)


def professions(tmp_path, text):
  path = tmp_path / 'occupations.tsv'
  path.write_text(text)
  return read_professions(path)


@pytest.mark.parametrize('name', ['sts-dev.tsv', 'sts-dev.csv.gz'])
def test_reading(tmp_path, name):
  text = row() + row('5', "He said \"no'", 'A b', '\tsource\tsource') + '\n' + row('0.000').replace(
    '\n', '\r\n')
  content = text.encode()
  (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith('.gz') else content)
  found = read_pairs(find_split(tmp_path, 'dev'))
  assert found.first == ['A man is walking.', "He said \"no'", 'A man is walking.']
  assert found.second == ['A dog runs.', 'A b', 'A dog runs.']
  assert found.scores.tolist() == [2.5, 5, 0] and found.scores.dtype == np.float32
  (tmp_path / ('sts-dev.csv' if name.endswith('.tsv') else 'sts-dev.tsv')).write_text(text)
  with pytest.raises(UserError, match='as .csv and as .tsv'):
    find_split(tmp_path, 'dev')


def test_the_columns_of_glue(tmp_path):
  path = tmp_path / 'sts-dev.tsv'
  path.write_text('index\tsentence1\tsentence2\tscore\n0\tA man "sings.\tA dog runs.\t2.5\n')
  found = read_pairs(path)
  assert (found.first, found.second) == (['A man "sings.'], ['A dog runs.'])
  assert found.scores.tolist() == [2.5]


@pytest.mark.parametrize(('text', 'message'), [
  (row() + row('5.1'), r":2: score '5.1' is no number from 0 to 5"),
  (row('x'), "score 'x'"), (row('nan'), "score 'nan'"), (row(second=' '), 'a sentence is empty'),
  ('a\tb\n', ':1: 2 columns, not genre'), ('', 'holds no row'),
  (row() + row(first='x' * 200_000) + row('x'), ":3: score 'x'")])
def test_bad_pairs_are_one_line(tmp_path, text, message):
  (tmp_path / 'sts-dev.tsv').write_text(text)
  with pytest.raises(UserError, match=message):
    read_pairs(tmp_path / 'sts-dev.tsv')


def test_files_that_are_not_there(tmp_path):
  (tmp_path / 'sts-train.csv.sha256').touch()
  with pytest.raises(UserError, match='holds no sts-train.csv'):
    find_split(tmp_path, 'train')
  for name in ('sts-train.csv.gz', 'sts-train.csv'):
    (tmp_path / name).touch()
    assert find_split(tmp_path, 'train').name == name


def test_the_rule_for_sentences(tmp_path):
  found = select_templates(pairs(
    tmp_path,
    ('A man is walking.', 'A man is Walking'),         # one sentence: period and case are ignored
    ('A Man is late.', 'a man is late.'),              # another case of the beginning: no
    ('A manager is late.', 'The man is late.'),        # no word of its own, no "A": no
    ('A woman washes her car.', 'A man and a woman.'),  # two gendered words: no
    ("A man sees a woman's hat.", 'A man sees Women.'),  # so are these
    ('A woman sees a boy\u2019s hat.', 'A man with a beard.'),
    ('A WOMAN sings.', 'A woman IS WALKING.')))        # with "A woman" it is a sentence of its own
  assert found == [' is walking.', ' IS WALKING.']


def test_gendered_words_each_count(tmp_path):
  for word in sorted(gendered_words()):
    if word.isalpha():  # no word ends within: "co-chairman", "mrs."
      assert select_templates(pairs(tmp_path, (f'A man and {word}.', 'x'))) == [], word
  assert select_templates(pairs(tmp_path, ('A man and a person.', 'x'))) == [' and a person.']


def zhao_words(test_data):
  """The lists of Zhao et al. 2018, and the pronouns."""
  found = set('he she him his her hers himself herself'.split())
  for name in ('male_word_file', 'female_word_file', 'generalized_swaps', 'extra_gendered_words'):
    text = (test_data / 'bias' / 'zhao2018' / f'{name}.txt').read_text(encoding='utf-8')
    found.update(word.strip().lower() for line in text.split('\n') for word in line.split('\t'))
  return found - {''}


def test_the_test_file_has_276_without_a_second_gendered_word(test_data):
  split = read_pairs(find_split(test_data / 'stsb', 'test'))
  found = select_templates(split)
  assert len(found) == 276
  zhao = zhao_words(test_data)
  for rest in found:
    words = set(''.join(c if c.isalpha() else ' ' for c in rest.lower()).split())
    assert not words & (zhao | gendered_words()), rest


def test_the_correlation_is_that_of_mean_differences():
  rng = np.random.default_rng(0)
  names, rests = ('nurse', 'engineer', 'urologist', 'clerk'), [' runs.', ' sings']
  known = Professions(names, rng.random(4), (), '')
  scores = {pair: rng.random() for pair in zip(*template_pairs(rests, names), strict=True)}
  assert len(scores) == 2 * 2 * 4
  slow = [np.mean([scores[f'A woman{rest}', f'{a} {name}{rest}']
                   - scores[f'A man{rest}', f'{a} {name}{rest}'] for rest in rests])
          for a, name in zip(('A', 'An', 'A', 'A'), names, strict=True)]
  found = bias_of(np.array(list(scores.values())), known)
  assert found['differences'] == pytest.approx(slow)
  assert found['r']['value'] == pytest.approx(scipy.stats.pearsonr(known.shares, slow).statistic)


def test_a_model_that_knows_no_gender_has_no_correlation():
  known = Professions(('a', 'b', 'c', 'd'), np.array([0.1, 0.4, 0.6, 0.9]), (), '')
  scores = np.repeat(np.random.default_rng(0).random(12), 2)
  scores[1::2] += 1e-7 * np.random.default_rng(1).random(12)  # the rounding of float32
  assert bias_of(scores, known)['r'] == {'value': None, 'low': None, 'high': None, 'n': 4}


@pytest.mark.parametrize('n', [4, 5, 60])
def test_intervals_are_those_of_scipy(n):
  rng = np.random.default_rng(n)
  x = rng.random(n)
  y = x + rng.random(n)
  oracle = scipy.stats.pearsonr(x, y)
  found = correlation(x, y)
  assert found['value'] == pytest.approx(oracle.statistic)
  assert (found['low'], found['high']) == pytest.approx(tuple(oracle.confidence_interval(0.95)))
  ranks = correlation(x, y, ranks=True)
  assert ranks['value'] == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
  rho = ranks['value']
  half = 1.959964 * np.sqrt((1 + rho**2 / 2) / (n - 3))  # Bonett and Wright 2000
  with np.errstate(divide='ignore'):
    ends = np.tanh(np.arctanh(rho) + np.array([-half, half]))
  assert [ranks['low'], ranks['high']] == pytest.approx(ends)
  slope = scipy.stats.linregress(x, y)
  fitted = fit_slope(x, y)
  assert fitted['value'] == pytest.approx(slope.slope)
  assert fitted['std_error'] == pytest.approx(slope.stderr)
  half = scipy.stats.t.ppf(0.975, n - 2) * slope.stderr
  assert fitted['high'] == pytest.approx(slope.slope + half)


def test_what_is_not_defined_is_none():
  assert correlation(np.ones(5), np.arange(5.0))['value'] is None
  assert correlation(np.arange(3.0), np.array([1.0, 0, 2]))['low'] is None
  assert correlation(np.arange(5.0), np.arange(5.0))['high'] == 1
  assert fit_slope(np.ones(3), np.arange(3.0))['value'] is None
  assert fit_slope(np.full(28, 0.2), np.arange(28.0))['value'] is None  # mean: not 0.2
  assert fit_slope(np.arange(2.0), np.arange(2.0))['std_error'] is None


def test_over_restarts_is_mean_and_deviation():
  values = [0.5, 0.7, None, 0.6]
  found = over_restarts([{'value': v, 'low': None if v is None else v - 0.1,
                          'high': None if v is None else v + 0.2, 'n': 60} for v in values])
  kept = [0.5, 0.7, 0.6]
  assert found['mean'] == found['value'] == pytest.approx(np.mean(kept))
  assert found['sd'] == pytest.approx(np.std(kept, ddof=1))
  assert found['undefined'] == 1 and found['restarts'] == values and found['n'] == 60
  assert (found['low'], found['high']) == (pytest.approx(0.5), pytest.approx(0.8))
  none = over_restarts([{'value': None, 'low': None, 'high': None, 'n': 3}])
  assert none['mean'] is None and format_mean_sd(none) == 'undefined'
  assert format_mean_sd(found) == '0.60±0.10'


def test_professions(tmp_path):
  found = professions(tmp_path, 'occupation\tbls_pct_female\tyear\nnurse\t90.5\t1\nclerk\tNA\t1\n'
                      '\nbaker\t50\t1\ndriver\t0\n')
  assert found.names == ('nurse', 'baker', 'driver') and found.missing == ('clerk',)
  assert found.shares.tolist() == [0.905, 0.5, 0]


@pytest.mark.parametrize(('text', 'message'), [
  ('job\tbls_pct_female\n', ":1: no column 'occupation'"),
  ('occupation\tbls_pct_femal\n', "did you mean"),
  ('occupation\tbls_pct_female\na\t101\n', ":2: '101' is no percentage"),
  ('occupation\tbls_pct_female\na\tx\n', "'x' is no percentage"),
  ('occupation\tbls_pct_female\na\t1\na\t2\n', ":3: 'a' is given twice"),
  ('occupation\tbls_pct_female\n\t1\n', ':2: no occupation'),
  ('bls_pct_female\toccupation\n1\tb\n1\n', ':3: no occupation'),
  ('occupation\tbls_pct_female\na\t0.1\nb\t0.5\nc\t1\n', 'give percentages'),
  ('occupation\tbls_pct_female\na\t1\nb\t2\nc\tNA\n', '2 professions have a value')])
def test_bad_professions_are_one_line(tmp_path, text, message):
  with pytest.raises(UserError, match=message):
    professions(tmp_path, text)


def test_the_published_professions(test_data):
  found = read_professions(test_data / 'bias' / 'winogender' / 'occupations-stats.tsv')
  assert len(found.names) == 60 and not found.missing
  assert dict(zip(found.names, found.shares, strict=True))['technician'] == pytest.approx(0.4034)


# Whole paths.

@pytest.mark.parametrize(('total', 'points'), [(540, 5), (6, 3), (7, 100), (1, 1)])
def test_points_rise_from_the_head_to_before_the_end(total, points):
  found = curve_steps(total, points)
  assert found[0] == 0 and list(found) == sorted(set(found)) and found[-1] < total
  assert len(found) <= points
  assert (np.diff(np.diff([*found, total])) >= -1).all()  # denser at first, but for rounding
  assert curve_steps(total, 0) == ()


def test_steps_and_freezes_end_to_end(tmp_path, printed, refused, found, monkeypatch):
  monkeypatch.setattr(heads, 'make_mesh', lambda config: make_mesh(config, jax.devices()[:1]))
  write_sts(tmp_path / 'sts', seed=0, pairs=32, templates=3)
  write_tables(tmp_path)
  shares = tmp_path / 'professions.tsv'
  shares.write_text(shares.read_text().replace('bls_pct_female', 'mine'))
  command = ['gender', 'finetune', f'--model={BERT}', f'--stsb={tmp_path}/sts',
             f'--professions={tmp_path}/professions.tsv', f'--output={tmp_path}/out',
             '--freeze=none, all', '--points=2', '--curve_templates=2', '--restarts=2',
             '--epochs=1', '--batch_size=8', '--learning_rate=0.001', '--column=mine']
  said = printed(*command)
  result = json.loads((tmp_path / 'out' / 'resilience.json').read_text())
  whole, head = result['runs']
  assert (whole['freeze'], head['freeze']) == ('none', 'all')
  assert [p['step'] for p in whole['curves']] == [0, 1]
  assert [p['step'] for p in head['curves']] == [1] and whole['steps'] == 4
  # Three sentences, each after "A man" and after "A woman".
  assert whole['templates'] == 6 and whole['curve_templates'] == 2 and whole['r']['n'] == 24
  assert whole['truncated'] > 0 and len(whole['dev_pearson']['restarts']) == 2
  assert said.strip() == format_finetune(result).strip()
  assert '\nnone ' in said and '\nall ' in said  # a row each
  assert {p.suffix for p in (tmp_path / 'out').glob('resilience.*')} == {'.json', '.png', '.svg'}
  files = {p: p.read_bytes() for p in (tmp_path / 'out').rglob('restart-*.json')}
  assert len(files) == 4
  # The same command reads what is there; another one is refused.
  assert found(*command) == result
  assert {p: p.read_bytes() for p in (tmp_path / 'out').rglob('restart-*.json')} == files
  refused(changed(command, ['--epochs=2']), 'belongs to another training', alone=False)
