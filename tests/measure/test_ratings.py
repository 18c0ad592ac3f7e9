"""From filled sheets to numbers: hand tables, simulated annotators, bad input."""

import collections
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
  read_csv,
  write_records,
)
from scipy.stats import spearmanr
from score_arrays import from_arrays

from fairjax.cli import main as cli
from fairjax.counterfactual import load_attribute
from fairjax.generate import read_records
from fairjax.measure.estimates import wasserstein_1
from fairjax.measure.fairness import measure_fairness
from fairjax.measure.human.ratings import (
  _judge,
  cohen_kappa,
  human_measures,
  rater_agreement,
  read_ratings,
)
from fairjax.measure.human.sheets import ExportOptions, Pair, export_sheets
from fairjax.measure.scorers.base import RecordedScorer
from fairjax.pretrained import SentenceEncoder
from fairjax.report.sections import human_section, read_human

pytestmark = pytest.mark.usefixtures('one_device')

SENTIMENTS = ('negative', 'neutral', 'positive')
TINY = pathlib.Path(__file__).parents[1] / 'golden' / 'pretrained' / 'bert_mlm'
WORDS = ('warm', 'bread', 'happy', 'farmer', 'sold', 'glad', 'baker')
VALUES = {'not': -1.0, 'somewhat': 0.0, 'related': 1.0}


@pytest.mark.parametrize('seed', range(8))
def test_kappa_is_its_definition_over_pairs(seed):
  rng = np.random.default_rng(seed)
  size, n = int(rng.integers(2, 5)), int(rng.integers(5, 40))
  ratings = [tuple(map(int, pair)) for pair in rng.integers(0, size, (n, 2))]
  ratings[:2] = [(0, 1), (1, 1)]  # something to disagree about
  table = np.zeros((size, size))
  for a, b in ratings:
    table[a, b] += 1
  assert cohen_kappa(table) == pytest.approx(
    kappa_by_definition(ratings, lambda a, b: float(a != b)), abs=1e-12)
  assert cohen_kappa(table, linear=True) == pytest.approx(
    kappa_by_definition(ratings, lambda a, b: abs(a - b)), abs=1e-12)
  assert cohen_kappa(table.T) == pytest.approx(cohen_kappa(table), abs=1e-12)


LABELS = {
  'i1': {'a01': 'no', 'a02': 'no'}, 'i2': {'a01': 'no', 'a02': 'yes'},
  'i3': {'a02': 'yes', 'a03': 'yes'}, 'i4': {'a01': 'yes', 'a02': 'yes', 'a03': 'no'},
  'i5': {'a03': 'yes'}, 'i6': {'a01': 'mixed', 'a02': 'yes'}}


def test_pooled_agreement_counts_both_directions_and_all_pairs():
  found = rater_agreement(LABELS, ('no', 'yes'), linear=False,
                          clusters={i: i for i in LABELS}, resamples=5, seed=0)
  # six pairs: no-no 1, yes-yes 2, different 3; both say no with 5/12
  chance = (5 / 12)**2 + (7 / 12)**2
  assert found['pooled']['value'] == pytest.approx((0.5 - chance) / (1 - chance), abs=1e-12)
  assert found['pooled']['n'] == 6 and found['observed'] == pytest.approx(0.5)
  assert [(p['annotators'], p['n']) for p in found['pairs']] == [
    (['a01', 'a02'], 3), (['a01', 'a03'], 1), (['a02', 'a03'], 2)]
  # a01, a02: observed 2/3, chance 2/3 * 1/3 + 1/3 * 2/3 = 4/9: kappa 2/5; the others: see below
  kappas = [p['kappa'] for p in found['pairs']]
  assert kappas == pytest.approx([0.4, 0.0, 0.0], abs=1e-12)
  assert found['mean_of_pairs'] == pytest.approx(0.4 / 3) and found['pairs_defined'] == 3


def test_agreement_without_any_overlap_or_possible_disagreement_is_undefined():
  assert cohen_kappa(np.array([[7, 0], [0, 0]])) is None
  found = rater_agreement({'i1': {'a01': 'no'}}, ('no', 'yes'), linear=False, clusters={'i1': 0},
                    resamples=5, seed=0)
  assert found['pooled']['value'] is None and found['pooled']['n'] == 0
  assert found['observed'] is None and found['mean_of_pairs'] is None and found['pairs'] == []


