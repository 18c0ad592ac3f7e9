"""Reading, appending and repairing records."""

import collections
import dataclasses
import gzip
import json
import math
import unicodedata

import numpy as np
import pandas as pd
import pytest

from fairjax.counterfactual import list_attributes, load_attribute
from fairjax.counterfactual.attributes import Template
from fairjax.errors import UserError
from fairjax.generate import RecordWriter, read_records, repair
from fairjax.generate.records import Record, TemplateFinder

RECORD = {'attribute': 'country', 'value': 'Côte', 'template': 0, 'prefix': 'Côte is',
          'continuation': ' a “place”.', 'sample': 3, 'model': 'm', 'extra': [1]}
NAMES = ['r.jsonl', 'r.jsonl.gz']


def write(path, *groups):
  with RecordWriter(path) as writer:
    for group in groups:
      writer.append(group)


@pytest.mark.parametrize('name', NAMES)
def test_round_trip(tmp_path, name):
  path = tmp_path / 'new' / name
  records = [RECORD | {'sample': i} for i in range(5)]
  write(path, records[:2])
  write(path, records[2:4], records[4:])
  found = list(read_records(path))
  assert [{k: v for k, v in r.items() if k != '_where'} for r in found] == records
  assert found[4]['_where'] == f'{path}:5'
  assert repair(path) == repair(tmp_path / 'absent.jsonl') == 0


@pytest.mark.parametrize('name', NAMES)
def test_repair_at_every_byte(tmp_path, name, monkeypatch):
  """Wherever an interruption stops, whole appends stay and the rest can be written again."""
  monkeypatch.setattr('os.fsync', lambda file: None)  # thousands
  path = tmp_path / name
  groups = [[RECORD | {'sample': i}] for i in range(3)]
  borders = []
  for group in groups:
    write(path, group)
    borders.append(path.stat().st_size)
  whole = path.read_bytes()
  for size in range(len(whole) + 1):
    path.write_bytes(whole[:size])
    kept = sum(b <= size for b in borders)
    removed = repair(path)
    assert removed == size - ([0] + borders)[kept]
    write(path, *groups[kept:])
    assert path.read_bytes() == whole


def test_gzip_damage_in_the_middle_is_no_interruption(tmp_path):
  path = tmp_path / 'r.jsonl.gz'
  write(path, [RECORD], [RECORD])
  data = bytearray(path.read_bytes())
  data[15] ^= 0xFF
  path.write_bytes(data)
  with pytest.raises(UserError, match='damaged after byte 0'):
    repair(path)


def test_what_data_frames_write_for_null_is_an_empty_text():
  for null in (None, float('nan'), np.float32('nan'), pd.NA, pd.NaT):
    for record in read_records([RECORD | {'continuation': null}] * 2):
      assert record['continuation'] == ''


@pytest.mark.parametrize('line, message', [
  (b'{"attribute": ', r'r.jsonl:2: not JSON'),
  (b'[1]', r'r.jsonl:2: expected a JSON object, not list'),
  (b'{"a": "\xff"}', r'r.jsonl:2: not UTF-8 \(byte 8 of the line is 0xff'),
  (json.dumps(RECORD | {'note': '?'}).encode().replace(b'?', b'\xe9'), r'r.jsonl:2: not UTF-8'),
  (json.dumps(RECORD | {'note': '\ud800'}).encode(), r'r.jsonl:2: .* half a character'),
  (json.dumps(RECORD | {'note': '?'}).replace('?', r'\uDFFF').encode(), '2: .* half a character'),
  (json.dumps({k: v for k, v in RECORD.items() if k != 'prefix'}).encode(),
   r'r.jsonl:2: fields missing: prefix \(--columns takes other names\)$'),
  (json.dumps(RECORD | {'value': 3.5}).encode(), r"r.jsonl:2: .*'value' must be a text, not fl"),
  (json.dumps(RECORD | {'continuation': 10 ** 400}).encode(), "'continuation' must be a text"),
  (json.dumps(RECORD | {'template': 0.5}).encode(), r"'template' must be an integer or a text"),
  (json.dumps(RECORD | {'template': True}).encode(), r"'template' must be .* a text, not bool"),
  (json.dumps(RECORD | {'sample': '1'}).encode(), r"field 'sample' is '1', not a whole number"),
  (json.dumps(RECORD | {'scores': 0.5}).encode(), r"field 'scores'"),
  (json.dumps(RECORD | {'sample': 1 << 63}).encode(), r"field 'sample' has more than 64 bits"),
])
@pytest.mark.parametrize('whole', [True, False])
def test_bad_lines(tmp_path, line, message, whole):
  path = tmp_path / 'r.jsonl'
  path.write_bytes(json.dumps(RECORD).encode() + b'\n' + line + b'\n')
  with pytest.raises(UserError, match=message):
    list(read_records(path, whole=whole))


@pytest.mark.parametrize('odd', [
  {}, {'continuation': None}, {'continuation': 'ä \x7f "\\'}, {'scores': {'s': float('nan')}},
  {'value': 'Chile', 'template': ''}, {'value': 'Chile', 'template': None}, {'sample': None},
  {'_where': 3, 'where': 4, 'subgroup': None}, {'arm': 'rewording', 'rewording': 1},
])
@pytest.mark.parametrize('options', [
  {}, {'attributes': [load_attribute('country')]}, {'columns': {'model': 'continuation'}}])
