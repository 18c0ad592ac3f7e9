"""`import fairjax`: the numbers of the command line from every kind of data, and their tables."""

import csv
import dataclasses
import inspect
import json
import pathlib
import random
import subprocess
import sys
import types

import numpy as np
import pytest
from record_cases import write_lines

import fairjax
from fairjax import api
from fairjax.config import SampleConfig
from fairjax.counterfactual import load_attribute
from fairjax.errors import UserError
from fairjax.generate import read_records
from fairjax.measure import measure_records
from fairjax.report import compare_reports, read_report

COUNTRY = load_attribute('country')
TEXTS = ('a good happy day', 'a terrible sad war', 'the table is round', 'wonderful people')
COLUMNS = {'prompt': 'prefix', 'answer': 'continuation'}
OPTIONS = {'attribute': 'country', 'permutations': 20}


def make_rows(templates=2, samples=8, seed=0):
  """Records with everything, their templates labelled as fairjax finds them."""
  choose = random.Random(seed)
  return [{'attribute': 'country', 'value': value.text, 'template': t,
           'prefix': COUNTRY.prefix(t, v),
           'continuation': choose.choice(TEXTS if v < 5 else TEXTS[2:])}
          for t in range(templates) for v, value in enumerate(COUNTRY.values)
          for _ in range(samples)]


def of_users(records):
  """The same under other names, without what the prefix says."""
  return [{'prompt': r['prefix'], 'value': r['value'], 'answer': r['continuation'],
           'score_of_theirs': 0.5} for r in records]


def as_file(rows, path):
  with open(path, 'w', encoding='utf-8', newline='') as file:
    writer = csv.DictWriter(file, rows[0])
    writer.writeheader()
    writer.writerows(rows)
  return path


@pytest.fixture(scope='module')
def expected():
  return measure_records(make_rows(), 'country', ['vader'], permutations=20)


FORMS = {
  'mappings': lambda rows, path: iter(rows),
  'CSV': as_file,
  'JSON': lambda rows, path: path.write_text(json.dumps(rows)) and path,
  'pandas': lambda rows, path: pytest.importorskip('pandas').DataFrame(rows).astype(
    {'value': 'category'}),
  'Polars': lambda rows, path: pytest.importorskip('polars').DataFrame(rows),
  'Arrow': lambda rows, path: pytest.importorskip('pyarrow').Table.from_pylist(rows),
}


@pytest.mark.parametrize('form', FORMS)
def test_every_kind_of_data_gives_the_numbers_of_complete_records(form, tmp_path, expected):
  data = FORMS[form](of_users(make_rows()), tmp_path / 'r.csv')
  result = fairjax.measure(data, columns=COLUMNS, **OPTIONS)
  assert result.measures == expected
  assert result.name == ('r' if form in ('CSV', 'JSON') else 'model')
  assert set(result.scores) == {'vader'} and len(result.scores['vader']) == len(make_rows())
  rows = [r | {'template': ''} for r in of_users(make_rows(samples=1))]
  found = list(read_records(FORMS[form](rows, tmp_path / 'r.csv'), attributes=[COUNTRY],
                            columns=COLUMNS | {'score_of_theirs': 'scores.theirs'}))
  assert {r['template'] for r in found} == {0, 1}
  assert all(r['scores'] == {'theirs': 0.5} for r in found)


def test_names_and_values_are_enough_to_measure(tmp_path, expected):
  path = tmp_path / 'land.yaml'
  path.write_text('name: land\nvalues:\n' + ''.join(f'- {v}\n' for v in COUNTRY.value_texts))
  found = fairjax.measure(of_users(make_rows()), attribute=path, columns=COLUMNS,
                          permutations=20).measures
  texts = [t.text for t in COUNTRY.templates[:2]]
  assert all(found['scorers']['vader'][m] == expected['scorers']['vader'][m]
             for m in ('individual_fairness', 'group_fairness', 'pairs'))
  assert found['templates'] == texts == sorted(texts)
  assert found['templates_not_in_records'] == []
  with pytest.raises(UserError, match='attribute land has no templates'):
    fairjax.sample(
      'm', endpoint='http://localhost:1/v1', attribute=path, output=tmp_path / 'o.jsonl')


