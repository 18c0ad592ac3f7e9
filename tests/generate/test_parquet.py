"""Records as Parquet: what goes in comes out, typed, checked, in row groups."""

import gzip
import json
import math
import shlex
import struct

import numpy as np
import pytest
from record_cases import write_lines

from fairjax.cli.main import commands, main
from fairjax.counterfactual import load_attribute
from fairjax.errors import UserError
from fairjax.files import JsonLines
from fairjax.generate import parquet, read_records
from fairjax.measure.columns import read_generations
from fairjax.measure.similarity import prefix_cosines
from fairjax.run.recorded import convert_records

pa = pytest.importorskip('pyarrow')
import pyarrow.parquet as pq  # noqa: E402

COUNTRY = load_attribute('country')
BASE = {'attribute': 'country', 'value': 'Iran', 'template': 0, 'prefix': 'Iran is',
        'continuation': ' good .'}


def plain(path):
  return [{k: v for k, v in r.items() if k != '_where'} for r in read_records(path)]


def same(a, b):
  """Equal in value and type down to the bits of floats; whole scores may have become floats."""
  if isinstance(a, dict):
    return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
  if isinstance(a, list):
    return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
  if isinstance(a, float):
    return isinstance(b, float) and struct.pack('d', a) == struct.pack('d', b)
  return type(a) is type(b) and a == b


def full(samples=3):
  random = np.random.default_rng(0)
  return [BASE | {'value': v.text, 'subgroup': v.subgroup, 'sample': s, 'model': 'm',
                  'prefix': COUNTRY.prefix(0, i), 'scores': {'mine': float(random.random())},
                  'continuation': f' {random.choice(["good", "bad", "grey"])} {s} .'}
          for s in range(samples) for i, v in enumerate(COUNTRY.values)]


CASES = {
  'required fields only': [BASE],
  'unicode': [BASE | {'continuation': text} for text in (
    '', 'Côte d’Ivoire', '\u0001\t\n\r"\\', '👩‍👩‍👧 \U0010ffff', 'e\u0301 \u202eabc', '\u2028')],
  'floats': [BASE | {'scores': {'a': x, 'b é': -0.0}} for x in (
    5e-324, 0.1, 1 / 3, math.pi, 1 - 2**-53, 1.7976931348623157e308)],
  'a field that some lack': [BASE | {'sample': 1}, BASE, BASE | {'sample': -(1 << 63)}],
  'null everywhere': [BASE | {'subgroup': None}, BASE | {'subgroup': None}],
  'null, value and nothing': [BASE | {'note': None}, BASE | {'note': 'x'}, BASE],
  'templates of two types': [BASE, BASE | {'template': 'The {value}'}],
  'fields of their own': [BASE | {'deep': {'a': [1, None, {'b': 1.5}]}, 'ok': True, 'big': 1 << 80,
                                  'rate': 0.5, 'mixed': 1}, BASE | {'mixed': 1.0}],
  'scores that differ by record': [BASE | {'scores': {'a': 0.25}}, BASE | {'scores': {}},
                                   BASE | {'scores': {'c': 1.0, 'a': 0.5}}, BASE],
  'scores that are no numbers': [BASE | {'scores': {'a': 'high', 'b': None, 'c': 1}},
                                 BASE | {'scores': {'a': 1 << 70}}],
}


@pytest.mark.parametrize('name', CASES)
@pytest.mark.parametrize('suffix', ['.jsonl', '.jsonl.gz'])
def test_records_come_back_as_they_were(tmp_path, name, suffix):
  source = write_lines(tmp_path / 'a.jsonl', CASES[name])
  there, back = tmp_path / 'b.parquet', tmp_path / f'c{suffix}'
  assert convert_records(source, there, log=print) == len(CASES[name])
  assert convert_records(there, back, log=print) == len(CASES[name])
  for found in (plain(there), plain(back)):
    assert len(found) == len(CASES[name]) and all(map(same, CASES[name], found)), found


def test_columns_have_types_and_others_read_them(tmp_path):
  path = tmp_path / 'r.parquet'
  convert_records(write_lines(tmp_path / 'r.jsonl', full()), path, log=print)
  types = {f.name: str(f.type) for f in pq.read_schema(path)}
  assert types['continuation'] == 'string' and types['template'] == types['sample'] == 'int64'
  assert types['scores'].startswith('map<string, double')
  table = pq.read_table(path)
  assert table['scores'].to_pylist() == [list(r['scores'].items()) for r in full()]
  assert table['value'].to_pylist() == [r['value'] for r in full()]


