"""What input files are: unpacked, freed of marks, refused as what they are; made by the tests."""

import bz2
import collections
import gzip
import io
import lzma
import os
import subprocess
import sys
import threading
import zipfile

import pytest
from backports import zstd

from fairjax.errors import UserError
from fairjax.inputs import open_input, read_text, read_text_lines, refuse_pointer

TEXT = ''.join(f'{i} {i * i} caf\u00e9\n' for i in range(20_000))
BOM = b'\xef\xbb\xbf'
POINTER = (b'version https://git-lfs.github.com/spec/v1\noid sha256:' + b'0' * 64
           + b'\nsize 548105171\n')


def zipped(members: dict[str, bytes | str]) -> bytes:
  file = io.BytesIO()
  with zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED) as archive:
    for name, content in members.items():
      archive.writestr(name, content)
  return file.getvalue()


PACKERS = {
  'plain': bytes, 'gzip': gzip.compress, 'bzip2': bz2.compress, 'xz': lzma.compress,
  'Zstandard': zstd.compress,
  'zip': lambda content: zipped({'folder/x.txt': content})}


@pytest.fixture(params=PACKERS)
def packed(request):
  return request.param, PACKERS[request.param]


@pytest.mark.parametrize('mark', [b'', BOM])
@pytest.mark.parametrize('name', ['x.txt', 'x.gz', 'x'])
def test_a_file_is_what_its_first_bytes_say(tmp_path, packed, mark, name):
  (tmp_path / name).write_bytes(packed[1](mark + TEXT.encode()))
  counts = collections.Counter()
  with open_input(tmp_path / name, counts=counts) as file:
    assert list(file) == TEXT.encode().splitlines(keepends=True)
  assert counts['byte_order_marks'] == bool(mark)
  assert read_text(tmp_path / name) == TEXT


def test_what_is_packed_twice_is_unpacked_twice(tmp_path):
  for outer in PACKERS.values():
    for inner in PACKERS.values():
      (tmp_path / 'x').write_bytes(outer(inner(TEXT.encode())))
      assert read_text(tmp_path / 'x') == TEXT


@pytest.mark.parametrize('kind', ['gzip', 'bzip2', 'xz', 'Zstandard', 'zip'])
def test_what_is_cut_off_or_damaged_names_the_line(tmp_path, kind):
  content, path = PACKERS[kind](TEXT.encode()), tmp_path / 'x'
  path.write_bytes(content[:len(content) * 2 // 3])
  cut = 'the zip archive is cut off' if kind == 'zip' else rf'x:\d+: the {kind} file ends here w'
  with pytest.raises(UserError, match=cut):
    read_text(path)
  half = len(content) // 2
  path.write_bytes(content[:half] + bytes([content[half] ^ 255]) + content[half + 1:])
  with pytest.raises(UserError, match=rf'x:\d+: the {kind} file is damaged at or before byte'):
    read_text(path)
  lines = []
  with pytest.raises(UserError, match='damaged') as e, open_input(path) as file:
    lines.extend(file)  # every line before the damage is given
  assert f'x:{len(lines) + 1}:' in str(e.value)


@pytest.mark.parametrize(('content', 'words'), [
  (POINTER, r'is a Git LFS pointer, not the file itself \(548,105,171 bytes\): run git lfs pull'),
  (b'/annex/objects/SHA256E-s5--abc', 'git annex get'),
  ('x'.encode('utf-16'), 'is UTF-16, not UTF-8: save it as UTF-8'),
  ('{"a": 1}'.encode('utf-16-le'), 'is UTF-16 by its look'),
  (b'\x80\x04\x95\x10', 'is a pickle, which can run any code'),
  (b'ARROW1\0\0', 'is an Arrow file'), (b'\xff' * 4 + b'\x10\0', 'an Arrow stream.*to_parquet'),
  (b'PAR1\x15', 'is a Parquet file'), (b'\x93NUMPY\x01', 'is a NumPy array'),
  (b'\x08\0\0\0\0\0\0\0{"a": 1}', 'is model weights'),
  (gzip.compress(b'x.txt'.ljust(257, b'\0') + b'ustar', mtime=0), 'is a tar archive'),
  (zipped({'xl/workbook.xml': b'x'}), 'is an Excel workbook: save it as CSV'),
  (zipped({'m/data.pkl': b'x'}), 'is a PyTorch file, in which there is a pickle'),
  (zipped({'a.txt': b'x', 'b.txt': b'y'}),
   r'is a zip archive of 2 files \(a.txt, b.txt\): unpack it'),
  (zipped({}), 'is a zip archive without a file'),
], ids=lambda value: value if isinstance(value, str) else '')
def test_what_is_no_text_is_refused_as_what_it_is(tmp_path, content, words):
  (tmp_path / 'x.txt').write_bytes(content)
  with pytest.raises(UserError, match=words) as e:
    read_text(tmp_path / 'x.txt')
  assert str(e.value).startswith(f'{tmp_path}/x.txt is ')


def test_files_of_macos_in_an_archive_are_no_second_file(tmp_path):
  (tmp_path / 'x').write_bytes(zipped({
    'v/': '', 'v/x.txt': 'hello', '__MACOSX/v/._x.txt': 'hello', 'v/.DS_Store': ''}))
  assert read_text(tmp_path / 'x') == 'hello'


def test_a_pointer_is_recognised_without_reading_the_file(tmp_path):
  (tmp_path / 'model.safetensors').write_bytes(POINTER)
  with pytest.raises(UserError, match='model.safetensors is a Git LFS pointer.*git lfs pull'):
    refuse_pointer(tmp_path / 'model.safetensors')
  (tmp_path / 'model.safetensors').write_bytes(b'\x08\0\0\0\0\0\0\0{}')
  refuse_pointer(tmp_path / 'model.safetensors')


def test_lines_have_no_ends_and_their_faults_have_a_place(tmp_path):
  path = tmp_path / 'x'
  path.write_bytes(BOM + b'a\r\nb\n\nc')
  assert read_text_lines(path) == ['a', 'b', '', 'c']
  path.write_bytes(b'a\nb\xff\n')
  with pytest.raises(UserError, match=r'x:2: not UTF-8 \(byte 2 of the line is 0xff\)'):
    read_text(path)
  path.write_bytes(b'a\nb\n\0c\n')
  with pytest.raises(UserError, match='x:3: the line holds a NUL character'):
    read_text(path)
  with pytest.raises(UserError, match='word list not found: '):
    read_text(tmp_path / 'none', what='word list')
  with pytest.raises(UserError, match='is a folder'):
    read_text(tmp_path)


@pytest.mark.parametrize('name', ['-', '/dev/stdin'])
def test_a_pipe_is_read_as_a_file_is_and_more_than_once(tmp_path, packed, name):
  code = ('import sys; from fairjax.inputs import *; a, b = (read_text(sys.argv[1]) for _ in "12");'
          'assert a == b and is_pipe(sys.argv[1]); sys.stdout.write(a)')
  found = subprocess.run([sys.executable, '-c', code, name], input=packed[1](TEXT.encode()),
                         capture_output=True, check=True, timeout=60)
  assert found.stdout.decode() == TEXT


def test_another_pipe_is_not_the_one_before(tmp_path):
  for text in ('first', 'second'):  # whose number in the file system may be that of the first
    os.mkfifo(tmp_path / text)
    writer = threading.Thread(target=(tmp_path / text).write_text, args=(text,), daemon=True)
    writer.start()
    assert read_text(tmp_path / text) == text
    writer.join()
    (tmp_path / text).unlink()