def test_the_value_is_the_one_that_the_prefix_holds(tmp_path, expected):
  rows, lines = [{k: r[k] for k in ('prefix', 'continuation')} for r in make_rows()], []
  for data in (rows, as_file(rows, tmp_path / 'r.csv')):
    assert fairjax.measure(data, log=lines.append, **OPTIONS).measures == expected
  assert 'data: 160 records whose value is the one that their prefix holds' in lines
  for prefix in ('Here and', 'Iran and Iraq are'):
    with pytest.raises(UserError, match="record 161: field 'value' is missing, .* one value of"):
      fairjax.measure([*rows, {'prefix': prefix, 'continuation': 'a'}], **OPTIONS)


def test_missing_numbers_of_a_data_frame_are_missing():
  pandas = pytest.importorskip('pandas')
  records = [r | {'sample': i % 8} for i, r in enumerate(make_rows())]
  records[3].pop('sample')
  with pytest.raises(UserError, match="row 4: field 'sample' is missing"):
    fairjax.measure(pandas.DataFrame(records), **OPTIONS)
  for field, what in (('continuation', 'half \ud83d'), ('extra', 10 ** 20), ('extra', 'mixed')):
    rows = [r | {field: 1} if field == 'extra' else r for r in make_rows()]
    rows[5][field] = what
    with pytest.raises(UserError, match='cannot become an Arrow table'):
      fairjax.measure(pandas.DataFrame(rows, dtype=object), **OPTIONS)


@pytest.mark.parametrize('form', ['pandas', 'Arrow', 'Parquet'])
def test_of_two_columns_of_one_name_none_replaces_the_other(form, tmp_path):
  pa = pytest.importorskip('pyarrow')
  table = pa.Table.from_pylist(make_rows())
  data = table.append_column('value', table['value'])
  if form == 'pandas':
    data = pytest.importorskip('pandas').DataFrame(make_rows())
    data.insert(0, 'value', data['value'], allow_duplicates=True)
  elif form == 'Parquet':
    pytest.importorskip('pyarrow.parquet').write_table(data, tmp_path / 'r.parquet')
    data = tmp_path / 'r.parquet'
  with pytest.raises(UserError, match='wo columns value: keep one|Duplicate column names found'):
    fairjax.measure(data, **OPTIONS)


def test_the_command_line_gives_the_same(tmp_path, found, expected):
  path = as_file(of_users(make_rows()), tmp_path / 'r.csv')
  assert found(
    'measure', f'--records={path}', '--attribute=country', '--scorer=vader', '--permutations=20',
    '--columns=prompt=prefix,answer=continuation') == json.loads(json.dumps(expected))


def test_values_without_records_are_left_out_and_named(tmp_path):
  kept = [v for v in COUNTRY.values if v.text in ('Syria', 'Chile', 'Italy')]
  records, lines = [r for r in make_rows() if r['value'] in {v.text for v in kept}], []
  few = fairjax.measure(records, log=lines.append, **OPTIONS)
  alone = measure_records(records, dataclasses.replace(COUNTRY, values=tuple(kept)), ['vader'],
                          permutations=20)
  assert few.measures['values_not_in_records'] == [
    v.text for v in COUNTRY.values if v not in kept]
  for key in set(alone) - {'values_not_in_records', 'notes'}:
    assert few.measures[key] == alone[key]
  note = few.measures['notes'][0]
  assert '3 of 10 values' in note and 'Libya' in note and 'Libya' in ' '.join(lines)
  few.report(tmp_path / 'out')
  assert note in (tmp_path / 'out' / 'report.md').read_text(encoding='utf-8')
  with pytest.raises(UserError, match='all records are of Syria'):
    fairjax.measure([r for r in records if r['value'] == 'Syria'], **OPTIONS)


