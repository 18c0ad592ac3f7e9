"""Bias-in-Bios: its forms, the gaps, and a slope that is known in closed form."""

import gzip
import json

import numpy as np
import pytest

from fairjax.errors import UserError
from fairjax.gender.bios import (
  SPLIT_SHARES,
  female_shares,
  gap_line,
  gaps,
  measure_bios,
  read_bios,
)
from fairjax.pretrained.fit import Recipe


def entry(profession='nurse', gender='F', text='She helps.', **more):
  return {'profession': profession, 'gender': gender, 'text': text, **more}


def written(tmp_path, rows, name='bios.jsonl'):
  content = ''.join(json.dumps(r) + '\n' for r in rows).encode()
  path = tmp_path / name
  path.write_bytes(gzip.compress(content) if name.endswith('.gz') else content)
  return path


GIVEN = [entry(split='train'), entry('clerk', 'male', 'He files.', split='train'),
         entry('clerk', 0, 'He writes.', split='validation'), entry(gender=1, split='test')]


def test_a_file_with_splits(tmp_path):
  found = read_bios(written(tmp_path, GIVEN, 'bios.jsonl.gz'))
  assert found.names == ('clerk', 'nurse') and found.given
  assert found.splits['train'].texts == ['She helps.', 'He files.']
  assert found.splits['train'].professions.tolist() == [1, 0]
  assert found.splits['train'].female.tolist() == [True, False]
  assert found.splits['dev'].female.tolist() == [False] and len(found.splits['test'].texts) == 1


def test_the_same_in_a_folder_and_in_columns(tmp_path):
  one = read_bios(written(tmp_path, GIVEN))
  folder = tmp_path / 'folder'
  folder.mkdir()
  for split, rows in (('train', GIVEN[:2]), ('valid', GIVEN[2:3]), ('test', GIVEN[3:])):
    lines = [f"{r['gender']}\t{r['profession']}\t{r['text']}\n" for r in rows]
    (folder / f'{split}.tsv').write_text('gender\tprofession\ttext\n' + ''.join(lines))
  other = read_bios(folder)
  assert {s: b.texts for s, b in one.splits.items()} == {s: b.texts for s, b in
                                                         other.splits.items()}
  assert other.names == one.names and other.given


