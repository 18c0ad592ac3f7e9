"""TFRecord files that are cut off or damaged: file, record and byte are named."""

import json
import shutil

import pytest

from fairjax.cli.main import main
from fairjax.config import Config, DataConfig
from fairjax.counterfactual import load_attribute
from fairjax.data.data_check import check_cache
from fairjax.data.prepare import prepare_data
from fairjax.data.tfrecords import check_tfrecords
from fairjax.errors import UserError

pytestmark = pytest.mark.tf

RECORDS = [b'first', b'', b'x' * 1000, b'last']
STARTS = [0, 21, 37, 1053, 1073]  # 16 bytes around each


@pytest.fixture
def file(tmp_path):
  import tensorflow as tf
  path = tmp_path / 'a.tfrecord'
  with tf.io.TFRecordWriter(str(path)) as writer:
    for record in RECORDS:
      writer.write(record)
  assert path.stat().st_size == STARTS[-1]
  return path


def test_a_whole_file_is_counted(file):
  assert check_tfrecords(file) == check_tfrecords(str(file), records=4) == 4


def test_a_cut_anywhere_names_the_byte(file):
  content = file.read_bytes()
  for size in range(len(content)):
    file.write_bytes(content[:size])
    whole = sum(start <= size for start in STARTS) - 1
    if size in STARTS:  # only the number of records tells
      assert check_tfrecords(file) == whole
      words = rf'a\.tfrecord ends at byte {size} with {whole} records instead of 4'
    else:
      words = (rf'a\.tfrecord: record {whole} (begins )?at byte {STARTS[whole]}\b.*'
               rf'ends at byte {size}: it is cut off')
    if size in STARTS or size % 50 < 3:
      with pytest.raises(UserError, match=words):
        check_tfrecords(file, records=4)


@pytest.mark.parametrize('place, words', [
  (3, r'the length of record 0 at byte 0 is damaged'),
  (38, r'the length of record 2 at byte 37 is damaged'),
  (46, r'the length of record 2 at byte 37 is damaged'),  # its checksum
  (14, r'a\.tfrecord: corrupted record at 12: make'),
  (500, r'a\.tfrecord: corrupted record at 49: make'),
  (1052, r'a\.tfrecord: corrupted record at 49: make'),
])
def test_a_flipped_bit_names_the_byte(file, place, words):
  content = bytearray(file.read_bytes())
  content[place] ^= 16
  file.write_bytes(content)
  with pytest.raises(UserError, match=words):
    check_tfrecords(file)
  with pytest.raises(UserError, match='cannot be read'):
    check_tfrecords(file.parent / 'none')


def test_the_cache_is_checked(tmp_path, capsys):
  import seqio

  from fairjax.data.seqio_cache import write_seqio_cache
  for split in ('train', 'valid', 'test'):
    (tmp_path / f'{split}.txt').write_text('Iran won .\n' * 40)
  data = DataConfig(source='lines', vocabulary='word', vocab_size=50,
                    **{s: (str(tmp_path / f'{s}.txt'),) for s in ('train', 'valid', 'test')})
  prepared = prepare_data(Config(data=data), tmp_path / 'data', attribute=load_attribute('country'),
                          log=lambda line: None)
  try:
    write_seqio_cache(prepared, tmp_path / 'cache', num_shards=2, log=lambda line: None)
    assert main(['data', 'check', f'--seqio_cache={tmp_path / "cache"}']) == 0
    assert 'train: 40 examples in 2 files' in capsys.readouterr().out
    folder = tmp_path / 'cache' / 'fairjax_lines'
    for path in sorted(folder.iterdir()):
      content = path.read_bytes()
      path.write_bytes(content[:-1] if content else b'')
      found = check_cache(tmp_path / 'cache').problems
      if path.name == 'fairjax.json':
        assert not found  # its last byte is a line end
      elif content:
        assert any(str(path) in problem for problem in found)
      if content and path.name != 'fairjax.json':
        with pytest.raises(UserError, match='it is cut off at byte'):
          write_seqio_cache(prepared, tmp_path / 'cache', log=lambda line: None)
      path.write_bytes(content)
    train = sorted(folder.glob('train.tfrecord-*'))
    (folder / 'fairjax.json').unlink()  # as Beam writes it: no digests
    train[0].write_bytes(b'')
    assert check_cache(tmp_path / 'cache').problems == [
      f'{folder}: train holds 16 examples instead of 40: delete {folder} and run fairjax data '
      '--seqio_cache again']
    assert json.loads((folder / 'stats.train.json').read_text())['examples'] == 40
    shutil.rmtree(folder)
    assert 'holds no cache' in check_cache(tmp_path / 'cache').problems[0]
  finally:
    seqio.set_global_cache_dirs([])
    for name in list(seqio.TaskRegistry.names()):
      seqio.TaskRegistry.remove(name)
