"""Preparing data takes no more memory for more text: peaks of whole preparations."""

import subprocess
import sys

import pytest

CODE = '''
import pathlib, sys
from fairjax.config import Config, DataConfig
from fairjax.counterfactual import load_attribute
from fairjax.data import token_store
from fairjax.data.prepare import prepare_data
# What is held at a time, as small beside these texts as it is beside a corpus.
token_store.CHUNK_BYTES, token_store.CHUNK_DOCUMENTS = 1 << 18, 1 << 11
token_store._MATCH_BLOCK = 1 << 16
files = {split: (f'{sys.argv[1]}/{split}.txt',) for split in ('train', 'valid', 'test')}
data = DataConfig(source='lines', vocabulary='word', vocab_size=100, reader='numpy', **files)
prepared = prepare_data(Config(data=data), pathlib.Path(sys.argv[1], 'data'),
                        attribute=load_attribute('country'), log=lambda line: None)
with open('/proc/self/status') as file:  # of this program alone; ru_maxrss begins with the parent's
  peak = next(line for line in file if line.startswith('VmHWM'))
print(prepared.store('train').documents, 1024 * int(peak.split()[1]))
'''


def peak(folder, repository, documents, words):
  """Bytes of the largest resident memory, and bytes of the training text."""
  folder.mkdir()
  line = ' '.join(['internationalisation'] * words) + '\n'
  with open(folder / 'train.txt', 'w', encoding='utf-8') as file:
    file.write('From Iran .\n')
    file.writelines(line for _ in range(documents - 1))
  for split in ('valid', 'test'):
    (folder / f'{split}.txt').write_text('From Chile .\n', encoding='utf-8')
  done = subprocess.run([sys.executable, '-c', CODE, str(folder)], cwd=repository, text=True,
                        capture_output=True, timeout=300)
  assert done.returncode == 0, done.stderr[-2000:]
  number, found = map(int, done.stdout.split())
  assert number == documents
  return found, (folder / 'train.txt').stat().st_size


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='reads /proc')
@pytest.mark.parametrize(('documents', 'words'), [(4000, 400), (1000, 1600)])
def test_four_times_the_text_takes_no_more_memory(documents, words, tmp_path, repository):
  small, text = peak(tmp_path / 'small', repository, 1000, 400)
  large, more_text = peak(tmp_path / 'large', repository, documents, words)
  print(f'{text:,} bytes: {small:,}; {more_text:,} bytes: {large:,}')
  assert more_text - text > 24_000_000
  # The rest are tokens of a mapped file (2 bytes each, read once) and the table of documents.
  assert large - small < 0.3 * (more_text - text)


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='reads /proc')
def test_a_document_takes_as_many_bytes_as_the_docs_say(tmp_path, repository):
  small, _ = peak(tmp_path / 'small', repository, 20_000, 2)
  large, _ = peak(tmp_path / 'large', repository, 80_000, 2)
  print(f'{(large - small) / 60_000:.0f} bytes a document')
  assert large - small < 220 * 60_000
