"""From filled sheets to numbers: simulated annotators with known answers, and every bad input."""

import functools
import itertools
import json
import pathlib

import numpy as np
import pytest
from human_oracle import (
  MODELS,
  fill,
  kappa_by_definition,
  noisy_label,
  read_csv,
  spearman_of_joint,
  write_records,
)

from fairjax.cli import main as cli
from fairjax.measure.estimates import SampleScores
from fairjax.measure.fairness import individual_fairness
from fairjax.measure.human.ratings import human_measures, read_ratings
from fairjax.measure.human.sheets import ExportOptions, Pair, export_sheets, load_key
from fairjax.measure.scorers.base import RecordedScorer
from fairjax.measure.wasserstein import wasserstein_1
from fairjax.report.sections import human_section, read_human

SENTIMENTS = ('negative', 'neutral', 'positive')


def make(tmp_path, records, options, name='sheets'):
  from fairjax.counterfactual import load_attribute
  from fairjax.generate import read_records
  return export_sheets(
    functools.partial(read_records, records), [records], load_attribute, options,
    output=tmp_path / name, key=tmp_path / f'{name}.key.json')


def run(*arguments, code=0):
  assert cli.main(['human', 'import', *map(str, arguments)]) == code


@pytest.fixture
def returned(tmp_path):
  """A small export: folder, key, and an import of given sheets that must fail with one line."""
  records = write_records(tmp_path / 'r.jsonl', samples=4,
                          text=lambda m, v, t, s: f"=it's {m == MODELS[0]},\n{v} {t} {s}")
  key = make(tmp_path, records, ExportOptions(tasks=('sentiment', 'relevance'), annotators=3,
                                              items=12))
  return tmp_path / 'sheets', key


def label_of(row):
  return 'neutral' if row['item'].startswith('s') else 'related'


# Round trip


@pytest.mark.parametrize('saved', [
  {}, {'separator': ';', 'bom': True}, {'separator': '\t', 'end': '\n'}, {'end': '\n'}])
def test_export_fill_import(tmp_path, returned, saved, capsys):
  folder, key = returned
  values = {'negative': 0.0, 'neutral': 0.5, 'positive': 1.0}
  rng, truth, human = np.random.default_rng(3), {}, {}

  def label(row):
    if row['item'].startswith('r'):
      return truth.setdefault(row['item'], rng.choice(['not', 'somewhat', 'related']))
    given = str(rng.choice(SENTIMENTS))
    human.setdefault(row['item'], []).append(values[given])
    return f' {given.upper()} '

  files = [fill(path, label, **saved) for path in sorted(folder.glob('*.csv'))]
  output = tmp_path / 'human.json'
  run('--key', tmp_path / 'sheets.key.json', '--output', output, '--scorer', 'vader', *files)
  found = json.loads(output.read_text())
  sentiment, relevance = found['tasks']['sentiment'], found['tasks']['relevance']
  assert sentiment['labels'] == relevance['labels'] == 24
  assert sentiment['items_used'] == relevance['items_used'] == 12
  assert sentiment['mean'] == pytest.approx(np.mean([np.mean(v) for v in human.values()]))
  assert relevance['agreement']['nominal']['pooled']['value'] == pytest.approx(1.0)
  assert relevance['correlations']['S.S.c']['spearman']['n'] == 12
  assert found['export'] == key['export'] and found['mode'] == 'sample'
  assert sentiment['correlations'].keys() == {'vader'}
  assert 'Spearman with vader' in capsys.readouterr().out
  table = [(SENTIMENTS.index(a), SENTIMENTS.index(b)) for i, j in itertools.combinations((0, 1), 2)
           for a, b in ((SENTIMENTS[int(2 * v[i])], SENTIMENTS[int(2 * v[j])])
                        for v in human.values())]
  both = table + [(b, a) for a, b in table]
  pooled = {k: v['pooled']['value'] for k, v in sentiment['agreement'].items()}
  assert pooled == pytest.approx({
    'nominal': kappa_by_definition(both, lambda a, b: float(a != b)),
    'nominal_without_mixed': kappa_by_definition(both, lambda a, b: float(a != b)),
    'linear': kappa_by_definition(both, lambda a, b: abs(a - b))}, abs=1e-12)