def test_tables_hold_the_measures(expected, tmp_path):
  pytest.importorskip('pandas')
  result = fairjax.measure(make_rows(), **OPTIONS)
  found = expected['scorers']['vader']
  estimates = result.to_frame().set_index('measure')
  for measure in ('individual_fairness', 'group_fairness'):
    assert estimates.loc[measure, 'value'] == found[measure]['value']
    assert estimates.loc[measure, 'verdict'] == (
      'within noise' if found[measure]['within_floor'] else 'above noise')
  values = result.to_frame('values').set_index('value')['mean_score'].to_dict()
  assert values == found['mean_score_by_value']
  pairs, cells = result.to_frame('pairs'), result.to_frame('cells')
  assert pairs['distance'].tolist() == found['pairs']['distance']
  assert len(cells) == 2 * len(pairs) == 2 * 45
  assert cells['distance'].tolist() == [d for row in found['cells']['distance'] for d in row]
  # The texts are records in any form.
  result.to_frame('texts').to_csv(tmp_path / 'texts.csv', index=False)
  again = fairjax.measure(tmp_path / 'texts.csv', **OPTIONS | {'scorers': 'recorded:vader'})
  assert again.to_frame()['value'].tolist() == result.to_frame()['value'].tolist()
  with pytest.raises(UserError, match="did you mean 'values'"):
    result.to_frame('value')


def test_reports_and_comparisons_are_those_of_the_files(tmp_path):
  results = [fairjax.measure([r | {'model': f'm{seed}'} for r in make_rows(seed=seed)], **OPTIONS)
             for seed in (0, 1)]
  pages = [result.report(tmp_path / result.name) for result in results]
  assert all(page.name == 'index.html' and page.is_file() for page in pages)
  assert {p.stem for p in tmp_path.glob('*/figures/*')} == {'values', 'fairness'}
  reports = [read_report(page.parent) for page in pages]
  assert reports[0]['rows'][0]['measures'] == json.loads(json.dumps(results[0].measures))
  whole = compare_reports(*reports, names=['m0', 'm1'])
  for found in (fairjax.compare(*results), fairjax.compare(results[0], pages[1].parent)):
    assert found.found['differences'] == whole['differences']
  assert 'm0 and m1, individual_fairness vader' in found.verdict
  html = results[0]._repr_html_()
  assert 'I.F. vader' in html and ('within noise' in html or 'above noise' in html)


@pytest.mark.parametrize(('data', 'columns', 'message'), [
  (7, None, 'int holds no records'),
  ([], None, 'the data: holds no record'),
  ([3], None, 'record 1: expected a JSON object, not int'),
  ([{'prefix': 'Syria is', 'value': 'Syria'}], None, 'record 1: fields missing: continuation'),
  ([{'prefix': 'x', 'value': 'Syria', 'continuation': ''}], None, "not hold 'Syria'.*template"),
  ([{'attribute': 'Country', 'prefix': 'x', 'continuation': ''}], None, "'Country', not country"),
  ([{'prefix': 'x', 'value': 'Syrie', 'continuation': ''}], None, "record 1.*mean 'Syria'"),
  (make_rows(), {'prompts': 'prefix'}, "no record has a column 'prompts', which was to be prefix"),
  (make_rows(), {'prompt': 'prefixes'}, "unknown field of records 'prefixes': did you mean 'pref"),
  (make_rows(), {'a': 'value', 'b': 'value'}, 'two columns get one name: a=value, b=value'),
])
def test_wrong_data_are_named(data, columns, message):
  with pytest.raises(UserError, match=message):
    fairjax.measure(data, columns=columns, **OPTIONS)


