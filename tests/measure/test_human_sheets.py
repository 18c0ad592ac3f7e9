"""Annotation sheets: nothing in them runs, everything comes back."""

import csv
import io
import random

import pytest
from human_oracle import read_csv

from fairjax.errors import UserError
from fairjax.measure.human.sheets import (
  LONGEST_CELL,
  neutralise,
  read_sheet,
  restore,
  same_text,
  write_sheet,
)

COLUMNS = ('sheet', 'item', 'text', 'label')
ALPHABET = "=+-@'\"\t\r\n,; ab\u00e9\U0001f600"


def random_texts(seed: int, count: int = 300) -> list[str]:
  rng = random.Random(seed)
  return [''.join(rng.choices(ALPHABET, k=rng.randrange(0, 12))) for _ in range(count)]


@pytest.mark.parametrize('seed', range(5))
def test_any_text_is_neutral_and_can_be_restored(seed):
  for text in random_texts(seed):
    cell = neutralise(text)
    assert not cell.startswith(tuple('=+-@\t\r\n'))
    assert restore(cell) == text
    assert same_text(cell, text) and same_text(text, text)
    assert not same_text(cell + 'x', text) and not same_text('x' + cell, text)


@pytest.mark.parametrize('separator', ['comma', 'semicolon', 'tab'])
@pytest.mark.parametrize('bom', [False, True])
def test_any_text_comes_back_from_a_file(tmp_path, separator, bom):
  texts = random_texts(7)
  rows = [('x', f's{i}', text, '') for i, text in enumerate(texts)]
  data = write_sheet(COLUMNS, rows, separator=separator, bom=bom)
  assert data.startswith(b'\xef\xbb\xbf"sheet"' if bom else b'"sheet"')
  path = tmp_path / 'sheet.csv'
  path.write_bytes(data)
  found, others, empty = read_sheet(path, COLUMNS)
  assert [restore(row.cells['text']) for row in found] == texts
  assert (others, empty) == ([], 0)


@pytest.mark.parametrize('text', ['=1+1', '+1', '-1', '@SUM(A1)', '\t=1', '\r=1', '\n=1'])
def test_formulas_never_stand_at_the_start_of_a_cell(text):
  data = write_sheet(COLUMNS, [('x', 's1', text, '')])
  assert read_csv(data)[0]['text'] == "'" + text
  assert b'","\'' in data  # quoted, apostrophe inside


def test_line_breaks_stay_inside_their_quotes_and_programs_may_change_them():
  data = write_sheet(COLUMNS, [('x', 's1', 'one\r\ntwo\rthree\nfour', '')])
  assert read_csv(data)[0]['text'] == 'one\r\ntwo\rthree\nfour'
  assert same_text('one\ntwo\nthree\nfour', 'one\r\ntwo\rthree\nfour')


def test_places_name_the_line_where_a_row_begins(tmp_path):
  path = tmp_path / 's.csv'
  path.write_bytes(b'sheet,item,text,label\r\nx,1,"a\nb\nc",\r\n\r\n , ,,\r\nx,2,d,neutral\r\n')
  rows, _, empty = read_sheet(path, COLUMNS)
  assert [row.where for row in rows] == [f'{path}:2', f'{path}:7'] and empty == 2


def test_columns_may_be_moved_and_added(tmp_path):
  path = tmp_path / 's.csv'
  path.write_text('label;comment; item ;text;sheet\nneutral;so;s1;a,b;x\n')
  rows, others, _ = read_sheet(path, COLUMNS)
  assert rows[0].cells['item'] == 's1' and rows[0].cells['text'] == 'a,b'
  assert others == ['comment']


@pytest.mark.parametrize(('content', 'words'), [
  (b'', 'header must name the columns sheet, item, text, label'),
  (b'item,text,label\n1,a,neutral\n', 'header must name'),
  (b'sheet|item|text|label\n', 'header must name'),
  (b'sheet,item,text,label,label\n', 'two columns label'),
  (b'a;sheet;item;text;label;b,sheet,item,text,label\n', 'separated by one of comma'),
  (b'sheet,item,text,label\nx,1,a\n', ':2: 3 cells where the header has 4'),
  (b'sheet,item,text,label\nx,1,a,b,neutral\n', ':2: 5 cells where the header has 4'),
  (b'sheet,item,text,label\nx,1,a,\nx,2,"b,\n', ':3: not CSV'),
  (b'sheet,item,text,label\nx,1,a,\nx,2,caf\xe9,\n', ':3: not UTF-8'),
  ('sheet,item,text,label\n'.encode('utf-16'), 'is UTF-16, not UTF-8'),
])
def test_files_that_cannot_be_read_are_refused(tmp_path, content, words):
  path = tmp_path / 's.csv'
  path.write_bytes(content)
  with pytest.raises(UserError) as error:
    read_sheet(path, COLUMNS)
  assert words in str(error.value) and str(error.value).startswith(str(path))
  assert '\n' not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
  with pytest.raises(UserError, match=r'nothing\.csv: No such file'):
    read_sheet(tmp_path / 'nothing.csv', COLUMNS)


@pytest.mark.parametrize(('text', 'words'), [
  ('a' * (LONGEST_CELL + 1), 'does not fit into a cell'), ('a\0b', 'does not fit'),
  ('a\ud800', 'half of a character')])
def test_texts_that_no_sheet_can_hold_are_refused(text, words):
  with pytest.raises(UserError, match=words):
    write_sheet(COLUMNS, [('x', 's1', text, '')])
  assert write_sheet(COLUMNS, [('x', 's1', 'a' * LONGEST_CELL, '')])


def test_every_cell_is_quoted():
  text = write_sheet(COLUMNS, [('x', 's1', 'plain', '')]).decode()
  assert text == '"sheet","item","text","label"\r\n"x","s1","plain",""\r\n'
  assert next(csv.reader(io.StringIO(text)))[3] == 'label'