def test_several_sheets_in_one_file_and_sorted_rows(tmp_path, returned):
  folder, key = returned
  files = sorted(folder.glob('sentiment-*.csv'))
  rows = [line for path in files for line in read_csv(fill(path, label_of).read_bytes())]
  rows.sort(key=lambda row: row['item'])
  joined = tmp_path / 'all.csv'
  joined.write_text('sheet,item,text,label\n' + ''.join(
    ','.join('"' + row[c].replace('"', '""') + '"' for c in ('sheet', 'item', 'text', 'label'))
    + '\n' for row in rows), newline='')
  found = read_ratings(key, [joined]).ratings['sentiment']
  assert found.rows == 24 and found.missing == () and found.absent == ()
  assert all(len(by) == 2 for by in found.labels.values())
  assert read_ratings(key, [joined]).ratings['relevance'].absent == ('a01', 'a02', 'a03')


def test_programs_that_drop_the_apostrophe_or_change_line_breaks_edit_nothing(returned):
  folder, key = returned
  for change in (lambda text: text.removeprefix("'"), lambda text: text.replace('\n', '\r\n')):
    path = folder / 'sentiment-a01.csv'
    rows = read_csv(path.read_bytes())
    assert all(row['text'].startswith("'=it's") for row in rows)
    lines = ['sheet;item;text;label'] + [
      f'''{r['sheet']};{r['item']};"{change(r['text'])}";neutral''' for r in rows]
    other = folder / 'other.csv'
    other.write_bytes('\r\n'.join(lines).encode() + b'\r\n')
    assert len(read_ratings(key, [other]).ratings['sentiment'].labels) == len(rows)


# What is dropped


def test_everything_that_is_not_used_is_counted(tmp_path, returned, capsys):
  folder, key = returned
  (first, *_), sheet = key['tasks']['sentiment']['sheets']['a01'], folder / 'sentiment-a01.csv'
  for path in folder.glob('sentiment-*.csv'):
    fill(path, label_of)
  text = sheet.read_bytes().decode()
  owner = f"{key['export'][:12]}-sentiment-a01"
  second, third = key['tasks']['sentiment']['sheets']['a01'][1:3]
  lines = read_csv(text.encode())
  content = ['sheet,item,text,label,comment']
  for row in lines:
    if row['item'] == third:
      continue  # a row that was deleted
    label = 'mixed' if row['item'] == first else '' if row['item'] == second else 'neutral'
    content.append(f'''{owner},{row['item']},"{row['text']}",{label},so''')
  content += [f'{owner},s9999,what,neutral,', ',,,,', '']
  sheet.write_text('\r\n'.join(content), newline='')
  output = tmp_path / 'human.json'
  run('--key', tmp_path / 'sheets.key.json', '--output', output, '--min_raters', 2, sheet,
      folder / 'sentiment-a02.csv')
  found = json.loads(output.read_text())
  task = found['tasks']['sentiment']
  assert found['returned']['unknown_items'] == 1 and found['returned']['empty_rows'] == 1
  assert found['returned']['unknown_item_places'][0].endswith(": 's9999'")
  assert found['returned']['other_columns'] == [f'{sheet}: comment']
  assert (task['empty_labels'], task['missing_rows']) == (1, 1)
  assert task['missing_row_places'] == [f'a01/{third}']
  assert task['absent_annotators'] == ['a03']
  assert found['tasks']['relevance']['absent_annotators'] == ['a01', 'a02', 'a03']
  assert task['items'] == 12 == task['items_used'] + sum(task['items_dropped'].values())
  assert task['items_dropped']['mixed'] == 1
  expected = {}
  for who in ('a01', 'a02'):
    for item in key['tasks']['sentiment']['sheets'][who]:
      if (who, item) not in (('a01', second), ('a01', third)):
        expected[item] = expected.get(item, 0) + 1
  expected.pop(first)
  assert task['items_used'] == sum(n == 2 for n in expected.values())
  assert task['items_dropped']['too_few_raters'] == sum(n == 1 for n in expected.values())
  assert task['labels_by_annotator']['a01']['mixed'] == 1
  out = capsys.readouterr().out
  for words in ('1 rows of unknown items', '1 empty rows', '1 mixed', '1 empty cells',
                '1 missing rows', 'nothing from a03', 'columns not read'):
    assert words in out, words


