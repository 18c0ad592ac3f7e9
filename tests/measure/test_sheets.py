"""What annotators get: neutral, blinded, balanced, assigned as promised, never overwritten."""

import collections
import itertools
import json
import random

import numpy as np
import pytest
from command_words import changed
from human_oracle import METHOD, MODELS, SCORE, read_csv, write_records

from fairjax.cli import main as cli
from fairjax.errors import UserError
from fairjax.measure.human.sheets import (
  LONGEST_CELL,
  MASK,
  _allocate,
  _assign,
  load_key,
  same_text,
  write_sheet,
)
from fairjax.tables import read_table

COLUMNS = ('sheet', 'item', 'text', 'label')
ALPHABET = "=+-@'\"\t\r\n,; ab\u00e9\U0001f600"


@pytest.mark.parametrize('separator', ['comma', 'semicolon', 'tab'])
@pytest.mark.parametrize('bom', [False, True])
def test_any_text_comes_back_from_a_file(tmp_path, separator, bom):
  rng = random.Random(7)
  texts = [''.join(rng.choices(ALPHABET, k=rng.randrange(0, 12))) for _ in range(300)]
  rows = [('x', f's{i}', text, '') for i, text in enumerate(texts)]
  data = write_sheet(COLUMNS, rows, separator=separator, bom=bom)
  assert data.startswith(b'\xef\xbb\xbf"sheet"' if bom else b'"sheet"')
  path = tmp_path / 'sheet.csv'
  path.write_bytes(data)
  found = [row['text'] for row, _ in read_table(path, COLUMNS)]
  for cell, text in zip(found, texts, strict=True):
    assert same_text(cell, text) and same_text(text, text) and same_text(cell.strip(), text)
    assert not same_text(cell + 'x', text) and not same_text('x' + cell, text)
    assert not cell.startswith(tuple('=+-@\t\r\n'))


def test_texts_that_no_sheet_can_hold_are_refused():
  with pytest.raises(UserError, match='does not fit into a cell'):
    write_sheet(COLUMNS, [('x', 's1', 'a' * (LONGEST_CELL + 1), '')])
  assert write_sheet(COLUMNS, [('x', 's1', 'a' * LONGEST_CELL, '')])


def command(records, folder, *arguments):
  files = records if isinstance(records, list) else [records]
  return changed(['human', 'export', '--records', *map(str, files), f'--output={folder}',
                  '--annotators=2'], [*map(str, arguments)])


def export(records, folder, *arguments):
  assert cli.main(command(records, folder, *arguments)) == 0
  return load_key(f'{folder}.key.json')


@pytest.fixture
def records(tmp_path):
  return write_records(tmp_path / 'records.jsonl')


def sheets(folder):
  return {path.name: read_csv(path.read_bytes()) for path in sorted(folder.glob('*.csv'))}


@pytest.mark.parametrize('more', [
  ('--items', 30), ('--pairs', 'designer', 'accountant', '1', '--per_prefix', 5)])
def test_annotators_see_no_model_method_or_score(records, tmp_path, more):
  folder = tmp_path / 'sheets'
  key = export(records, folder, '--annotators', 3, '--bom', *more)
  text = ''.join(path.name + path.read_bytes().decode() for path in folder.iterdir())
  hidden = [*MODELS, METHOD, str(SCORE), 'api', str(records), 'records.jsonl', key['export'],
            'template', 'attribute', 'occupation-']
  assert not [word for word in hidden if word in text]
  assert {model in json.dumps(key) for model in MODELS} == {True}
  for rows in sheets(folder).values():
    assert set(rows[0]) <= {'sheet', 'item', 'text', 'prefix', 'continuation', 'label'}
    assert all(row['label'] == '' for row in rows)


def test_item_numbers_and_orders_tell_nothing_about_models(tmp_path):
  # Rank correlation of the model with number and with place: 0 within four standard errors.
  records = write_records(tmp_path / 'r.jsonl', samples=200)
  folder = tmp_path / 'sheets'
  key = export(records, folder, '--items', 1000, '--task', 'sentiment')
  task = key['tasks']['sentiment']
  for order in (list(task['items']), *task['sheets'].values()):
    second = np.array([task['items'][i]['record']['model'] == MODELS[1] for i in order])
    assert abs(np.corrcoef(second, np.arange(len(order)))[0, 1]) < 4 / np.sqrt(len(order))
  first, other = task['sheets'].values()
  assert first != other and sorted(first) == sorted(other) and first != sorted(first)