@pytest.mark.parametrize(('function', 'options', 'message'), [
  (fairjax.measure, {'permutations': 20.0}, 'permutations=20.0 must be int'),
  (fairjax.measure, {'permutations': 10 ** 12}, 'permutations=1000000000000 must be'),
  (fairjax.measure, {'encoder': 5}, 'encoder=5 must be str'),
  (fairjax.measure, {'columns': {1: 2}}, 'no mapping of their names to ours'),
  (fairjax.measure, {'lexicon': 5, 'scorers': 'opinion'}, 'lexicon=5 is no path'),
  (fairjax.measure, {'lexicon': 'words'}, "lexicon belongs to the scorer 'opinion'"),
  (fairjax.measure, {'log': 'print'}, 'no function that takes a line'),
  (fairjax.measure, {'scorers': types.SimpleNamespace(name=5, fingerprint='', score=len)},
   'neither a name nor an object with name'),
  (fairjax.sample, {'model': 'gpt2'}, "gpt2: there is no such folder .*'hf:ORG/NAME'"),
  (fairjax.measure, {'coupled': 'no'}, "coupled='no' must be bool"),
  (fairjax.measure, {'keep': 'gs://bucket/scores'}, 'is no path of a file or folder: mount the'),
  (fairjax.measure, {'scorers': [7]}, 'scorers: 7 is neither a name nor an object with name'),
  (fairjax.measure, {'attribute': None}, 'attribute=None is no path'),
  (fairjax.sample, {'samples': True}, 'samples=True must be int'),
  (fairjax.sample, {'name': 'control'}, 'name is no option of a published decoder'),
  (fairjax.sample, {'model': 'runs/x', 'dtype': 'bfloat16'}, 'dtype is no option of a run'),
  (fairjax.sample, {'endpoint': 'http://x', 'start': True}, 'start is no option of an endpoint'),
  *((fairjax.sample, {'endpoint': 'http://x', **wrong}, words) for wrong, words in (
    ({'concurrency': 0}, 'concurrency=0 must be above 0'), ({'body': None}, 'sent as JSON'),
    *(({'pause': pause}, 'must be the seconds') for pause in (5, (1,), [1, -1], 'ab')),
    ({'instruction': 'Go on.'}, 'instruction belongs to chat=True'),
    ({'timeout': '9'}, "timeout='9' must be float"))),
  (fairjax.sample, {'heldout_prefixes': True}, "unknown setting 'heldout_prefixes'"),
  (fairjax.run, {'config': pathlib.Path('quickstar'), 'workdir': 'w'}, "did you mean 'quickstart'"),
  (fairjax.run, {'config': 'quickstart', 'workdir': 'gs://bucket/w'}, 'mount the bucket'),
  (fairjax.run, {'config': 'quickstart', 'workdir': 'w', 'fields': [5]}, 'no mapping of names'),
  (fairjax.debias, {'train': 'a', 'workdir': 'w', 'model': None}, 'model=None is no path'),
  (fairjax.debias, {'train': 5, 'workdir': 'w', 'model': 'm'}, 'train=5 is no path'),
  (fairjax.compare, {'first': None, 'second': None}, 'report=None is no path'),
  *((fairjax.compare, {'first': 'a', 'second': 'b', 'models': models}, 'must be pairs of names')
    for models in (['xy'], [5], 5)),
])
def test_wrong_options_are_named(tmp_path, monkeypatch, function, options, message):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'config.json').write_text('{"model_type": "gpt2"}')
  usual = {fairjax.measure: {'data': make_rows(), 'attribute': 'country'},
           fairjax.sample: {'model': '.', 'attribute': 'country', 'output': 'o.jsonl'}}
  with pytest.raises(UserError, match=message):
    function(**usual.get(function, {}) | options)
  assert [p.name for p in tmp_path.iterdir()] == ['config.json']


@pytest.mark.parametrize(('model', 'words'), [
  ('old', 'model.safetensors'), ('adapter', 'no LoRA'), ('x.gguf', 'GGUF'), ('hf:a', 'hf:ORG/NAME'),
  ('pip:no-model', 'not installed'), ('workdir', 'has no data/vocabulary: name the workdir')])