def test_any_mixed_label_drops_the_item_and_none_of_the_others(tmp_path):
  records = write_records(tmp_path / 'r.jsonl')
  key = make(tmp_path, records, ExportOptions(tasks=('sentiment',), annotators=2, items=40))
  marked = sorted(key['tasks']['sentiment']['items'])[:7]
  for who in ('a01', 'a02'):
    fill(tmp_path / 'sheets' / f'sentiment-{who}.csv', lambda row, who=who: (
      'mixed' if row['item'] in marked[:4 if who == 'a01' else 7] else 'positive'))
  found = human_measures(key, read_ratings(key, (tmp_path / 'sheets').glob('*.csv')), [])
  task = found['tasks']['sentiment']
  assert task['items_dropped'] == {'unrated': 0, 'mixed': 7, 'too_few_raters': 0}
  assert task['items_used'] == 33 and task['mean'] == 1.0
  assert task['raters_per_item'] == {'2': 33}
  kappa = task['agreement']
  assert kappa['nominal']['pooled']['n'] == 40 and kappa['linear']['pooled']['n'] == 33
  # Both directions of 33 positive-positive, 4 mixed-mixed, 3 of both
  pairs = [(1, 1)] * 66 + [(0, 0)] * 8 + [(0, 1)] * 3 + [(1, 0)] * 3
  assert kappa['nominal']['pooled']['value'] == pytest.approx(
    kappa_by_definition(pairs, lambda a, b: float(a != b)), abs=1e-12)
  assert kappa['linear']['pooled']['value'] is None  # all positive: no chance to disagree


# Bad input


def edited(change):
  """Changes one cell of the first row of a filled sheet."""
  def write(folder, key):
    path = fill(folder / 'sentiment-a01.csv', label_of)
    rows = read_csv(path.read_bytes())
    change(rows, key)
    columns = list(rows[0])
    path.write_text(','.join(columns) + '\n' + ''.join(
      ','.join('"' + row[c].replace('"', '""') + '"' for c in columns) + '\n' for row in rows),
      newline='')
    return [path]
  return write


def set_cell(column, value):
  return edited(
    lambda rows, key: rows[0].update({column: value(key) if callable(value) else value}))


def not_mine(key):
  sheets = key['tasks']['sentiment']['sheets']
  return next(item for item in sheets['a02'] if item not in sheets['a01'])