def test_records_are_written_and_read_in_row_groups(tmp_path, monkeypatch):
  monkeypatch.setattr(parquet, 'ROW_GROUP', 20)
  source, path = write_lines(tmp_path / 'r.jsonl', full(5)), tmp_path / 'r.parquet'
  assert convert_records(source, path, log=print) == 50
  with pq.ParquetFile(path) as file:
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [20, 20, 10]
  # Rows before damage are given, as the lines of a cut file are: nothing reads ahead of them.
  reader = read_records(path)
  assert next(reader)['_where'] == f'{path}, row 1'
  assert [r['_where'].rpartition(' ')[2] for r in reader] == [str(n) for n in range(2, 51)]


def test_files_of_other_programs_are_read(tmp_path):
  rows = full()
  scores = pa.array([{'mine': r['scores']['mine'], 'other': None} for r in rows], pa.struct(
    {'mine': pa.float32(), 'other': pa.float64()}))
  columns = {name: pa.array([r[name] for r in rows]) for name in ('continuation', 'model')}
  columns |= {'attribute': pa.array([r['attribute'] for r in rows]).dictionary_encode(),
              'value': pa.array([r['value'] for r in rows], pa.large_string()),
              'prefix': pa.array([r['prefix'] for r in rows], pa.string_view()),
              'template': pa.array([0] * len(rows), pa.int8()),
              'sample': pa.array([r['sample'] for r in rows], pa.uint16()), 'scores': scores}
  path = tmp_path / 'r.parquet'
  pq.write_table(pa.table(columns), path, compression='snappy')
  found = plain(path)
  for got, row in zip(found, rows, strict=True):
    assert got['scores'] == {'mine': float(np.float32(row['scores']['mine']))}
    assert {k: v for k, v in got.items() if k != 'scores'} == {
      k: v for k, v in row.items() if k not in ('scores', 'subgroup')}


def test_categories_of_polars_are_read():
  values = pa.DictionaryArray.from_arrays(
    pa.array([1, None, 0], pa.uint32()), pa.array(['Iran', 'Chile'], pa.string_view()))
  rows = read_records(pa.table({k: [v] * 3 for k, v in BASE.items()} | {'model': values}))
  assert [row.get('model') for row in rows] == ['Chile', None, 'Iran']


def table(**columns):
  base = {k: [v, v] for k, v in BASE.items()} | {'value': ['Iran', 'Chile']}
  return pa.table({k: v for k, v in (base | columns).items() if v is not None})


@pytest.mark.parametrize(('columns', 'message'), [
  ({'prefix': ['a', None]}, 'row 2: fields missing: prefix'),
  ({'continuation': [1, 2]}, "row 1: field 'continuation' must be a text, not int"),
  ({'sample': pa.array([1, 1 << 63], pa.uint64())}, "row 2: field 'sample' has more than 64 bits"),
  ({'scores': [['ab'], ['ab']]}, "row 1: field 'scores' must be an object of scores"),
  ({'value': ['Iran', 'Itlay']}, "row 2: did you mean 'Italy'"),
])
def test_bad_rows_are_named(tmp_path, refused, columns, message):
  path = tmp_path / 'r.parquet'
  pq.write_table(table(**columns), path)
  refused(['measure', f'--records={path}', '--attribute=country', '--scorer=vader'], message,
          str(path))


def test_damaged_files_are_refused_in_one_line(tmp_path):
  path = tmp_path / 'r.parquet'
  convert_records(write_lines(tmp_path / 'r.jsonl', full(40)), path, log=print)
  whole = path.read_bytes()
  assert len(plain(path)) == 400
  middle = len(whole) // 3  # in a page: its checksum tells
  for content in (b'PAR1', whole[:-20], whole[:middle],
                  whole[:middle] + bytes([whole[middle] ^ 16]) + whole[middle + 1:]):
    path.write_bytes(content)
    with pytest.raises(UserError, match='cannot be read as Parquet'):
      plain(path)
  pq.write_table(table().slice(0, 0), path)
  with pytest.raises(UserError, match='holds no record'):
    plain(path)
  pq.write_table(table(other=['{', 'x']).replace_schema_metadata({'fairjax.records': '{}'}), path)
  with pytest.raises(UserError, match='row 1 or later: cannot be read'):
    plain(path)