def make(tmp_path, records, options, name='sheets'):
  return export_sheets(
    functools.partial(read_records, records), [records], load_attribute, options,
    output=tmp_path / name, key=tmp_path / f'{name}.key.json')


def run(*arguments):
  assert cli.main(['human', 'import', *map(str, arguments)]) == 0


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


@pytest.mark.parametrize('saved', [
  {}, {'separator': ';', 'bom': True}, {'separator': '\t', 'end': '\n'}, {'end': '\n'}])
def test_export_fill_import(tmp_path, returned, saved, check_keys, capsys):
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
  check_keys(found := json.loads(output.read_text()), 'human')
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
    assert len(read_ratings(key, [other]).rows['sentiment']) == len(rows)


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
  for words in ('1 rows of unknown items', '1 empty rows', '1 mixed', '1 cells empty',
                '1 rows missing', 'nothing from a03', 'columns not read'):
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
  (set_cell('label', 'postive'), 'positive'),
  (set_cell('label', '0.5'), 'label'),
  (set_cell('text', "'=it's edited"), 'edited'),
  (set_cell('text', ''), 'edited'),
  (set_cell('sheet', ''), 'sheet'),
  (set_cell('sheet', 'ffffffffffff-sentiment-a01'), 'none of this key'),
  (set_cell('sheet', lambda key: key['export'][:12] + '-sentiment-a07'), 'a07'),
  (set_cell('item', not_mine), 'a01'),
  (edited(lambda rows, key: rows.append(dict(rows[0]))), 'already'),
  (edited(lambda rows, key: rows.insert(0, rows[0] | {'label': ''})), 'already'),
  (edited(lambda rows, key: [row.pop('text') for row in rows]), 'text'),
  (lambda folder, key: [fill(folder / 'sentiment-a01.csv', label_of)] * 2, 'already'),
  (lambda folder, key: [folder / 'none.csv'], 'No such file'),
  (lambda folder, key: [folder / 'instructions.txt'], 'header'),
])
def test_bad_sheets_are_refused_with_file_and_line(tmp_path, returned, refused, write, words):
  folder, key = returned
  files = write(folder, key)
  output = tmp_path / 'human.json'
  refused(['human', 'import', '--key', tmp_path / 'sheets.key.json', '--output', output, *files],
          words, str(files[0]))
  assert not output.exists()


def test_an_item_of_the_other_task_is_unknown_and_no_label_is_nothing(tmp_path, returned, refused):
  folder, key = returned
  arguments = '--key', tmp_path / 'sheets.key.json', '--output', tmp_path / 'human.json'
  refused(['human', 'import', *arguments, *sorted(folder.glob('*.csv'))], 'no label')
  sheet = key['export'][:12] + '-relevance-a01'
  run(*arguments, *set_cell('sheet', sheet)(folder, key))
  assert json.loads((tmp_path / 'human.json').read_text())['returned']['unknown_items'] == 1


@pytest.mark.parametrize(('more', 'words'), [
  (('--scorer', 'vadr'), "unknown scorer 'vadr'"),
  (('--scorer', 'vader', '--scorer', 'vader'), 'scorer vader is named twice'),
  (('--scorer', 'recorded:none'), "no score 'none'"),
  (('--similarity', 'none'), "score 'none' is None, not a number"),
  (('--min_raters', '0'), '--min-raters'),
  (('--permutations', '0'), '--permutations'),
])
def test_bad_options_are_named(tmp_path, returned, refused, more, words):
  folder, _ = returned
  files = [fill(folder / f'{task}-a01.csv', label_of) for task in ('sentiment', 'relevance')]
  refused(['human', 'import', '--key', tmp_path / 'sheets.key.json', '--output',
           tmp_path / 'h.json', *files, *more], words)