@pytest.mark.parametrize(('write', 'words'), [
  (set_cell('label', 'postive'), "label 'postive' of item s0"),
  (set_cell('label', 'postive'), 'is not one of negative, neutral, positive, mixed'),
  (set_cell('label', 'related'), "label 'related'"),
  (set_cell('label', '0.5'), "label '0.5'"),
  (set_cell('text', "'=it's edited"), 'the text of item s0'),
  (set_cell('text', ''), 'was edited'),
  (set_cell('sheet', ''), "sheet is ''"),
  (set_cell('sheet', 'ffffffffffff-sentiment-a01'), 'is of another export'),
  (set_cell('sheet', lambda key: key['export'][:12] + '-sentiment-a07'), 'had no annotator a07'),
  (set_cell('sheet', lambda key: key['export'][:12] + '-relevance-a01'), None),
  (set_cell('item', not_mine), 'was not given to a01'),
  (edited(lambda rows, key: rows.append(dict(rows[0]))), 'was rated by a01 already in'),
  (edited(lambda rows, key: rows.append(rows[0] | {'label': ''})), 'was rated by a01 already in'),
  (edited(lambda rows, key: rows.insert(0, rows[0] | {'label': ''})), 'was rated by a01 already'),
  (edited(lambda rows, key: [row.pop('text') for row in rows]), 'the column text is missing'),
  (lambda folder, key: [fill(folder / 'sentiment-a01.csv', label_of)] * 2, 'rated by a01 already'),
  (lambda folder, key: [folder / 'none.csv'], 'none.csv: No such file'),
  (lambda folder, key: [folder / 'instructions.txt'], 'header must name the columns'),
  (lambda folder, key: sorted(folder.glob('*.csv')), 'the sheets hold no label'),
])
def test_bad_sheets_are_refused_with_file_and_line(tmp_path, returned, capsys, write, words):
  folder, key = returned
  files = write(folder, key)
  output = tmp_path / 'human.json'
  if words is None:  # the item is of the other task: unknown there
    run('--key', tmp_path / 'sheets.key.json', '--output', output, *files)
    assert json.loads(output.read_text())['returned']['unknown_items'] == 1
    return
  run('--key', tmp_path / 'sheets.key.json', '--output', output, *files, code=2)
  line = capsys.readouterr().err
  assert words in line and line.count('\n') == 1 and not output.exists()
  if 'hold no label' not in words:
    assert str(files[0]) in line
  if words.startswith(('label', 'the text', 'was', 'sheet', 'is of', 'had')):
    assert ':2' in line or ':' in line.split('.csv')[1]


def test_sheets_of_another_export_are_refused(tmp_path, returned, capsys):
  folder, _ = returned
  make(tmp_path, tmp_path / 'r.jsonl', ExportOptions(tasks=('sentiment',), annotators=3, items=12,
                                                     seed=1), name='other')
  path = fill(folder / 'sentiment-a01.csv', label_of)
  run('--key', tmp_path / 'other.key.json', '--output', tmp_path / 'h.json', path, code=2)
  assert 'is of another export' in capsys.readouterr().err


def test_the_output_is_no_input(tmp_path, returned, capsys):
  folder, _ = returned
  path, key = fill(folder / 'sentiment-a01.csv', label_of), tmp_path / 'sheets.key.json'
  before = path.read_bytes(), key.read_bytes()
  for output in (path, key):
    run('--key', key, '--output', output, path, code=2)
    assert 'is one of the inputs' in capsys.readouterr().err
  assert before == (path.read_bytes(), key.read_bytes())


@pytest.mark.parametrize(('more', 'words'), [
  (('--scorer', 'vadr'), "unknown scorer 'vadr'"),
  (('--scorer', 'vader', '--scorer', 'vader'), 'scorer vader is named twice'),
  (('--scorer', 'recorded:none'), "no score 'none'"),
  (('--similarity', 'none'), "score 'none' is None, not a number"),
  (('--min_raters', '0'), '--min_raters must be at least 1'),
  (('--permutations', '0'), '--permutations must be at least 1'),
])
def test_bad_options_are_named(tmp_path, returned, capsys, more, words):
  folder, _ = returned
  files = [fill(folder / f'{task}-a01.csv', label_of) for task in ('sentiment', 'relevance')]
  run('--key', tmp_path / 'sheets.key.json', '--output', tmp_path / 'h.json', *files, *more, code=2)
  assert words in capsys.readouterr().err


# Simulated annotators

ERROR = 1 - 0.47**0.5  # two raters then have kappa 0.47, as in H-38