def test_what_measures_need_is_the_same_of_whole_records(tmp_path, odd, options):
  path = tmp_path / 'r.jsonl'
  lines = [json.dumps(RECORD | {'prefix': 'Chile is', 'sample': i} | (odd if i % 100 == 70 else {}))
           + '\n' * (1 + i % 2) for i in range(1000)]
  path.write_text(''.join(lines), 'utf-8')
  def read(whole):
    try:
      return [r if isinstance(r, Record) else Record.of(r)
              for r in read_records(path, whole=whole, repair=True, **options)]
    except UserError as e:
      return str(e)
  assert read(False) == read(True)


def test_records_before_damage_come_first(tmp_path):
  path, read = tmp_path / 'r.jsonl.gz', []
  lines = b''.join(json.dumps(RECORD | {'sample': i}).encode() + b'\n' for i in range(3000))
  path.write_bytes(gzip.compress(lines)[:-4])
  with pytest.raises(UserError, match=r'r.jsonl.gz:3001: .*cut off'):
    read.extend(read_records(path))
  assert read[-1]['_where'] == f'{path}:{len(read)}' and len(read) == 3000


def test_optional_fields_may_be_absent_or_null():
  record = {k: RECORD[k] for k in ('attribute', 'value', 'prefix', 'continuation')}
  record |= {'template': 'People from X', 'sample': None, 'scores': None}
  assert list(read_records([record])) == [record | {'_where': 'record 1'}]


@pytest.mark.parametrize('route', ['mappings', 'lines', 'table'])
def test_the_numbers_and_nulls_of_data_frames_are_read(route, tmp_path):
  rows = [RECORD | {'prefix': 'In Iran', 'value': 'Iran', 'template': 3.0, 'sample': 1.0,
                    'arm': 'rewording', 'rewording': 2.0, 'scores.x': 0.5},
          RECORD | {'prefix': 'In Iran', 'value': math.nan, 'template': 3.0, 'sample': math.nan,
                    'subgroup': math.nan, 'rewording': math.nan, 'scores.x': 0.25}]
  path, counts = tmp_path / 'r', collections.Counter()
  if route == 'lines':
    path.write_text('\n'.join(map(json.dumps, rows)))
  if route == 'table':
    pd.DataFrame(rows).astype({'template': int}).to_csv(path, index=False)
  first, second = read_records(
    rows if route == 'mappings' else path, attributes=[load_attribute('country')], counts=counts,
    whole=False)
  assert (first.template, first.sample, first.rewording, first.scores['x']) == (3, 1, 2, 0.5)
  assert (second.value, second.sample, second.subgroup) == ('Iran', None, None)
  assert all(type(x) is int for x in (first.template, first.sample, first.rewording))
  if route != 'table':  # whose cells are texts
    assert counts["values of field 'sample' (float) read as whole numbers"] == 1


def test_columns_that_are_no_mapping_are_refused():
  with pytest.raises(UserError, match=r"columns='a=prefix' is no mapping"):
    list(read_records([RECORD], columns='a=prefix'))


def test_two_scores_of_one_name_are_refused(tmp_path):
  rows = [RECORD | {'scores': {'x': 0.5}, 'scores.x': 0.25}]
  path = tmp_path / 'r.jsonl'
  path.write_text(json.dumps(rows[0]))
  for data in (rows, path):
    with pytest.raises(UserError, match='has 0.5 for x, column scores.x has 0.25'):
      list(read_records(data, whole=False))


def test_prefixes_that_differ_in_their_unicode_form_are_of_one_template():
  counts = collections.Counter()
  rows = [{'prefix': unicodedata.normalize(form, f'{value}\u00a0: d\u00e9j\u00e0'), 'value': value,
           'continuation': ''} for form in ('NFC', 'NFD') for value in ('Iran', 'Chile')]
  found = [r.template for r in read_records(
    rows, attributes=[load_attribute('country')], counts=counts, whole=False)]
  assert len(set(found)) == 1
  assert counts['records whose template is that of others in another Unicode form'] == 2


@pytest.mark.parametrize('name', list_attributes())
def test_prefixes_of_the_attribute_have_the_number_of_their_template(name):
  attribute, counts = load_attribute(name), collections.Counter()
  prefixes = attribute.prefixes()
  values = [v.text for v in attribute.values]
  rows = [{'prefix': f'{p.text} ', 'value': values[p.value], 'continuation': ''} for p in prefixes]
  rows.append({'prefix': f'Then {values[0]}', 'value': values[0], 'continuation': ''})
  found = [r.template for r in read_records(
    rows, attributes=[attribute], counts=counts, whole=False)]
  assert found[:-1] == [p.template for p in prefixes] and isinstance(found[-1], str)
  assert sorted(counts.values()) == [1, len(prefixes)]


@pytest.mark.parametrize('name', list_attributes())
def test_the_template_of_a_prefix_is_the_attribute_s_own(name):
  attribute = load_attribute(name)
  found = TemplateFinder(attribute)
  for prefix in attribute.prefixes():
    assert found.find(prefix.value, f'{prefix.text} ') == attribute.templates[prefix.template].text


@pytest.mark.parametrize(('name', 'template'), [
  ('name', 'Then {value} told me that {they} lost {their} keys, and I saw {them}; {They} said'),
  ('occupation', '{A} {value} met a young {value} and {a} {value}'),
  ('country', "{value}'s people say: {value} is"),
])
def test_prefixes_of_one_template_of_a_user_get_one_label(name, template):
  attribute = load_attribute(name)
  values = [dataclasses.replace(v, pronouns={
    **v.pronouns, **{k.capitalize(): w.capitalize() for k, w in v.pronouns.items()}})
            for v in attribute.values]
  prefixes = [Template(template, '1').fill(value) for value in values]
  found = TemplateFinder(attribute)
  for write in (str, str.upper):
    assert len({found.find(i, write(prefix)) for i, prefix in enumerate(prefixes)}) == 1
  assert found.find(0, 'Nobody is named here') is None