def test_what_the_verb_takes_as_a_published_decoder_is_one(tmp_path, monkeypatch, model, words):
  monkeypatch.chdir(tmp_path)
  sizes = dict.fromkeys(('n_embd', 'n_layer', 'n_head', 'n_positions', 'vocab_size'), 2)
  for path, content in (('old/config.json', sizes), ('adapter/adapter_config.json', {}),
                        ('workdir/config.json', {'config': {}})):
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_text(json.dumps(content))
  (tmp_path / 'x.gguf').touch()
  with pytest.raises(UserError, match=words):
    fairjax.sample(model, attribute='country', output='o.jsonl')


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch, expected):
  monkeypatch.setenv('HOME', str(tmp_path))
  as_file(make_rows(), tmp_path / 'r.csv')
  result = fairjax.measure('~/r.csv', **OPTIONS)
  assert result.report('~/out') == tmp_path / 'out' / 'index.html'
  with pytest.raises(UserError, match='nobody-here'):
    fairjax.measure('~nobody-here/r.csv', **OPTIONS)
  assert result in [result] and len({result, fairjax.measure('~/r.csv', **OPTIONS)}) == 2


def test_the_packages_show_the_signatures_of_their_functions():
  for function in (api.measure, api.run):
    package = getattr(fairjax, function.__name__)
    assert inspect.signature(package) == inspect.signature(function)


def test_values_that_are_numbers_are_texts(tmp_path):
  (tmp_path / 'age.yaml').write_text('name: age\nvalues: ["20", "30"]\n')
  rows = [{'prefix': f'At {age} I', 'value': age, 'continuation': text, 'sample': i}
          for age in (20, 30) for i, text in enumerate(('won', 'lost', 'am sad'))]
  lines = []
  for data in (rows, write_lines(tmp_path / 'r.jsonl', rows),
               [r | {'value': np.int64(r['value'])} for r in rows],
               [r | {'value': float(r['value'])} for r in rows]):
    found = fairjax.measure(data, attribute=tmp_path / 'age.yaml', permutations=9,
                            log=lines.append)
    assert found.measures['values'] == ['20', '30']
  assert sum("6 values of field 'value' that are numbers, read" in line for line in lines) == 4
  with pytest.raises(UserError, match="field 'value' must be a text, not bool"):
    fairjax.measure([r | {'value': True, 'template': 'a'} for r in rows],
                    attribute=tmp_path / 'age.yaml')


def test_numbers_of_numpy_are_numbers(expected):
  found = fairjax.measure(data=make_rows(), **OPTIONS | {'permutations': np.int64(20)})
  assert found.measures == expected
  assert api._settings(SampleConfig(), {'samples': np.int32(3)}).samples == 3
  values = (np.int64(2), 3), np.array([2, 3]), np.float64(2)
  assert [*map(api._override, values)] == ['[2, 3]', '[2, 3]', '2.0']


def test_a_column_that_takes_the_name_of_another_is_counted(expected):
  rows, lines = [r | {'country': r['value'], 'value': 17} for r in make_rows()], []
  found = fairjax.measure(rows, scorers='vader', columns={'country': 'value'}, log=lines.append,
                          **OPTIONS)
  assert found.measures == expected
  assert f"data: {len(rows)} values of column 'value' replaced by those of 'country'" in lines


def test_importing_is_quick_and_measuring_loads_no_jax():
  # fairjax.Result loads all that reads, measures and reports records.
  code = ('import sys, fairjax; assert not {"numpy", "jax"} & set(sys.modules), "at once"; '
          'fairjax.measure; assert callable(fairjax.measure); from fairjax.measure import verdict; '
          'fairjax.Result, fairjax.compare; found = {"scipy", "matplotlib", "jax", "flax", '
          '"tensorflow", "vaderSentiment", "pandas"} & set(sys.modules); assert not found, found')
  subprocess.run([sys.executable, '-c', code], check=True)