def test_noise_gives_the_kappa_and_spearman_of_its_closed_form(tmp_path):
  # A rater answers the truth (uniform over three) with probability 1 - e, else anything: two agree
  # on it with (1 - e)^2 and else by chance, so every kappa is (1 - e)^2. n = 4000 pairs: standard
  # errors of about 0.011; four of them are allowed.
  rng = np.random.default_rng(11)
  truth = {(m, s): int(rng.integers(3)) for m in MODELS for s in range(2000)}
  path = tmp_path / 'r.jsonl'
  with open(path, 'w') as file:
    for (model, sample), level in truth.items():
      file.write(json.dumps({
        'attribute': 'occupation', 'value': 'baker', 'template': 0, 'prefix': 'The baker',
        'model': model, 'continuation': f'{model} {sample}',
        'scores': {'api': level / 2, 'noise': rng.random()}}) + '\n')
  key = make(tmp_path, path, ExportOptions(
    tasks=('sentiment', 'relevance'), annotators=19, items=4000))

  def level(row):
    model, sample = (row.get('text') or row['continuation']).split()
    return noisy_label(truth[model, int(sample)], ERROR, rng)

  for sheet in (tmp_path / 'sheets').glob('*.csv'):
    labels = SENTIMENTS if sheet.name.startswith('s') else ('not', 'somewhat', 'related')
    fill(sheet, lambda row, labels=labels: labels[level(row)])
  found = human_measures(
    key, read_ratings(key, (tmp_path / 'sheets').glob('*.csv')),
    [RecordedScorer('api'), RecordedScorer('noise')], similarities=['api'], resamples=300)
  q, p = ERROR / 3, 1 - ERROR + ERROR / 3
  joint = {}
  for t, a, b in itertools.product(range(3), repeat=3):
    probability = (p if a == t else q) * (p if b == t else q) / 3
    joint[t, (a + b) / 2] = joint.get((t, (a + b) / 2), 0) + probability
  assert sum(joint.values()) == pytest.approx(1)
  rho = spearman_of_joint(joint)
  for name in ('sentiment', 'relevance'):
    task = found['tasks'][name]
    for kappa in task['agreement'].values():
      assert kappa['pooled']['value'] == pytest.approx(0.47, abs=0.045)
      # Agreement 0.647 of 4000, chance 1/3: kappa's standard error is 0.0113 without weights.
      if kappa is not task['agreement']['linear']:
        width = kappa['pooled']['high'] - kappa['pooled']['low']
        assert width == pytest.approx(2 * 1.96 * 0.0113, rel=0.2)
      assert kappa['pooled']['n'] == 4000 and len(kappa['pairs']) == 19 * 18 // 2
      assert kappa['mean_of_pairs'] == pytest.approx(0.47, abs=0.06)
    api = task['correlations']['recorded:api']
    assert api['spearman']['value'] == pytest.approx(rho, abs=0.03)
    # Pearson: cov(t, mean) = (1 - e) var, var(mean) = var ((1 - e)^2 + (1 - (1 - e)^2) / 2)
    exact = (1 - ERROR) / ((1 + (1 - ERROR)**2) / 2)**0.5
    assert api['pearson']['value'] == pytest.approx(exact, abs=0.03)
  noise = found['tasks']['sentiment']['correlations']['recorded:noise']['spearman']
  assert abs(noise['value']) < 4 / 4000**0.5


def pairs_export(tmp_path, per_prefix, *, coupled=True, samples=50):
  records = write_records(
    tmp_path / 'r.jsonl', samples=samples, templates=(9,), values=('designer', 'accountant'),
    text=lambda m, v, t, s: f'{m} {v} {s}')
  return make(tmp_path, records, ExportOptions(
    tasks=('sentiment',), annotators=4, pairs=(Pair('designer', 'accountant', '9'),),
    per_prefix=per_prefix, coupled=coupled))


def rate(tmp_path, label):
  """Fills all sheets with `label(model, value, sample, annotator)`."""
  files = sorted((tmp_path / 'sheets').glob('*.csv'))
  for path in files:
    def of(row, who=path.stem[-3:]):
      model, value, sample = row['text'].split()
      return label(model, value, int(sample), who)
    fill(path, of)
  return files


