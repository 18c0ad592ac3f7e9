"""Records, corpora, vectors and labelled sentences in the forms in which people have them."""

import collections
import csv
import decimal
import functools
import io
import json
import lzma
import math
import os
import random

import pytest
from backports import zstd
from record_cases import records_of
from test_inputs import PACKERS, zipped

from fairjax.cli.main import main
from fairjax.counterfactual import load_attribute
from fairjax.counterfactual.gendered_words import read_names, read_word_pairs
from fairjax.data.documents import read_documents
from fairjax.errors import UserError
from fairjax.gender.bios import read_bios
from fairjax.gender.fair_generation.embedding import read_words
from fairjax.gender.persons import read_professions
from fairjax.generate import read_records
from fairjax.inputs import open_input
from fairjax.measure.scorers.lexicon import read_lexicon
from fairjax.pretrained.classifier import read_examples
from fairjax.tables import Table, arrow, parse_json, read_rows

BOM = b'\xef\xbb\xbf'
COUNTRY = load_attribute('country')
FIELDS = ('attribute', 'value', 'template', 'sample', 'prefix', 'continuation')
rows = functools.partial(records_of, COUNTRY, templates=1)
ODD = 'He said "no", then; a\ttab and\na line: caf\u00e9'


def as_lines(records):
  return ''.join(json.dumps(r) + '\n' for r in records).encode()


def as_table(records, separator=',', end='\r\n', top=''):
  file = io.StringIO(newline='')
  writer = csv.writer(file, delimiter=separator, lineterminator=end)
  writer.writerows([FIELDS, *([r[name] for name in FIELDS] for r in records)])
  return (top + file.getvalue()).encode()


def as_parquet(records, **columns):
  pa, pq = pytest.importorskip('pyarrow'), pytest.importorskip('pyarrow.parquet')
  table = pa.Table.from_pylist(records)
  for name, column in columns.items():
    table = table.append_column(name, column)
  file = io.BytesIO()
  pq.write_table(table, file)
  return file.getvalue()


FORMS = {
  'JSON lines': as_lines, 'JSON array': lambda r: json.dumps(r).encode(),
  'indented array': lambda r: json.dumps(r, indent=2).encode(), 'CSV': as_table,
  'LF': lambda r: as_table(r, end='\n'), 'semicolons': lambda r: as_table(r, ';'),
  'tabs': lambda r: as_table(r, '\t'), 'sep line': lambda r: as_table(r, ';', top='sep=;\r\n'),
  'Parquet': as_parquet}


def read(path, **options):
  return [{k: v for k, v in r.items() if k != '_where'} for r in read_records(path, **options)]


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('packing', PACKERS)
def test_records_are_read_in_every_form(tmp_path, form, packing):
  expected = rows(continuation=lambda p, i: f'{ODD} {p.text} {i}')
  for name, mark in (('r.jsonl', b''), ('r', BOM)):
    if form != 'Parquet' or not mark:
      (tmp_path / name).write_bytes(PACKERS[packing](mark + FORMS[form](expected)))
      assert read(tmp_path / name) == expected


@pytest.mark.parametrize(('content', 'words'), [
  (b'[{"a": 1},\n{"a": 2}]', "r, entry 1: fields missing"), (b'[{"a": 1},\n{"a" 2}]', "r:2: not a"),
  (b'[{"a": ' + b'9' * 5000 + b'}]', 'r: not a JSON array'),
  (b'[\n' + as_lines(rows(1)).replace(b'\n', b',\n') + b']', ":1[12]: not a JSON array"),
  (as_table(rows(1)).replace(b'prefix', b'prompt'), "r:1: no column 'prefix': the header must"),
  (as_table(rows(1)) + b'country,Iran\r\n', 'r:12: 2 cells where the header has 6'),
  (as_table(rows(1)) + b'country,"Iran\r\n', 'r:12: not CSV'),
  (b'attribute,value,template,prefix,continuation,value\n', 'two columns value'),
  (b'value\rx', "r:1: no column 'attribute'"),
  (b'\n\n', 'holds no record'), (b'', 'holds no record'),
  (b'hello\n', "r:1: no column 'attribute'"),
])
def test_what_is_wrong_in_a_form_has_its_line(tmp_path, content, words):
  (tmp_path / 'r').write_bytes(content)
  with pytest.raises(UserError, match=words):
    read(tmp_path / 'r')