def test_correlations_are_those_of_mean_labels_and_recorded_scores(tmp_path):
  rng, given = np.random.default_rng(11), collections.defaultdict(list)
  scores, path = rng.random(60), tmp_path / 'r.jsonl'
  path.write_text(''.join(json.dumps({
    'attribute': 'occupation', 'value': 'baker', 'template': 0, 'prefix': 'The baker',
    'continuation': f'so {i}', 'scores': {'api': s}}) + '\n' for i, s in enumerate(scores)))
  key = make(tmp_path, path, ExportOptions(
    tasks=('sentiment', 'relevance'), annotators=3, items=60))

  def label(row):
    level, task = int(rng.integers(3)), row['item'][0]
    given[task, int((row.get('text') or row['continuation']).split()[1])].append(level)
    return (SENTIMENTS if task == 's' else list(VALUES))[level]

  files = [fill(sheet, label) for sheet in (tmp_path / 'sheets').glob('*.csv')]
  found = human_measures(key, read_ratings(key, files), [RecordedScorer('api')],
                         similarities=['api'], resamples=300)
  for name in ('sentiment', 'relevance'):
    human = [np.mean(given[name[0], i]) for i in range(60)]
    api = found['tasks'][name]['correlations']['recorded:api']
    assert api['spearman']['value'] == pytest.approx(spearmanr(scores, human).statistic)
    assert api['pearson']['value'] == pytest.approx(np.corrcoef(scores, human)[0, 1])
    # 60 pairs of labels by chance: agreement 1/3 with a standard error of 0.061, chance 1/3.
    kappa = found['tasks'][name]['agreement']['nominal']['pooled']
    assert kappa['high'] - kappa['low'] == pytest.approx(2 * 1.96 * 0.061 / (2 / 3), rel=0.3)


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


def test_the_floor_of_fifty_ratings_is_that_of_h40():
  # Two raters of kappa 0.47 whose labels are 20, 60 and 20 % negative, neutral, positive; the
  # mean of both has five levels. The paper does not give its shares: these reproduce the floor.
  p = np.array([0.2, 0.6, 0.2])
  joint = 0.47 * np.diag(p) + 0.53 * np.outer(p, p)
  shares = np.array([sum(joint[a, k - a] for a in range(3) if 0 <= k - a < 3) for k in range(5)])
  draws = np.random.default_rng(40).choice(5, size=(4000, 2, 50), p=shares) / 4
  distances = np.array([wasserstein_1(x, y) for x, y in draws])
  assert distances.mean() == pytest.approx(0.060, abs=4 * 0.03 / 4000**0.5)
  assert np.quantile(distances, 0.95) == pytest.approx(0.110, abs=1e-9)
  # The permutation floor of a single experiment finds it without knowing the shares.
  floors = [measure_fairness(from_arrays(pair), permutations=200, seed=i).individual
            for i, pair in enumerate(draws[:60])]
  assert np.mean([f.null_mean for f in floors]) == pytest.approx(0.060, abs=0.003)
  assert np.mean([f.null_p95 for f in floors]) == pytest.approx(0.110, abs=0.006)


def test_a_difference_is_above_its_limit_exactly_when_p_is_at_most_five_percent():
  for found in map(_judge, ([18.5, *range(1, 20)], [19.5, *range(1, 20)])):
    assert (found['difference'] > found['null_p95']) == (found['p_value'] <= 0.05)


def test_the_import_and_the_report_say_it(tmp_path, check_keys, printed):
  path = write_records(tmp_path / 'r.jsonl', samples=30, templates=(8, 9),
                       values=('designer', 'accountant'), text=lambda m, v, t, s: f'{m} {v} {s}')
  assert cli.main(['human', 'export', f'--records={path}', f'--output={tmp_path / "s"}',
                   '--annotators=2', '--pairs', 'designer', 'accountant', '--per_prefix=30']) == 0

  def label(row):
    model, value, number = row['text'].split()
    if model == MODELS[0]:
      return 'positive' if value == 'designer' else 'negative'
    return ('negative', 'neutral', 'positive')[int(number) % 3]

  files = [fill(sheet, label) for sheet in sorted((tmp_path / 's').glob('*.csv'))]
  output = tmp_path / 'measures' / 'human.json'
  out, result = printed('human', 'import', f'--key={tmp_path / "s.key.json"}', f'--output={output}',
                        '--permutations=99', '--scorer=vader', *files), read_human(output)
  check_keys(result, 'human')
  found, = result['tasks']['sentiment']['individual_fairness']['differences']
  first, second = sorted(MODELS)
  sign = 1 if second == MODELS[0] else -1  # that model's distance is 1, the other's 0
  assert found['difference'] == sign and found['p_value'] == 0.01
  assert [c['template'] for c in found['comparisons']] == [8, 9]
  assert 'mean of 2' in out and out.count(f'{sign:+.3f}') == 3
  shown = human_section(result).body()
  assert shown.count(f'{sign:+.3f}') == 3 and '| 0.01 |' in shown and 'mean of 2' in shown
  for words in ("Cohen's kappa", 'Spearman with vader', 'designer', 'within noise', *MODELS):
    assert words in shown
  assert read_human(tmp_path / 'none.json') is None
  for content in ('{', '[]', '{"kind": "other"}', json.dumps(result | {'schema': 2})):
    output.write_text(content)
    with pytest.raises(ValueError, match='fairjax human import'):
      read_human(output)