def test_human_fairness_is_the_distance_of_mean_ratings_and_unblinds_models(tmp_path):
  key = pairs_export(tmp_path, 50)
  rng = np.random.default_rng(5)
  given = {}

  def label(model, value, sample, who):
    shift = 1 if (model, value) == (MODELS[0], 'designer') else 0
    level = min(2, int(rng.integers(0, 2)) + shift)
    given.setdefault((model, value), {}).setdefault(sample, []).append(level / 2)
    return SENTIMENTS[level]

  files = rate(tmp_path, label)
  found = human_measures(key, read_ratings(key, files), [], permutations=400)
  entries = {e['model']: e for e in found['tasks']['sentiment']['individual_fairness']['pairs']}
  assert set(entries) == set(MODELS)
  for model, entry in entries.items():
    sides = [np.array([np.mean(v) for _, v in sorted(given[model, value].items())])
             for value in ('designer', 'accountant')]
    assert entry['estimate']['value'] == pytest.approx(wasserstein_1(*sides), abs=1e-12)
    assert entry['all_items'] == pytest.approx(entry['estimate']['value'], abs=1e-12)
    assert entry['mean'] == pytest.approx([s.mean() for s in sides])
    assert entry['estimate']['coupled'] is True and entry['estimate']['n_min'] == 50
    assert (entry['exported'], entry['rated'], entry['lost_partner']) == ([50, 50],) * 2 + ([0, 0],)
  assert entries[MODELS[0]]['estimate']['p_value'] < 0.01
  assert not entries[MODELS[0]]['estimate']['within_floor']
  assert entries[MODELS[1]]['estimate']['p_value'] > 0.05


@pytest.mark.parametrize('per_prefix', [9, 10])
def test_samples_of_equal_noise_are_one_cluster(tmp_path, per_prefix):
  # 36 or 40 items, but only 9 or 10 draws of noise: 9 are too few for an interval.
  key = pairs_export(tmp_path, per_prefix, samples=10)
  files = rate(tmp_path, lambda m, v, s, w: SENTIMENTS[s % 3])
  task = human_measures(key, read_ratings(key, files), [], resamples=20)['tasks']['sentiment']
  kappa = task['agreement']['nominal']['pooled']
  assert kappa['n'] == 4 * per_prefix and (kappa['low'] is None) == (per_prefix == 9)


def test_the_paired_p_value_is_that_of_all_exchanges(tmp_path):
  # Six pairs: all 64 exchanges within pairs, done one by one.
  key = pairs_export(tmp_path, 6, samples=6)
  levels = {'designer': (2, 2, 1, 2, 1, 0), 'accountant': (0, 1, 1, 1, 0, 0)}
  files = rate(tmp_path, lambda m, v, s, w: SENTIMENTS[levels[v][s]])
  found = human_measures(key, read_ratings(key, files), [], permutations=5000)
  entry = found['tasks']['sentiment']['individual_fairness']['pairs'][0]
  x, y = (np.array(levels[v]) / 2 for v in ('designer', 'accountant'))
  null = []
  for swap in itertools.product((False, True), repeat=6):
    a, b = np.where(swap, y, x), np.where(swap, x, y)
    null.append(wasserstein_1(a, b))
  exact = np.mean(np.array(null) >= entry['estimate']['value'] - 1e-12)
  free = individual_fairness(SampleScores(
    ('a', 'b'), ('a', 'b'), (0,), ((x, y),)), permutations=5000).p_value
  assert entry['estimate']['p_value'] == pytest.approx(exact, abs=0.02)
  assert abs(free - exact) > 0.03  # the test would notice free exchanges
  assert entry['estimate']['null_mean'] == pytest.approx(np.mean(null), abs=0.005)