def test_a_data_set_of_the_hub(tmp_path):
  arrow, parquet = pytest.importorskip('pyarrow'), pytest.importorskip('pyarrow.parquet')
  for name, rows in (('train-00000-of-00002', [0, 1]), ('train-00001-of-00002', [2]),
                     ('test-00000-of-00001', [3])):
    columns = {'hard_text': [f'text {i}' for i in rows], 'profession': [i % 2 for i in rows],
               'gender': [i // 2 for i in rows]}
    parquet.write_table(arrow.table(columns), tmp_path / f'{name}.parquet')
  found = read_bios(tmp_path)
  assert found.splits['train'].texts == ['text 0', 'text 1', 'text 2'] and found.names == ('0', '1')
  assert found.splits['test'].female.tolist() == [True] and found.given


def test_the_text_with_names_and_pronouns_goes_before_the_one_without(tmp_path):
  """The authors' list holds both; the paper reads the default, non-scrubbed text (W-09)."""
  both = {'title': 'nurse', 'gender': 'F', 'raw': 'Ann Lee is a nurse. She helps.', 'start_pos': 19,
          'bio': '_ helps.'}
  more = [entry('clerk', 'M', 'He.', split='train'), entry('clerk', 'M', 'He.', split='test')]

  def text(**changes):
    rows = [both | changes | {'split': s} for s in ('train', 'test')]
    return read_bios(written(tmp_path, rows + more)).splits['train'].texts[0]

  assert text() == 'She helps.' and text(start_pos='19', text='') == 'She helps.'
  assert text(raw=None) == '_ helps.' and text(hard_text='She files.') == 'She files.'


def test_splits_are_drawn_within_cells(tmp_path):
  rows = [entry(p, g, f'{p} {g} {i}') for p in ('a', 'b') for g in 'FM' for i in range(40)]
  found, again = (read_bios(written(tmp_path, rows), seed=s) for s in (0, 0))
  assert not found.given
  assert found.splits['test'].texts == again.splits['test'].texts
  assert found.digest != read_bios(written(tmp_path, rows), seed=1).digest
  everything = sum((b.texts for b in found.splits.values()), [])
  assert sorted(everything) == sorted(r['text'] for r in rows)
  for split, share in SPLIT_SHARES.items():
    bios = found.splits[split]
    for cell in np.bincount(2 * bios.professions + bios.female, minlength=4):
      assert abs(cell - 40 * share) <= 1


@pytest.mark.parametrize(('rows', 'message'), [
  ([entry(gender='X')], r":1: gender 'X' is not one of F, M"),
  ([entry(text=' ')], "no 'text' or 'hard_text'"),
  ([entry(text=None)], "no 'text' or 'hard_text'"),
  ([entry(text=float('nan'))], 'are no texts'), ([entry(profession=['nurse'])], 'are no texts'),
  ([entry(profession='')], "no 'profession' or 'title'"),
  ([entry(split='eval')], "split 'eval' is not one of train"),
  ([entry(split='train'), entry('clerk')], "some biographies name a 'split' and some do not"),
  ([entry()], '1 profession: a classifier needs two'),
  ([entry(), entry('Nurse'), entry('clerk')], "the professions 'Nurse' and 'nurse': write one"),
  ([entry(split='train'), entry('clerk', split='train')], 'no biography in the test split'),
  ([entry(split='train'), entry('clerk', split='test')], "holds 'clerk', which the training"),
  ([], 'holds no biography'), ([entry(), []], r':2 is no JSON object'),
  ([{'title': 'a', 'gender': 'F', 'raw': 'ab', 'start_pos': 9}], 'start_pos 9 is outside')])
def test_bad_biographies_are_one_line(tmp_path, rows, message):
  with pytest.raises(UserError, match=message):
    read_bios(written(tmp_path, rows))


def test_what_cannot_be_measured_is_said_before_training(tmp_path):
  rows = [entry(p, 'M', f'{p} {i}', split=s) for p in 'ab' for s in ('train', 'test')
          for i in range(40)]
  with pytest.raises(UserError, match='0 professions have 10 biographies of each gender'):
    measure_bios('nothere', written(tmp_path, rows), recipe=Recipe(1, 8, 1e-3), log=print)


def test_files_that_are_no_biographies_are_refused(tmp_path):
  with pytest.raises(UserError, match='holds no train and test file'):
    read_bios(tmp_path)
  for name in ('train.jsonl', 'train.jsonl.gz'):
    written(tmp_path, GIVEN[:2], name)
  with pytest.raises(UserError, match='holds train.jsonl and train.jsonl.gz'):
    read_bios(tmp_path)
  for name, content in (('bios.pkl', b'x'), ('bios.jsonl', b'\x80\x04]')):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match='is a pickle.*convert it'):
      read_bios(tmp_path / name)


def known(slope, intercept, shares, n=200):
  """Labels, predictions and genders whose gaps are intercept + slope * share exactly."""
  labels, predictions, female = [], [], []
  for profession, share in enumerate(shares):
    gap = intercept + slope * share
    for gender, rate in ((True, 0.5 + gap / 2), (False, 0.5 - gap / 2)):
      hits = round(rate * n)
      assert hits == pytest.approx(rate * n)
      labels += [profession] * n
      predictions += [profession] * hits + [(profession + 1) % len(shares)] * (n - hits)
      female += [gender] * n
  return np.array(labels), np.array(predictions), np.array(female)


@pytest.mark.parametrize('slope', [0.4, 0.0, -0.2])
def test_a_known_slope_is_found(slope):
  shares = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
  cells = gaps(*known(slope, -0.5 * slope, shares), 5)
  found = gap_line(cells, shares)
  assert found['slope']['value'] == pytest.approx(slope)
  assert found['r']['value'] == (None if slope == 0 else pytest.approx(np.sign(slope)))
  assert found['mean_absolute_gap'] == pytest.approx(abs(slope) * np.abs(shares - 0.5).mean())
  assert found['left_out'] == []


def test_rare_cells_have_no_say_and_are_named():
  shares = np.array([0.1, 0.5, 0.9, 0.3])
  labels, predictions, female = known(0.4, -0.2, shares[:3])
  # A fourth profession, whose wild gap comes from 9 women.
  labels = np.concatenate([labels, np.full(209, 3)])
  predictions = np.concatenate([predictions, np.full(9, 3), np.full(200, 0)])
  female = np.concatenate([female, np.arange(209) < 9])
  cells = gaps(labels, predictions, female, 5)
  found = gap_line(cells, np.append(shares, np.nan))
  assert found['slope']['value'] == pytest.approx(0.4) and found['slope']['n'] == 3
  assert found['left_out'] == [3, 4]
  assert cells[4] == {'n_female': 0, 'n_male': 0, 'tpr_female': None, 'tpr_male': None,
                      'gap': None, 'std_error': None}


def test_shares_are_counted():
  found = female_shares(np.array([0, 0, 0, 2]), np.array([True, False, True, False]), 3)
  assert found[0] == pytest.approx(2 / 3) and np.isnan(found[1]) and found[2] == 0