def relevance(row):
  """By the text alone."""
  return list(VALUES)[len(row['continuation']) % 3]


@pytest.fixture
def sheets(tmp_path):
  """Key and filled sheets of a relevance task; some continuations are the same, one is long."""
  records = write_records(
    tmp_path / 'r.jsonl', samples=4, text=lambda m, v, t, s:
    'warm ' * 80 if (s, t, v) == (0, 0, 'CEO') else ' '.join(WORDS[:1 + (s + t + len(v)) % 7]))
  assert cli.main(['human', 'export', f'--records={records}', f'--output={tmp_path / "sheets"}',
                   '--annotators=1', '--overlap=1', '--task=relevance', '--items=60']) == 0
  files = [fill(path, relevance) for path in (tmp_path / 'sheets').glob('*.csv')]
  return tmp_path / 'sheets.key.json', files


def test_similarity_is_that_of_prefix_and_continuation(tmp_path, sheets, capsys):
  key, files = sheets
  run(*files, f'--key={key}', f'--output={tmp_path}/h.json', '--resamples=20',
      f'--encoder=minilm:{TINY}')
  task = json.loads((tmp_path / 'h.json').read_text())['tasks']['relevance']
  items = json.loads(key.read_text())['tasks']['relevance']['items']
  encoder, cosines, human = SentenceEncoder(TINY), [], []
  for item in items.values():
    record = item['record']
    a, b = (encoder.encode([t])[0].astype(float) for t in (record['prefix'],
                                                           record['continuation']))
    cosines.append(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    human.append(VALUES[relevance({'continuation': record['continuation']})])
  expected = spearmanr(np.round(cosines, 6), human).statistic
  found = task['correlations']['S.S. minilm']['spearman']
  assert found['n'] == len(items) == 60
  np.testing.assert_allclose(found['value'], expected, atol=1e-3)  # ties of equal texts round
  assert task['truncated_texts'] == {'S.S. minilm': sum(
    i['record']['continuation'].startswith('warm warm') for i in items.values())}
  shown = capsys.readouterr().out
  assert f"{found['value']:.2f}" in next(
    line for line in shown.splitlines() if 'Spearman with S.S. minilm' in line)


def test_what_cannot_be_compared_or_would_be_replaced_is_refused(tmp_path, sheets, refused):
  key, files = sheets
  output = tmp_path / 'h.json'
  command = ['human', 'import', *files, f'--key={key}', f'--output={output}', '--resamples=20']
  refused([*command, '--encoder=minilmm'], "did you mean 'minilm'")
  run(*command[2:])
  before = output.read_bytes()
  run(*command[2:])  # the same again
  for more in (f'--encoder=minilm:{TINY}', '--seed=1'):
    refused([*command, more], 'holds something else than this result')
    assert output.read_bytes() == before
  records = tmp_path / 'r.jsonl'
  assert cli.main(['human', 'export', f'--records={records}', f'--output={tmp_path / "other"}',
                   '--annotators=1', '--overlap=1', '--task=sentiment', '--items=5']) == 0
  (path,) = (tmp_path / 'other').glob('*.csv')
  assert read_csv(path.read_bytes())
  for more in (f'--encoder=minilm:{TINY}', '--similarity=api'):
    refused(['human', 'import', fill(path, lambda row: 'neutral'), f'--output={tmp_path}/o.json',
             f'--key={tmp_path}/other.key.json', more],
            'human relevance, of which the sheets hold nothing')