def test_a_dropped_rating_takes_its_partner_along_only_when_coupled(tmp_path):
  def label(model, value, sample, who):
    if (model, value) == (MODELS[0], 'designer') and sample < 3:
      return 'mixed'
    if (model, value) == (MODELS[0], 'accountant') and sample == 10:
      return ''
    return SENTIMENTS[sample % 3]

  for coupled in (True, False):
    (tmp_path / str(coupled)).mkdir()
    key = pairs_export(tmp_path / str(coupled), 12, samples=12, coupled=coupled)
    files = rate(tmp_path / str(coupled), label)
    found = human_measures(key, read_ratings(key, files), [], permutations=50)
    task = found['tasks']['sentiment']
    assert task['items_dropped'] == {'unrated': 1, 'mixed': 3, 'too_few_raters': 0}
    entry = task['individual_fairness']['pairs'][-1]
    assert entry['model'] == MODELS[0] and entry['rated'] == [9, 11]
    assert entry['lost_partner'] == ([1, 3] if coupled else [0, 0])
    assert (entry['estimate']['n_min'], entry['estimate']['n_max']) == (
      (8, 8) if coupled else (9, 11))
    assert entry['estimate']['coupled'] is coupled


def test_a_pair_that_nobody_rated_has_no_distance(tmp_path):
  key = pairs_export(tmp_path, 4, samples=4)
  files = rate(tmp_path, lambda m, v, s, w: '' if m == MODELS[0] and v == 'designer' else 'neutral')
  entry = human_measures(key, read_ratings(key, files), [])['tasks']['sentiment'][
    'individual_fairness']['pairs'][-1]
  assert entry['model'] == MODELS[0] and entry['rated'] == [0, 4] and entry['estimate'] is None


def test_scorers_read_the_unmasked_text_that_annotators_read(tmp_path):
  class Length:
    name = fingerprint = 'length'

    def score(self, texts):
      self.texts = list(texts)
      return np.array([min(1.0, len(t) / 100) for t in texts])

  records = write_records(
    tmp_path / 'r.jsonl', text=lambda m, v, t, s: f'and the {v} {t} {s} {m[0]}')
  for text in ('continuation', 'prefix+continuation'):
    key = make(tmp_path, records, ExportOptions(
      tasks=('sentiment',), annotators=2, items=10, mask=True, text=text), name=text[:6])
    files = [fill(path, label_of) for path in (tmp_path / text[:6]).glob('*.csv')]
    scorer = Length()
    found = human_measures(key, read_ratings(key, files), [scorer])
    assert len(scorer.texts) == 10 and not any('[hidden]' in t for t in scorer.texts)
    assert all(t.startswith('You are the') == (text != 'continuation') for t in scorer.texts)
    assert found['masked'] is True and found['text'] == text


# H-40: what 50 continuations of each prefix can show


def expected_distance(shares, n):
  """Mean W1 of two samples of n of one distribution over 0, 1/4, ... 1, exactly."""
  from scipy.stats import binom
  total = 0.0
  for below in np.cumsum(shares)[:-1]:
    pmf = binom.pmf(np.arange(n + 1), n, below)
    total += (len(shares) - 1)**-1 * (
      np.abs(np.subtract.outer(np.arange(n + 1), np.arange(n + 1))) * np.outer(pmf, pmf)).sum() / n
  return total


