"""Append-only files: whole entries or none, one writer, nothing of somebody else's changed."""

import errno
import json
import os

import pytest

from fairjax.errors import UserError
from fairjax.files import JournalWriter, read_journal, read_sealed_json, write_sealed_json

ENTRIES = [{'a': 0.1 + 0.2}, ['\u2028 line', None], 3, {'n': 1e-300}]


@pytest.fixture
def path(tmp_path):
  path = tmp_path / 'deep' / 'x.jsonl'
  with JournalWriter(path, {'of': 'test'}, again='again') as journal:
    for entry in ENTRIES:
      journal.append(entry)
  return path


def test_entries_come_back_exactly(path):
  assert read_journal(path, again='') == ({'of': 'test'}, ENTRIES, 0)
  assert [json.loads(line)['entry'] for line in path.read_text().splitlines()][1:] == ENTRIES
  assert read_journal(path.with_name('none'), again='') == (None, [], 0)


def test_cut_at_any_byte_keeps_the_whole_entries_and_goes_on(path):
  content = path.read_bytes()
  for size in range(0, len(content), 3):
    path.write_bytes(content[:size])
    whole = content[:size].count(b'\n')
    header, entries, rest = read_journal(path, again='')
    assert entries == ENTRIES[:max(whole - 1, 0)] and (header is None) == (whole == 0)
    with JournalWriter(path, {'of': 'test'}, again='') as journal:
      assert journal.repaired_bytes == rest == size - content[:size].rfind(b'\n') - 1
      for entry in ENTRIES[max(whole - 1, 0):]:
        journal.append(entry)
    assert path.read_bytes() == content


def test_a_file_of_something_else_is_not_touched(path, tmp_path):
  before = path.read_bytes()
  with pytest.raises(UserError, match='belongs to something else: again'):
    JournalWriter(path, {'of': 'other'}, again='again')
  assert path.read_bytes() == before
  foreign = tmp_path / 'letter.txt'
  foreign.write_bytes(b'Dear reader,\nwithout an end')
  with pytest.raises(UserError, match=r'letter\.txt:1: not a file of results'):
    JournalWriter(foreign, {}, again='')
  assert foreign.read_bytes() == b'Dear reader,\nwithout an end'


def test_one_writer_at_a_time(path):
  with JournalWriter(path, {'of': 'test'}, again=''):
    with pytest.raises(UserError, match='another process is writing'):
      JournalWriter(path, {'of': 'test'}, again='')
  JournalWriter(path, {'of': 'test'}, again='').close()


def test_a_full_disk_leaves_the_file_as_it_was(path, monkeypatch):
  before = path.read_bytes()

  def full(file):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  with JournalWriter(path, {'of': 'test'}, again='') as journal:
    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(UserError, match='cannot be written .No space left on device.'):
      journal.append({'lost': 1})
    assert path.read_bytes() == before
    monkeypatch.undo()
    journal.append({'kept': 1})
  assert read_journal(path, again='')[1] == [*ENTRIES, {'kept': 1}]


def test_nan_is_refused(path):
  with JournalWriter(path, {'of': 'test'}, again='') as journal, pytest.raises(ValueError):
    journal.append(float('nan'))
  assert read_journal(path, again='')[1] == ENTRIES


def test_sealed_json_finds_every_flip(tmp_path):
  path = tmp_path / 'x.json'
  value = {'b': [1.5, None, {'c': (1, 2)}], 'a': 'text'}
  write_sealed_json(path, value)
  assert read_sealed_json(path, again='') == {'b': [1.5, None, {'c': [1, 2]}], 'a': 'text'}
  content = path.read_bytes()
  for place in range(len(content) - 1):
    damaged = bytearray(content)
    damaged[place] ^= 1 << place % 8
    path.write_bytes(damaged)
    try:  # white space for white space is harmless
      assert read_sealed_json(path, again='') == {'b': [1.5, None, {'c': [1, 2]}], 'a': 'text'}
      assert chr(content[place]).isspace()
    except UserError as e:
      assert 'x.json is damaged' in str(e)
  for other in (b'', b'{}', b'[]', b'3', content[:-3]):
    path.write_bytes(other)
    with pytest.raises(UserError, match='is damaged'):
      read_sealed_json(path, again='')
