"""seqio's offline cache: our writer, and seqio's own job on Beam in an environment of its own."""

import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from split_files import line_data
from split_files import prepare as prepare_lines

from fairjax import processes
from fairjax.cli.main import main
from fairjax.data.data_check import check_cache
from fairjax.data.prepare import open_prepared
from fairjax.errors import UserError

pytestmark = pytest.mark.tf

def prepare(tmp_path, number=700, **kwargs):
  data = line_data(tmp_path, {
    split: [f'{split} {i} of Iran , {i % 7} .' for i in range(count)]
    for split, count in (('train', number), ('valid', 5), ('test', 3))},
    vocabulary='word', vocab_size=5000, reader='seqio', **kwargs)
  return prepare_lines(data, tmp_path / 'data')[0]


def examples(task, split='train', **kwargs):
  dataset = task.get_dataset(None, split, shuffle=False, try_in_mem_cache=False, **kwargs)
  return [(e['targets'].tolist(), e['targets_pretokenized']) for e in dataset.as_numpy_iterator()]


@pytest.fixture(autouse=True)
def registry():
  import seqio
  yield
  seqio.set_global_cache_dirs([])
  for name in list(seqio.TaskRegistry.names()):
    seqio.TaskRegistry.remove(name)


def test_cached_examples_are_the_same_in_the_same_order(tmp_path):
  from fairjax.data.seqio_cache import write_seqio_cache

  prepared, lines = prepare(tmp_path), []
  task = write_seqio_cache(prepared, tmp_path / 'cache', log=lines.append)
  for split, number in (('train', 700), ('valid', 5), ('test', 3)):
    cached = examples(task, split, use_cached=True)
    assert cached == examples(task, split) and len(cached) == number
    assert task.get_cached_stats(split) == {
      'examples': number, 'targets_max_tokens': 7, 'targets_tokens': 7 * number}
  assert len(list((tmp_path / 'cache').rglob('train.tfrecord-*'))) == 16
  before = {p: p.stat().st_mtime_ns for p in (tmp_path / 'cache').rglob('*') if p.is_file()}
  write_seqio_cache(prepared, tmp_path / 'cache', log=lines.append)
  assert 'nothing to do' in lines[-1]
  assert before == {p: p.stat().st_mtime_ns for p in before}


def test_the_cache_of_other_data_is_refused(tmp_path):
  from fairjax.data.seqio_cache import write_seqio_cache

  (tmp_path / 'a').mkdir()
  (tmp_path / 'b').mkdir()
  write_seqio_cache(prepare(tmp_path / 'a', 20), tmp_path / 'cache', log=print)
  with pytest.raises(UserError, match='holds the cache of other data'):
    write_seqio_cache(prepare(tmp_path / 'b', 21), tmp_path / 'cache', log=print)
  prepared = prepare(tmp_path / 'a', 20)
  pathlib.Path(prepared.config.train[0]).write_text('Iran .\n')
  with pytest.raises(UserError, match='gave 1 train documents, but 20 were prepared'):
    write_seqio_cache(prepared, tmp_path / 'other', log=print)
  assert not list((tmp_path / 'other').rglob('COMPLETED'))
  with pytest.raises(UserError, match='train.txt/fairjax_lines cannot be made .Not a directory'):
    write_seqio_cache(prepared, prepared.config.train[0], log=print)


def test_the_command_line_writes_the_cache(tmp_path, in_repository, printed, monkeypatch):
  import seqio

  options = ['step', 'data', '--config=configs/quickstart.py', f'--workdir={tmp_path / "run"}',
             f'--seqio_cache={tmp_path / "cache"}', '--config.data.planted_documents=60',
             '--config.data.planted_heldout_documents=10', '--config.data.vocab_size=600']
  assert 'seqio cache of train: 60 examples' in printed(*options)
  with monkeypatch.context() as patch:  # of several processes one writes, and prints
    patch.setattr(processes, 'is_first', lambda: False)
    assert printed(*(word.replace(f'{tmp_path}/cache', f'{tmp_path}/other') for word in options)
                   ) == ''
  assert not (tmp_path / 'other').exists()
  task = seqio.get_mixture_or_task('fairjax_planted')
  assert examples(task, use_cached=True) == examples(task)