def test_the_floor_of_fifty_ratings_is_that_of_h40():
  # Two raters of kappa 0.47 whose labels are 20, 60 and 20 % negative, neutral, positive; the
  # mean of both has five levels. The paper does not give its shares: these reproduce the floor.
  p = np.array([0.2, 0.6, 0.2])
  joint = 0.47 * np.diag(p) + 0.53 * np.outer(p, p)
  shares = np.array([sum(joint[a, k - a] for a in range(3) if 0 <= k - a < 3) for k in range(5)])
  rng = np.random.default_rng(40)
  draws = rng.choice(5, size=(4000, 2, 50), p=shares) / 4
  distances = np.array([wasserstein_1(x, y) for x, y in draws])
  assert distances.mean() == pytest.approx(expected_distance(shares, 50), abs=4 * 0.03 / 4000**0.5)
  assert expected_distance(shares, 50) == pytest.approx(0.060, abs=0.001)
  assert np.quantile(distances, 0.95) == pytest.approx(0.110, abs=1e-9)
  # The permutation floor of a single experiment finds it without knowing the shares.
  floors = [individual_fairness(
    SampleScores(('a', 'b'), ('a', 'b'), (0,), ((x, y),)), permutations=200, seed=i)
    for i, (x, y) in enumerate(draws[:60])]
  assert np.mean([f.null_mean for f in floors]) == pytest.approx(0.060, abs=0.003)
  assert np.mean([f.null_p95 for f in floors]) == pytest.approx(0.110, abs=0.006)
  # The paper's 0.056 after debiasing is below the mean floor, its 0.333, 0.291 and 0.155 above.
  assert (distances >= 0.056).mean() > 0.4
  assert (distances >= 0.155).mean() < 0.01


# Report


def test_the_report_shows_it_and_refuses_other_files(tmp_path):
  key = pairs_export(tmp_path, 12, samples=12)
  files = rate(tmp_path, lambda m, v, s, w: SENTIMENTS[(s + len(v)) % 3])
  output = tmp_path / 'measures' / 'human.json'
  run('--key', tmp_path / 'sheets.key.json', '--output', output, '--scorer', 'vader', *files)
  text = human_section(read_human(output))
  for words in ("Cohen's kappa", 'Spearman with vader', 'designer', 'within noise', 'unrated'):
    assert words in text
  assert all(model in text for model in MODELS)
  assert read_human(tmp_path / 'none.json') is None
  for content in ('{', '[]', '{"kind": "other"}',
                  json.dumps(json.loads(output.read_text()) | {'schema': 2})):
    (tmp_path / 'x.json').write_text(content)
    with pytest.raises(ValueError, match='fairjax human import'):
      read_human(tmp_path / 'x.json')
  assert load_key(tmp_path / 'sheets.key.json')['export'] == key['export']


def test_the_written_report_holds_the_section(tmp_path):
  from fairjax.report import ModelRow, write_report
  key = pairs_export(tmp_path, 12, samples=12)
  files = rate(tmp_path, lambda m, v, s, w: SENTIMENTS[s % 3])
  found = human_measures(key, read_ratings(key, files), [])
  for human in (found, None):
    path = write_report(tmp_path / 'report', rows=[ModelRow('base', 'baseline')],
                        attribute='occupation', versions={}, human=human)
    assert ('## Human evaluation' in path.read_text()) == (human is not None)
    assert json.loads((tmp_path / 'report/report.json').read_text())['human'] == human


def test_names_cannot_break_the_report(tmp_path):
  key = pairs_export(tmp_path, 12, samples=12)
  files = rate(tmp_path, lambda m, v, s, w: 'neutral')
  found = human_measures(key, read_ratings(key, files), [])
  entry = found['tasks']['sentiment']['individual_fairness']['pairs'][0]
  entry |= {'model': '<b>x|y</b>', 'values': ['a|b', '`c`']}
  text = human_section(found)
  assert '<b>' not in text and 'x|y' not in text and '`c`' not in text


def test_the_documented_fields_are_there(tmp_path):
  page = (pathlib.Path(__file__).parents[2] / 'docs/human_evaluation.md').read_text()
  key = pairs_export(tmp_path, 12, samples=12)
  files = rate(tmp_path, lambda m, v, s, w: SENTIMENTS[s % 3])
  found = human_measures(key, read_ratings(key, files), [RecordedScorer('api')])
  task = found['tasks']['sentiment']
  names = [*found, *found['returned'], *found['settings'], *task, *task['agreement']['linear'],
           *task['agreement']['linear']['pooled'], *task['individual_fairness'],
           *task['individual_fairness']['pairs'][0]]
  assert [name for name in names if f'`{name}`' not in page] == []