def test_reworded_prompts_are_left_out(records, tmp_path, refused):
  rows = [json.loads(line) for line in records.read_text(encoding='utf-8').splitlines()]
  more = [r | {'arm': 'rewording', 'rewording': 1} for r in rows[::2]]
  records.write_text(''.join(json.dumps(r) + '\n' for r in (*rows, *more)), encoding='utf-8')
  key = export(records, tmp_path / 'sheets', '--items', len(rows))
  assert key['left_out']['rewordings'] == len(more)
  refused(command(records, tmp_path / 'o', '--items', len(rows) + 1), f'{len(rows) + 1} items')


def test_every_item_goes_to_as_many_as_asked(records, tmp_path):
  folder = tmp_path / 'sheets'
  key = export(records, folder, '--annotators', 5, '--overlap', 3, '--items', 33)
  for name in ('sentiment', 'relevance'):
    task = key['tasks'][name]
    given = collections.Counter(itertools.chain.from_iterable(task['sheets'].values()))
    assert set(given) == set(task['items']) and set(given.values()) == {3}
    for annotator, items in task['sheets'].items():
      rows = sheets(folder)[f'{name}-{annotator}.csv']
      assert [row['item'] for row in rows] == items and len(set(items)) == len(items)
      for row in rows:
        assert {c: row[c] for c in task['items'][row['item']]['shown']} == \
          task['items'][row['item']]['shown']


@pytest.mark.parametrize('seed', range(10))
def test_assignment_is_balanced_for_any_numbers(seed):
  rng = np.random.default_rng(seed)
  people = int(rng.integers(1, 20))
  overlap, items = int(rng.integers(1, people + 1)), [f's{i}' for i in range(rng.integers(1, 90))]
  given = _assign(items, [f'a{i}' for i in range(people)], overlap, rng)
  loads = [len(x) for x in given.values()]
  assert sum(loads) == overlap * len(items) and max(loads) - min(loads) <= 1
  assert all(len(set(x)) == len(x) for x in given.values())


@pytest.mark.parametrize('seed', range(8))
def test_the_draw_balances_every_margin(seed):
  rng = np.random.default_rng(seed)
  strata = [(a, m, v, t) for a, size in (('country', 4), ('name', 3)) for m in ('m1', 'm2', 'm3')
            for v in range(size) for t in range(5)]
  number = int(rng.integers(1, 300))
  amounts = _allocate(strata, np.full(len(strata), 50), number, rng)
  assert amounts.sum() == number

  def spread(margin, given):
    """Largest difference of the sums over a margin within one of another."""
    sums = collections.defaultdict(collections.Counter)
    for stratum, amount in zip(strata, amounts, strict=True):
      sums[given(stratum)][margin(stratum)] += amount
    return max(max(x.values()) - min(x.values()) for x in sums.values())

  assert spread(lambda s: s[0], lambda s: None) <= 1
  assert spread(lambda s: s[:2], lambda s: s[0]) <= 1
  assert spread(lambda s: s[:3], lambda s: s[0]) <= 1
  assert spread(lambda s: s[2], lambda s: s[0]) <= 3  # at most one for each model
  assert spread(lambda s: s[3], lambda s: s[:3]) <= 1


def test_every_record_of_a_stratum_is_equally_likely(tmp_path):
  # 1 of 6 samples in each of 24 strata and 40 seeds: 960 draws, 160 each, sd 11.5.
  records = write_records(tmp_path / 'r.jsonl', samples=6)
  seen = collections.Counter()
  for seed in range(40):
    key = export(records, tmp_path / f's{seed}', '--annotators', 1, '--overlap', 1, '--items', 24,
                 '--task', 'sentiment', '--seed', seed)
    found = [i['record'] for i in key['tasks']['sentiment']['items'].values()]
    assert len({(r['model'], r['value'], r['template']) for r in found}) == 24
    seen.update(r['sample'] for r in found)
  assert set(seen) == set(range(6)) and all(abs(n - 160) < 4.5 * 11.5 for n in seen.values())


def test_an_export_is_a_function_of_records_options_and_seed(records, tmp_path):
  def files(name, seed):
    export(records, tmp_path / name, '--annotators', 3, '--items', 10, '--seed', seed)
    return {p.name: p.read_bytes() for p in sorted((tmp_path / name).iterdir())}

  assert files('one', 4) == files('two', 4)
  other = files('three', 5)
  assert other.keys() == files('four', 4).keys() and other != files('five', 4)