def test_prepared_data_open_from_their_folder(tmp_path, monkeypatch):
  import seqio

  from fairjax.data import seqio_cache
  prepare(tmp_path)
  with pytest.raises(UserError, match='no finished data in .*run fairjax step data'):
    open_prepared(tmp_path)
  # seqio's job imports a module that registers the task.
  monkeypatch.setenv('FAIRJAX_CACHE_DATA', str(tmp_path / 'data'))
  assert 'fairjax_lines' not in seqio.TaskRegistry.names()
  importlib.reload(seqio_cache)
  assert 'fairjax_lines' in seqio.TaskRegistry.names()


def test_parts_are_read_alone(tmp_path):
  import seqio

  from fairjax.data.seqio_tasks import register_corpus_task

  for i in range(3):
    (tmp_path / f'part{i}.txt').write_text(''.join(f'Iran {i} {j}\n' for j in range(i + 2)))
  prepared = prepare(tmp_path, train=(str(tmp_path / 'part*.txt'),))
  task = register_corpus_task(prepared.corpus, prepared.vocabulary)
  read = [examples(task, shard_info=seqio.ShardInfo(i, 3)) for i in range(3)]
  assert [len(r) for r in read] == [2, 3, 4] and sum(read, []) == examples(task)
  odd = [examples(task, shard_info=seqio.ShardInfo(i, 2)) for i in range(2)]
  assert sorted(sum(odd, [])) == sorted(examples(task))


@pytest.mark.skipif('FAIRJAX_BEAM_VENV' not in os.environ, reason='needs Apache Beam: set '
                    'FAIRJAX_BEAM_VENV to a folder for its environment (made if it is not there)')
def test_the_beam_job_gives_the_same_examples(tmp_path, repository):
  import seqio

  prepared = prepare(tmp_path, 40)
  from fairjax.data.seqio_tasks import register_corpus_task
  found = subprocess.run(
    [repository / 'launch' / 'cache_tasks.sh', tmp_path / 'data', tmp_path / 'cache'],
    capture_output=True, text=True, timeout=900, check=False,
    env=os.environ | {'PYTHON': sys.executable, 'PYTHONPATH': ''})
  assert found.returncode == 0, found.stderr[-3000:]
  seqio.add_global_cache_dirs([str(tmp_path / 'cache')])
  task = register_corpus_task(prepared.corpus, prepared.vocabulary)
  for split, number in (('train', 40), ('valid', 5), ('test', 3)):
    cached = examples(task, split, use_cached=True)  # Beam shuffles
    assert sorted(cached) == sorted(examples(task, split)) and len(cached) == number


def test_the_cache_is_checked(tmp_path, capsys):
  from fairjax.data.seqio_cache import write_seqio_cache
  prepared = prepare(tmp_path, 40)
  write_seqio_cache(prepared, tmp_path / 'cache', log=lambda line: None)
  assert main(['step', 'check-data', f'--seqio_cache={tmp_path / "cache"}']) == 0
  assert 'train: 40 examples in 16 files' in capsys.readouterr().out
  folder = tmp_path / 'cache' / 'fairjax_lines'
  contents = {path: path.read_bytes() for path in folder.iterdir()
              if path.stat().st_size and path.name != 'fairjax.json'}
  for path, content in contents.items():
    path.write_bytes(content[:-1])
  problems = check_cache(tmp_path / 'cache').problems
  assert contents and all(any(str(path) in line for line in problems) for path in contents)
  with pytest.raises(UserError, match='cut off'):
    write_seqio_cache(prepared, tmp_path / 'cache', log=lambda line: None)
  for path, content in contents.items():
    path.write_bytes(content)
  train = sorted(folder.glob('train.tfrecord-*'))
  (folder / 'fairjax.json').unlink()  # as Beam writes it: no digests
  train[0].write_bytes(b'')
  assert check_cache(tmp_path / 'cache').problems == [
    f'{folder}: train holds 24 examples instead of 40: delete {folder} and run fairjax step data '
    '--seqio-cache again']
  assert json.loads((folder / 'stats.train.json').read_text())['examples'] == 40
  shutil.rmtree(folder)
  assert 'holds no cache' in check_cache(tmp_path / 'cache').problems[0]