def test_a_table_of_records_has_types(tmp_path):
  (tmp_path / 'r').write_text(
    'value,attribute,prefix,continuation,template,sample,subgroup,scores.vader,scores,rank,\n'
    'NA,country,p,c,007,3.0,,0.5,"{""a"": 1}",x,0\n,,,,,,,,,,\nIran,country,p,c,12,,mid,,,,1\n')
  counts = collections.Counter()
  first, second = read(tmp_path / 'r', counts=counts)
  assert counts == {'rows of blank cells, left out': 1}
  assert first == {'value': 'NA', 'attribute': 'country', 'prefix': 'p', 'continuation': 'c',
                   'template': '007', 'sample': 3, 'scores': {'a': 1, 'vader': 0.5}, 'rank': 'x'}
  assert second == {'value': 'Iran', 'attribute': 'country', 'prefix': 'p', 'continuation': 'c',
                    'template': 12, 'subgroup': 'mid', 'rank': ''}


@pytest.mark.parametrize('line', [
  '{"continuation": "half \\ud83d"}', '{"continuation": "nul \\u0000"}', '{"key \\ud800": 1}'])
def test_half_characters_are_refused_or_repaired(tmp_path, line, capsys, refused):
  expected, change, path = rows(), json.loads(line), tmp_path / 'r.jsonl'
  name = next(iter(change))
  expected[4] |= change
  path.write_bytes(as_lines(expected))
  commands = (
    ['measure', f'--records={path}', '--attribute=country', '--scorer=vader'],
    ['records', 'convert', f'--records={path}', f'--output={tmp_path}/o.jsonl'])
  for command in commands:
    refused(command, f'{path}:5: field {ascii(name)}', '--repair')
  assert main([*commands[1], '--repair']) == 0
  assert f'{path}: 1 fields with half a character or NUL, replaced' in capsys.readouterr().err
  text = json.dumps(expected[4], ensure_ascii=False)
  meant = json.loads(''.join('\ufffd' if '\ud800' <= c <= '\udfff' else c for c in text).replace(
    '\\u0000', '\ufffd'))
  assert read(tmp_path / 'o.jsonl') == [*expected[:4], meant, *expected[5:]]
  (tmp_path / 'o.jsonl').unlink()