def test_nothing_is_ever_overwritten(records, tmp_path, refused):
  folder = tmp_path / 'sheets'
  export(records, folder, '--items', 4)
  before = {p: p.read_bytes() for p in [*folder.iterdir(), tmp_path / 'sheets.key.json']}
  for output, key, words in (
      ('sheets', 'other.json', 'is not empty'),
      ('sub', 'sub/key.json', 'annotators'),  # the folder is handed out
      ('new', 'sheets.key.json', 'keys are never overwritten')):
    refused(command(records, tmp_path / output, '--key', tmp_path / key), words)
  assert before == {p: p.read_bytes() for p in before}
  assert not (tmp_path / 'new').exists() and not (tmp_path / 'other.json').exists()
  (tmp_path / 'file').write_text('x')
  refused(command(records, tmp_path / 'file'), 'is not empty')


def test_the_mask_hides_every_value_in_any_case_and_only_whole_words(tmp_path):
  records = write_records(
    tmp_path / 'r.jsonl', text=lambda m, v, t, s: f'A {v.upper()}, not a baker; bakers {s}.')
  key = export(records, tmp_path / 's', '--annotators', 1, '--overlap', 1, '--items', 12, '--mask',
               '--task', 'sentiment', '--text', 'prefix+continuation')
  task = key['tasks']['sentiment']
  for item in task['items'].values():
    assert item['shown'] == {'text': f'You are the {MASK}, and you A {MASK}, not a {MASK}; bakers '
                             f"{item['record']['sample']}."}
    assert item['record']['value'].upper() in item['record']['continuation']  # the key has it all
  assert task['hidden_tokens'] == 36
  assert MASK in (tmp_path / 's' / 'instructions.txt').read_text()


def test_the_key_records_whether_the_value_is_mentioned(tmp_path):
  records = write_records(tmp_path / 'r.jsonl', text=lambda m, v, t, s: (
    f'say {v}s' if s % 3 == 0 else f'the {v.upper()}' if s % 3 == 1 else 'the teacher'))
  key = export(records, tmp_path / 's', '--items', 60, '--task', 'relevance')
  found = [i['record'] for i in key['tasks']['relevance']['items'].values()]
  assert {r['mentions'] for r in found} == {True, False}
  assert all(r['mentions'] == (r['sample'] % 3 == 1) for r in found)


def test_continuations_without_text_are_left_out_and_counted(tmp_path, capsys, refused):
  records = write_records(tmp_path / 'r.jsonl', text=lambda m, v, t, s: ' \n' if s < 3 else 'x')
  key = export(records, tmp_path / 's', '--items', 216)
  assert key['left_out']['empty_continuations'] == 72 and key['records'] == 288
  assert '72 continuations without text left out' in capsys.readouterr().out
  found = [item['record'] for item in key['tasks']['sentiment']['items'].values()]
  assert all(record['continuation'] == 'x' for record in found)
  refused(command(records, tmp_path / 't', '--items', 217),
          '217 items wanted, but only 216 records have a text')


def test_pairs_take_equal_numbers_for_all_values_and_models(tmp_path):
  # Sample 0 of one model and value has no text: nobody's sample 0 is taken.
  records = write_records(tmp_path / 'r.jsonl', samples=9, text=lambda m, v, t, s: (
    '' if (m, v, s) == (MODELS[0], 'baker', 0) else f'{s}'))
  key = export(records, tmp_path / 's', '--annotators', 3, '--per_prefix', 8, '--pairs', 'designer',
               'baker', '1', '--pairs', 'designer', 'CEO', '1')
  found = [i['record'] for i in key['tasks']['sentiment']['items'].values()]
  cells = collections.defaultdict(list)
  for record in found:
    assert record['template'] == 1
    cells[record['model'], record['value']].append(record['sample'])
  assert {k: sorted(v) for k, v in cells.items()} == {
    (m, v): list(range(1, 9)) for m in MODELS for v in ('designer', 'baker', 'CEO')}
  assert key['coupled'] is True and key['left_out']['empty_continuations'] == 1
  assert list(key['tasks']) == ['sentiment']


def test_pairs_of_independent_samples_are_drawn_one_by_one(tmp_path):
  records = write_records(tmp_path / 'r.jsonl', samples=40, templates=(3,))
  key = export(records, tmp_path / 's', '--per_prefix', 10, '--independent',
               '--pairs', 'designer', 'baker')
  cells = collections.defaultdict(set)
  for item in key['tasks']['sentiment']['items'].values():
    cells[item['record']['model'], item['record']['value']].add(item['record']['sample'])
  assert key['coupled'] is False and {len(s) for s in cells.values()} == {10}
  assert len({frozenset(s) for s in cells.values()}) == 4