def test_what_parquet_cannot_hold_is_refused_and_nothing_is_left(tmp_path):
  source = write_lines(tmp_path / 'a.jsonl', [BASE | {'scores': {'\udfff': 0.5}}])
  with pytest.raises(UserError, match=":1: field 'scores' holds half a character"):
    convert_records(source, tmp_path / 'b.parquet', log=print)
  assert [p.name for p in tmp_path.iterdir()] == ['a.jsonl']


@pytest.fixture
def measured(found):
  return lambda path, *more: found('measure', f'--records={path}', '--attribute=country',
                                   '--permutations=20', *more)


def test_measures_are_those_of_the_jsonl_and_scores_travel(tmp_path, monkeypatch, measured):
  monkeypatch.chdir(tmp_path)
  write_lines(tmp_path / 'generations.jsonl', full(4))
  wanted = measured('generations.jsonl', '--scorer=vader', '--scorer=recorded:mine',
                    '--keep=scores')
  example = shlex.split(commands('records')['records convert'].example)[1:]
  assert main(example) == 0
  assert measured('generations.parquet', '--scorer=vader', '--scorer=recorded:mine') == wanted
  # The scores that were kept are the records' own now.
  brought = measured('generations.parquet', '--scorer=recorded:vader')['scorers']['recorded:vader']
  vader = wanted['scorers']['vader']
  for name in ('individual_fairness', 'group_fairness', 'mean_score_by_value'):
    assert brought[name] == vader[name]
  with open('scores/country.vader.jsonl', encoding='utf-8') as file:
    header = json.loads(file.readline())
  assert json.loads(pq.read_schema('generations.parquet').metadata[b'fairjax.records']) == {
    'source': 'generations.jsonl', 'scorers': {'vader': header['fingerprint']}}
  bare = [{k: v for k, v in r.items() if k not in ('attribute', 'value')} for r in full(4)]
  write_lines(tmp_path / 'bare.jsonl', bare)
  convert = ['records', 'convert', '--records=bare.jsonl', '--output=named.jsonl']
  assert main(convert) == 2 and main([*convert, '--attribute=country']) == 0
  assert measured('named.jsonl', '--scorer=vader', '--scorer=recorded:mine') == wanted
  # Through a compressed file and back: the same rows.
  assert main(['records', 'convert', '--records=generations.parquet', '--output=x.jsonl.gz']) == 0
  with gzip.open('x.jsonl.gz', 'rt', encoding='utf-8') as file:
    assert [json.loads(line) for line in file] == plain(tmp_path / 'generations.parquet')
  assert main(example) == 2  # nothing is overwritten


class LengthEncoder:
  name, fingerprint = 'minilm', 'lengths'

  def encode(self, texts):
    return np.array([[1.0, len(text)] for text in texts])


def test_scores_of_other_texts_are_refused(tmp_path, monkeypatch, refused, measured):
  monkeypatch.chdir(tmp_path)
  rows = full(4)
  write_lines(tmp_path / 'r.jsonl', rows)
  measured('r.jsonl', '--scorer=vader', '--keep=s')
  write_lines(tmp_path / 'other.jsonl', [rows[0] | {'continuation': 'never scored'}])
  write_lines(tmp_path / 'double.jsonl', [r | {'scores': {'vader': 0.123}} for r in rows])
  generations = read_generations(read_records('r.jsonl'), load_attribute('country'))
  prefix_cosines(generations, LengthEncoder(), directory='s')
  file = 's/country.vader.jsonl'
  with JsonLines('s/country.parts.jsonl', {'measures of': 'country'}, again='') as parts:
    parts.append({'key': 'k', 'result': {}})
  for source, more, message in (
      ('other.jsonl', [file], 'other.jsonl:1: no score of vader for this text'),
      ('r.jsonl', [file, '--scored=prefix+continuation'], 'r.jsonl:1: no score of vader'),
      ('double.jsonl', [file], 'double.jsonl:1: has another score of vader already, 0.123'),
      ('r.jsonl', ['r.jsonl'], 'r.jsonl:1: not a file of this version'),
      ('r.jsonl', ['s/country.minilm-own.jsonl'],
       'holds cosines of continuations and prefixes (minilm-own), not scores of texts'),
      ('r.jsonl', ['s/country.parts.jsonl'], 'belongs to measures of country: it holds no scores')):
    refused(['records', 'convert', f'--records={source}', '--output=o.parquet', '--scores', *more],
            message)
  refused(['records', 'convert', '--records=r.jsonl', '--output=o.csv'],
          'must end in one of .jsonl, .jsonl.gz, .parquet')
  assert not (tmp_path / 'o.parquet').exists()