def test_columns_that_no_measure_needs_do_not_stop_parquet(tmp_path, capsys):
  pa = pytest.importorskip('pyarrow')
  records = rows()
  n = len(records)
  nanoseconds = pa.array([1_000_000_000_000_000_001] * n, pa.timestamp('ns'))
  columns = {
    'created': nanoseconds, 'day': pa.array([1] * n, pa.date32()),
    'cost': pa.array([decimal.Decimal('1.25')] * n, pa.decimal128(9, 2)),
    'kind': pa.array(['a', 'b', None] * (n // 3)).dictionary_encode(),
    'long': pa.array(['x'] * n, pa.large_string()), 'raw': pa.array([b'\xff'] * n, pa.binary()),
    'nested': pa.array([[{'at': 1_000_000_000_000_000_001}]] * n,
                       pa.list_(pa.struct([('at', pa.timestamp('ns'))]))),
    'took': pa.array([1.5] * n, pa.float32())}
  path = tmp_path / 'r.parquet'
  path.write_bytes(as_parquet(records, **columns))
  assert main(['records', 'convert', f'--records={path}', f'--output={tmp_path}/o.jsonl']) == 0
  error = capsys.readouterr().err
  assert f"{n} values of column 'created' (timestamp[ns]) read as string" in error
  assert f"{n} values of column 'cost' (decimal128(9, 2)) read as string" in error
  assert "1 columns 'raw' (binary) that were not read" in error and "'kind'" not in error
  assert "1 columns 'nested'" in error
  found = read(tmp_path / 'o.jsonl')
  assert found[2] == records[2] | {
    'created': '2001-09-09 01:46:40.000000001', 'day': '1970-01-02', 'cost': '1.25', 'long': 'x',
    'took': 1.5}
  assert found[0]['kind'] == 'a'


def test_parquet_of_data_frames_keeps_numbers_and_texts(tmp_path):
  pa = pytest.importorskip('pyarrow')
  pq = pytest.importorskip('pyarrow.parquet')
  records = rows()
  table = pa.Table.from_pylist(records)
  for name, column in {
      'template': pa.array([0.0] * len(records)), 'sample': pa.array(
        [decimal.Decimal(r['sample']) for r in records], pa.decimal128(5, 0)),
      'value': pa.array([r['value'] for r in records]).dictionary_encode(),
      'continuation': pa.array([r['continuation'].encode() for r in records], pa.binary())}.items():
    table = table.set_column(table.schema.get_field_index(name), name, column)
  pq.write_table(table, tmp_path / 'r')
  assert read(tmp_path / 'r') == records


def test_empty_continuations_are_an_error_dropped_or_kept(tmp_path, capsys, refused, found):
  def measured(path, *options):
    return found('measure', f'--records={path}', '--attribute=country', '--scorer=vader',
                 '--permutations=50', *options)

  def continuation(p, i):
    if p.value < 2 and i % 2:
      return (None, '', ' \n', math.nan)[i // 2 % 4]
    return f'a {"good" if i % 3 else "terrible"} day'
  path = tmp_path / 'r.jsonl'
  path.write_bytes(as_lines(rows(16, continuation)))
  assert main(['measure', f'--records={path}', '--attribute=country', '--scorer=vader']) == 2
  error = capsys.readouterr().err
  assert '8 continuations that are null, read as empty' in error and '--empty=drop' in error
  assert (f'{path}:2: this continuation is empty, as are 16 of 160: Syria 8 of 16, Iran 8 of 16.'
          in error)
  # Coupled: the partners in the same sample go with them, so only even samples are left.
  even = tmp_path / 'even.jsonl'
  even.write_bytes(as_lines([r for r in rows(16, continuation) if not r['sample'] % 2]))
  dropped, expected = measured(path, '--empty=drop'), measured(even)
  assert dropped['scorers'] == expected['scorers'] and dropped['records'] == 80
  shares = dropped['empty_by_value']
  by_value = dict(zip(dropped['values'], zip(shares['empty'], shares['records'], strict=True),
                      strict=True))
  assert by_value == {v: (8 if v in ('Syria', 'Iran') else 0, 16) for v in dropped['values']}
  assert shares['left_out'] == 80
  from scipy.stats import chi2
  # Expected cells 1.6 and 14.4 of each value.
  statistic = 2 * 6.4**2 * (1 / 1.6 + 1 / 14.4) + 8 * 1.6**2 * (1 / 1.6 + 1 / 14.4)
  assert shares['p_value'] == pytest.approx(chi2.sf(statistic, 9), rel=1e-9)
  note = next(n for n in dropped['notes'] if 'are empty' in n)
  assert note.startswith('16 of 160 continuations are empty: Syria 50.0 %, Iran 50.0 %, Libya 0')
  assert 'the share depends on the value' in note and '80 records were left out' in note
  # Independent: their own records only.
  alone = measured(path, '--empty=drop', '--independent')
  assert alone['records'] == 144 and alone['n'] == {'min': 8, 'max': 16}
  kept = measured(path, '--empty=keep')
  assert kept['records'] == 160 and kept['empty_continuations'] == 16
  assert kept['empty_by_value'] == shares | {'left_out': 0}
  report = ['report', '--records', str(path), '--attribute=country', '--scorer=vader',
            '--permutations=50', f'--output={tmp_path}/report']
  refused(report, alone=False)
  assert main([*report, '--empty=drop']) == 0
  assert 'Syria 50.0 %, Iran 50.0 %' in (tmp_path / 'report' / 'report.md').read_text()
  path.write_bytes(as_lines(rows(2, lambda p, i: '' if p.value == 1 else 'x')))
  refused(['measure', f'--records={path}', '--attribute=country', '--scorer=vader', '--empty=drop',
           '--independent'], 'no records with a text of 1 of 10 pairs')


def documents(path, layout, **options):
  counts = collections.Counter()
  return list(read_documents([path], layout=layout, counts=counts, **options)), +counts


TEXTS = ['One line.', 'Two "quoted", lines\nof it', 'caf\u00e9; \tlast']


@pytest.mark.parametrize('packing', PACKERS)
def test_corpora_of_rows(tmp_path, packing):
  records = [{'id': i, 'body': text} for i, text in enumerate(TEXTS)]
  table = io.StringIO(newline='')
  csv.writer(table).writerows([['id', 'body'], *([i, t] for i, t in enumerate(TEXTS))])
  for content in (as_lines(records), json.dumps(records).encode(), table.getvalue().encode(),
                  as_parquet(records)):
    (tmp_path / 'c').write_bytes(PACKERS[packing](content))
    found, counts = documents(tmp_path / 'c', 'jsonl', text_field='body')
    assert found == TEXTS and counts == {'files': 1, 'lines': 3, 'documents': 3}
    with pytest.raises(UserError, match='text'):
      documents(tmp_path / 'c', 'csv')


def test_rows_that_are_broken_or_blank_are_counted(tmp_path):
  rows = (b'{"text": "a\\u0000b\\r\\nc\\ufffd"}', b'{"text": null}', b'{"text": 0}',
          b'{"text": "\\ud800"}', b'{"text": " ", "id": "\\u0000"}', b'{"body": "d"}')
  (tmp_path / 'c').write_bytes(BOM + rows[0] + b'\n\nx\n' + BOM + b'\n'.join(rows[1:]) + b'\n')
  (tmp_path / 'd').write_bytes(b'[' + b','.join(rows) + b']')
  common = {'files': 1, 'documents': 1, 'blank_documents': 2, 'nul_characters': 1,
            'carriage_returns': 1, 'replacement_characters': 1}
  for name, more in (
      ('c', {'lines': 8, 'blank_lines': 1, 'broken_lines': 4, 'byte_order_marks': 2}),
      ('d', {'lines': 6, 'broken_lines': 3})):
    found, counts = documents(tmp_path / name, 'jsonl', broken='skip')
    assert found == ['ab\nc\ufffd'] and counts == common | more
  with pytest.raises(UserError, match="d, entry 3: 'text' is no text but int: set data.text_field"):
    documents(tmp_path / 'd', 'jsonl')
  with pytest.raises(UserError, match=r"d, entry 1: the row has no field 'e' \(it has text\)"):
    documents(tmp_path / 'd', 'jsonl', text_field='e')


def test_texts_of_tables_are_those_of_lines(tmp_path):
  (tmp_path / 'c').write_bytes(BOM + b'id,text\n\0,a\0b\n\n , \n1,"c\r\nd\xef\xbf\xbd"\n2,\n,\n')
  found, counts = documents(tmp_path / 'c', 'csv')
  assert found == ['ab', 'c\nd\ufffd'] and counts == {
    'files': 1, 'lines': 6, 'documents': 2, 'blank_lines': 3, 'blank_documents': 1,
    'nul_characters': 1, 'carriage_returns': 1, 'byte_order_marks': 1, 'replacement_characters': 1}
  (tmp_path / 'c').write_bytes(b'text\n"a, b;\tc"\nd\n')  # one column has no separator
  assert documents(tmp_path / 'c', 'csv')[0] == ['a, b;\tc', 'd']
  # Parquet checks no text: one that is not UTF-8, written by another program.
  pyarrow = arrow()
  content = pyarrow.array([b'a', b'\xff', 'é'.encode()], pyarrow.binary())
  wrong = pyarrow.StringArray.from_buffers(3, *content.buffers()[1:])
  for column in (content, wrong):
    pyarrow.parquet.write_table(pyarrow.table({'text': column}), tmp_path / 'p')
    found, counts = documents(tmp_path / 'p', 'parquet', broken='skip')
    assert found == ['a', 'é'] and counts['broken_lines'] == 1
    with pytest.raises(UserError, match=r'p, row 2: not UTF-8 \(byte 1 of the text is 0xff\)'):
      documents(tmp_path / 'p', 'parquet')


@pytest.mark.parametrize(('content', 'words'), [
  ('{"text": "a"}\n{"text": "b", "n": 1}\n', r'JSON lines \(fields text\).*layout=jsonl'),
  ('[\n  {"id": 3, "text": "a"},\n', r'a JSON array \(fields id, text\).*data.text_field=text'),
  ('id,text\n1,"a, b"\n2,c\n', r'a table with a header \(fields id, text\).*layout=csv'),
  ('sentence\tlabel\na b\t0\nc\t1\n', 'layout=csv .data.source=csv. and data.text_field=sentence'),
])
def test_what_is_structured_is_no_lines_of_text(tmp_path, content, words):
  (tmp_path / 'c').write_text(content)
  for layout in ('lines', 'newscrawl_sentences'):
    with pytest.raises(UserError, match=words):
      documents(tmp_path / 'c', layout)


@pytest.mark.parametrize('content', [
  '{ this is text }\nand this\n', '[1] A note.\n', 'Yes, no.\nWell, so.\n', 'Text, he said\n',
  'One word\n', '{"a": 1} and more\n', '{}text{}\n', 'a\tb\nc\td\n'])
def test_text_that_looks_a_little_like_a_structure_is_text(tmp_path, content):
  (tmp_path / 'c').write_text(content)
  assert documents(tmp_path / 'c', 'lines')[0] == content.splitlines()


def test_a_corpus_is_no_pipe(tmp_path, refused):
  for split in ('train', 'valid', 'test'):
    (tmp_path / split).write_text('Iran won .\n')
  reading, writing = os.pipe()
  os.write(writing, b'Iran won .\n')
  os.close(writing)
  refused(['step', 'data', '--config.data.vocabulary=word', f'--workdir={tmp_path}/run',
           f'--config=configs/text.py:train=/dev/fd/{reading},valid={tmp_path}/valid,'
           f'test={tmp_path}/test'], 'is no file, but a corpus is read several times')
  os.close(reading)


@pytest.mark.parametrize('packing', PACKERS)
@pytest.mark.parametrize('content', [
  'sentence\tlabel\nan "odd one\t1\nbad\t0\n', 'label,text\r\n1,"an ""odd one"\r\n0,bad\r\n',
  '1\tan "odd one\n0\tbad\n',
  '{"label": 1, "text": "an \\"odd one"}\n{"label": 0, "text": "bad"}\n',
  'text;label\n"an ""odd one";1\nbad;0\n'])
def test_labelled_sentences_with_glues_header_and_others(tmp_path, packing, content):
  (tmp_path / 'x').write_bytes(PACKERS[packing](BOM + content.encode()))
  found = read_examples(tmp_path / 'x', classes=2)
  assert found.texts == ['an "odd one', 'bad'] and found.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
  'pack', [bytes, zstd.compress, lzma.compress, lambda c: zipped({'a.txt': c})])
def test_every_small_file_may_have_a_mark_and_be_packed(tmp_path, pack):
  def file(text):
    path = tmp_path / str(len(list(tmp_path.iterdir())))
    path.write_bytes(pack(BOM + text.replace('\n', '\r\n').encode()))
    return path

  assert read_words(file('cook\nnurse\n'), 'words') == ['cook', 'nurse']
  assert read_words(file('["cook", "nurse"]'), 'words') == ['cook', 'nurse']
  assert read_names(file('Mary,F,9\nJohn,M,8\n')).male == ('John',)
  assert read_word_pairs(file('king queen\n')).male == ('king',)
  assert read_lexicon(file('; a list\ngood\nfine\n')) == ['good', 'fine']
  table = 'occupation\tbls_pct_female\ncook\t40\nnurse\t90\npilot\t5\n'
  for text in (table, table.replace('\t', ','), 'sep=;\n' + table.replace('\t', ';')):
    assert read_professions(file(text)).names == ('cook', 'nurse', 'pilot')
  bios = [{'profession': p, 'gender': g, 'text': f'{g} {p} "x', 'split': s}
          for p in 'ab' for g in 'FM' for s in ('train', 'test')]
  expected = read_bios(file(as_lines(bios).decode())).digest
  tsv = 'profession\tgender\ttext\tsplit\n' + ''.join('\t'.join(b.values()) + '\n' for b in bios)
  assert read_bios(file(json.dumps(bios))).digest == read_bios(file(tsv)).digest == expected
  own = file('name: size\nvalues: [big, small]\ntemplates:\n  - A {value} thing\n')
  own = own.rename(own.with_suffix('.yaml'))
  assert load_attribute(own).value_texts == ('big', 'small')


def test_a_table_names_what_is_wrong(tmp_path):
  def rows_of(content, **options):
    (tmp_path / 't').write_bytes(content)
    with open_input(tmp_path / 't') as file:
      table = Table(file, 't', ('a', 'b'), **options)
      return list(table), table

  found, table = rows_of(b'"a";b;\r\n"x\r\ny";"1 ""2""";i\r\n;;\r\nz;3;j\r\n')
  assert found == [({'a': 'x\r\ny', 'b': '1 "2"'}, 't:2'), ({'a': 'z', 'b': '3'}, 't:5')]
  assert table.header == ['a', 'b', '']
  assert rows_of(b'a,b\rx,1\ry,2\r')[0][1][0] == {'a': 'y', 'b': '2'}
  assert rows_of(b'a\tb\n"x\ty"\n', unquoted_tabs=True)[0] == [({'a': '"x', 'b': 'y"'}, 't:2')]
  assert rows_of(b'a,b\nx\n', fill=True)[0] == [({'a': 'x', 'b': ''}, 't:2')]
  for content, words in ((b'a,c\n', "t:1: no column 'b'"),
                         (b'a,b\n1,2\n3,\xff\n', 't:3: not UTF-8'),
                         (b'a,b\n1,"x"y\n', 't:2: not CSV'), (b'sep=|\na|b\n', 'no column')):
    with pytest.raises(UserError, match=words):
      rows_of(content)
  with open_input(tmp_path / 't') as file, pytest.raises(UserError, match='or each line is a JSON'):
    list(read_rows(file, 't', ('a',)))


def test_lines_of_json_have_the_values_that_python_reads():
  rng = random.Random(0)
  lines = [f'{rng.choice(["", "-"])}{rng.random() * 10 ** rng.randint(-310, 308)!r}'
           for _ in range(2000)]
  lines += [
    '1e400', '-0', '-0.0', '5e-324', str(2 ** 63), str(2 ** 64), str(-2 ** 70), '1E2', 'NaN',
    '-Infinity', '123456789012345678901234567890.5', '{"a": 1, "a": 2}', '{"": {}}',
    ' [1, null, true] ', '"\\u00e9\\ud83d\\ude00"', '"\\ud800"', '"a\\u0000b\\/"', '"\u2028"']
  for line in lines:
    expected, found = json.loads(line), parse_json(line.encode('utf-8'), 'line')
    assert repr(found) == repr(expected), line
  for line in ('', '{', '01', '1.', "{'a': 1}", '[1,]', '"a\nb"', '1 2', '\ufeff1', '\x0c1', 'nul'):
    with pytest.raises(ValueError):
      json.loads(line)
    with pytest.raises(UserError, match='^line'):
      parse_json(line.encode('utf-8'), 'line')