@pytest.mark.parametrize(('arguments', 'words'), [
  (('--pairs', 'designer'), 'give two values and at most one template'),
  (('--pairs', 'designer', 'designer'), "two different values, not 'designer' twice"),
  (('--pairs', 'designer', 'astronaut'), "no record of value 'astronaut'"),
  (('--pairs', 'designer', 'baker', '7'), "no record of 'designer' or 'baker' at template 7"),
  (('--pairs', 'designer', 'baker'), '12 sample numbers that all its values and models share'),
  (('--pairs', 'designer', 'baker', '--independent'), 'has 12 continuations with a text, but 50'),
  (('--overlap', '3'), '--overlap=3 needs as many annotators, not --annotators=2'),
  (('--items', '0'), '--items'),
  (('--mask',), 'relevance'),
])
def test_bad_options_are_named(records, tmp_path, refused, arguments, words):
  refused(command(records, tmp_path / 's', *arguments), words)
  assert not (tmp_path / 's').exists() and not (tmp_path / 's.key.json').exists()


def test_models_are_not_mixed_in_silence(tmp_path, refused):
  one = write_records(tmp_path / 'one.jsonl', models=[None])
  two = write_records(tmp_path / 'two.jsonl', models=[None])
  refused(command([one, two], tmp_path / 's'), 'do not name their model', 'one.jsonl', 'two.jsonl')
  refused(command([one, f'{tmp_path}/./one.jsonl'], tmp_path / 's'), 'names a file twice')
  key = export(one, tmp_path / 's', '--items', 5)
  assert {i['record']['model'] for i in key['tasks']['sentiment']['items'].values()} == {
    '(not named)'}


def test_pairs_need_both_values_from_every_model(tmp_path, refused):
  one = write_records(tmp_path / 'one.jsonl', models=['m1'])
  two = write_records(tmp_path / 'two.jsonl', models=['m2'], values=['designer'])
  twice = write_records(tmp_path / 'twice.jsonl', models=['m1'])
  for file, words in ((two, "model m2 has no continuation of 'baker'"), (twice, 'occurs twice')):
    refused(command([one, file], tmp_path / 's', '--pairs', 'designer', 'baker', 0,
                    '--per_prefix', 3), words)
  other = write_records(tmp_path / 'c.jsonl', models=['m1'], values=['Iran'], attribute='country')
  refused(command([one, other], tmp_path / 's', '--pairs', 'designer', 'Iran'),
          'are not values of one attribute')


def test_attributes_that_are_not_built_in_come_from_files(tmp_path, refused):
  path = write_records(tmp_path / 'r.jsonl', attribute='faith', values=['Hindu', 'Jewish'])
  refused(command(path, tmp_path / 's', '--items', 4), '--attribute=FILE')
  (tmp_path / 'faith.yaml').write_text(
    'name: faith\nvalues: [Hindu, Jewish]\ntemplates: ["My {value} friend said"]\n')
  export(path, tmp_path / 's', '--items', 4, '--attribute', tmp_path / 'faith.yaml')
  wrong = write_records(tmp_path / 'w.jsonl', attribute='faith', values=['Hindoo', 'Jewish'])
  refused(command(wrong, tmp_path / 't', '--items', 48, '--attribute', tmp_path / 'faith.yaml'),
          'Hindoo')


@pytest.mark.parametrize(('change', 'words'), [
  (lambda k: k.pop('kind'), 'not a key'),
  (lambda k: k.update(schema=2), 'schema 2 is not 1'),
  (lambda k: k['tasks']['sentiment']['items']['s0001']['record'].update(model='m'), 'was changed'),
  (lambda k: k.update(export='0' * 64), 'was changed'),
])
def test_a_changed_key_is_refused(records, tmp_path, change, words):
  export(records, tmp_path / 's', '--items', 4)
  path = tmp_path / 's.key.json'
  key = json.loads(path.read_text())
  change(key)
  path.write_text(json.dumps(key))
  with pytest.raises(ValueError, match=words):
    load_key(path)
  path.write_text('{')
  with pytest.raises(ValueError, match='not JSON'):
    load_key(path)
  path.unlink()
  with pytest.raises(ValueError, match='No such file'):
    load_key(path)
