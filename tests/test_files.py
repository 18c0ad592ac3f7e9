"""Append-only files: whole entries or none, one writer, nothing of another file changed; seals."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading

import pytest

from fairjax.errors import UserError
from fairjax.files import (
  FolderLock,
  JsonLines,
  atomic_folder,
  atomic_write,
  check_place,
  read_entries,
  read_json_lines,
  read_sealed_json,
  write_sealed_json,
)

HEADER = {'of': 'test'}
ENTRIES = [{'a': 0.1 + 0.2}, {'b': ['\u2028 line', None]}, {'n': 1e-300, 'm': 3}]


def open_lines(path, header=HEADER):
  return JsonLines(path, header, again='again')


@pytest.fixture
def path(tmp_path):
  path = tmp_path / 'deep' / 'x.jsonl'
  with open_lines(path) as lines:
    for entry in ENTRIES:
      lines.append(entry)
  return path


def test_entries_come_back_exactly(path):
  assert read_entries(path, again='') == (HEADER, ENTRIES)
  assert [list(json.loads(line))[0] for line in path.read_text().splitlines()] == ['crc32'] * 4
  assert read_entries(path.with_name('none'), again='') == (None, [])


def test_cut_at_any_byte_keeps_the_whole_entries_and_goes_on(path):
  content = path.read_bytes()
  for size in range(0, len(content), 3):
    path.write_bytes(content[:size])
    whole = content[:size].count(b'\n')
    header, entries = read_entries(path, again='')
    assert entries == ENTRIES[:max(whole - 1, 0)] and (header is None) == (whole == 0)
    with open_lines(path) as lines:
      assert lines.torn_bytes == size - content[:size].rfind(b'\n') - 1
      assert lines.entries == entries
      for entry in ENTRIES[max(whole - 1, 0):]:
        lines.append(entry)
    assert path.read_bytes() == content


def test_every_flip_is_found(path):
  content = path.read_bytes()
  for place in range(0, len(content), 2):
    damaged = bytearray(content)
    damaged[place] ^= 1 << place % 8
    path.write_bytes(damaged)
    found = read_json_lines(path)
    equal = found.entries == [HEADER, *ENTRIES]  # e.g. another white space
    assert equal or found.damaged or found.torn_bytes


def test_a_file_of_something_else_is_not_touched(path, tmp_path):
  before = path.read_bytes()
  with pytest.raises(UserError, match='belongs to'):
    open_lines(path, {'of': 'other'})
  assert path.read_bytes() == before
  for content in (b'Dear reader,\nwithout an end', b'without an end', b'{"crc32": 7, "of": "tess'):
    foreign = tmp_path / 'letter.txt'
    foreign.write_bytes(content)
    with pytest.raises(UserError, match=r'letter\.txt:1: not a file of'):
      open_lines(foreign)
    assert foreign.read_bytes() == content


def test_one_writer_at_a_time(path):
  with open_lines(path):
    with pytest.raises(UserError, match='another process'):
      open_lines(path)
  open_lines(path).close()


def test_threads_share_a_file(path):
  with open_lines(path) as lines:
    threads = [threading.Thread(target=lambda n=n: [lines.append({'t': n}) for _ in range(20)])
               for n in range(8)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
  found = [e['t'] for e in read_entries(path, again='')[1][len(ENTRIES):]]
  assert sorted(found) == sorted(list(range(8)) * 20)


def test_a_full_disk_leaves_the_file_as_it_was(path, monkeypatch):
  before = path.read_bytes()

  def full(file):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  with open_lines(path) as lines:
    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(UserError, match='No space left'):
      lines.append({'lost': 1})
    assert path.read_bytes() == before
    monkeypatch.undo()
    lines.append({'kept': 1})
  assert read_entries(path, again='')[1] == [*ENTRIES, {'kept': 1}]


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


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
  path = tmp_path / 'made'
  with pytest.raises(RuntimeError), atomic_folder(path) as folder:
    (folder / 'x').write_text('half')
    raise RuntimeError
  assert not list(tmp_path.iterdir())
  for text in ('first', 'second'):
    with atomic_folder(path, replace=True) as folder:
      (folder / 'x').write_text(text)
    assert (path / 'x').read_text() == text and [p.name for p in tmp_path.iterdir()] == ['made']
  with pytest.raises(UserError, match='exists'), atomic_folder(path):
    pass


HOLD = '''
import sys, time
from fairjax.files import FolderLock
with FolderLock(sys.argv[1], print):
  print('held', flush=True)
  time.sleep(600)
'''


def test_files_and_folders_have_the_rights_that_the_umask_leaves(tmp_path):
  for mask in (0o022, 0o077):
    before = os.umask(mask)
    try:
      with atomic_folder(tmp_path / f'{mask}') as folder, atomic_write(folder / 'x'):
        pass
    finally:
      os.umask(before)
    assert folder.with_name(f'{mask}').stat().st_mode & 0o777 == 0o777 & ~mask
    assert (tmp_path / f'{mask}' / 'x').stat().st_mode & 0o777 == 0o666 & ~mask


def test_links_stay_and_pipes_get_the_bytes(tmp_path):
  target, link, pipe = (tmp_path / name for name in ('target', 'link', 'pipe'))
  link.symlink_to('target')
  os.mkfifo(pipe)
  reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
  for path in (link, pipe):
    with atomic_write(path) as file:
      file.write(b'all')
  assert link.is_symlink() and target.read_bytes() == b'all'
  assert pipe.is_fifo() and os.read(reader, 9) == b'all'
  os.close(reader)
  assert len(list(tmp_path.iterdir())) == 3


def test_a_place_is_refused_before_the_work_where_nothing_can_be_written(tmp_path, monkeypatch):
  (tmp_path / 'folder').mkdir()
  (tmp_path / 'file').touch()
  (tmp_path / 'link').symlink_to(tmp_path / 'later' / 'file')
  places = (('folder', True), ('file', False), ('link', False), ('a/b', True), ('a/b', False))
  for name, folder in places:
    assert check_place(tmp_path / name, folder=folder) == tmp_path / name
  for name, folder in (('folder', False), ('file', True), ('file/a', False), ('file/a', True)):
    with pytest.raises(UserError, match='is a folder|is no folder'):
      check_place(tmp_path / name, folder=folder)

  def refuse(dir):
    raise PermissionError(errno.EACCES, f'Permission denied in {dir.name}')

  monkeypatch.setattr('tempfile.TemporaryFile', refuse)
  for name, folder in places:
    above = 'folder' if name == 'folder' else tmp_path.name
    with pytest.raises(UserError, match=f'{name} cannot be written .*denied in {above}'):
      check_place(tmp_path / name, folder=folder)
  ends = os.pipe()
  for name in ('/dev/null', f'/dev/fd/{ends[1]}'):
    check_place(name)  # gets its bytes without a file beside it
  for end in ends:
    os.close(end)


def test_a_lock_keeps_others_out_and_dies_with_its_process(tmp_path, repository):
  lines = []
  lock = FolderLock(tmp_path / 'run', lines.append)
  process = subprocess.Popen([sys.executable, '-c', HOLD, str(tmp_path / 'run')], cwd=repository,
                             stdout=subprocess.PIPE, text=True)
  assert process.stdout.readline() == 'held\n'
  with pytest.raises(UserError, match=rf'in use by another run \(process {process.pid} on '):
    lock.__enter__()
  process.kill()
  process.wait()
  with lock, lock:  # nested
    pass
  with lock:
    second = FolderLock(tmp_path / 'run', lines.append)
    with pytest.raises(UserError, match='in use by another run'):
      second.__enter__()
  with second:
    pass
  assert not lines


def test_a_file_system_without_locks_is_reported(tmp_path, monkeypatch):
  lines = []

  def refuse(*_):
    raise OSError(37, 'No locks available')

  monkeypatch.setattr(fcntl, 'flock', refuse)
  with FolderLock(tmp_path, lines.append):
    pass
  assert len(lines) == 1 and 'nothing keeps a second run out' in lines[0]
