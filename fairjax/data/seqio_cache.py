r"""seqio's offline cache of a prepared corpus: written here, or by seqio's own job on Apache Beam.

    DIRECTORY/fairjax_SOURCE/
      train.tfrecord-00000-of-00016 ...   examples in front of the task's cache placeholder
      info.train.json, stats.train.json   features and counts
      fairjax.json                        whose data these are; bytes and SHA-256 of the files
      COMPLETED                           written last; seqio's mark

Examples are dealt to the files in blocks of 16, which is how seqio reads a cache of up to 16 files,
so that `use_cached=True` gives the same examples in the same order. seqio's own job shuffles them:

    FAIRJAX_CACHE_DATA=DIR/data seqio_cache_tasks --module_import=fairjax.data.seqio_cache \
        --tasks=fairjax_lines --output_cache_dir=CACHE

Where FAIRJAX_CACHE_DATA names a folder that `fairjax step data` made, importing this module
registers its task. launch/cache_tasks.sh makes the environment that Beam needs and runs the job.
"""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Callable

import seqio
import tensorflow as tf

from fairjax.data.corpus import SPLITS
from fairjax.data.prepare import PreparedData, open_prepared
from fairjax.data.seqio_tasks import Elements, register_corpus_task
from fairjax.errors import UserError
from fairjax.files import (
  check_sizes,
  describe_files,
  read_sealed_json,
  write_json,
  write_sealed_json,
)

VARIABLE = 'FAIRJAX_CACHE_DATA'
_SHARDS = 16  # cycle_length of seqio's reader: with more files it mixes the order
_BLOCK = 16  # its block_length


def write_seqio_cache(
  prepared: PreparedData, directory: str | os.PathLike, *, log: Callable[[str], None] = print,
) -> seqio.Task:
  """Writes the cache of all splits, registers it with seqio, and returns the task."""
  task = register_corpus_task(prepared.corpus, prepared.vocabulary)
  folder = pathlib.Path(directory).resolve() / seqio.get_task_dir_from_name(task.name)
  identity = {'fairjax_data': prepared.fingerprint}
  if (folder / 'COMPLETED').is_file():
    again = 'delete the folder to make it anew'
    found = read_sealed_json(folder / 'fairjax.json', again=again)
    files = found.pop('files', {})
    if found != identity:
      raise UserError(f'{folder} holds the cache of other data: use another folder, or delete it')
    check_sizes(folder, files, again=again)
    log(f'[data] {folder} is complete: nothing to do')
  else:
    shutil.rmtree(folder, ignore_errors=True)
    try:
      folder.mkdir(parents=True)
    except OSError as e:
      raise UserError(f'{folder} cannot be made ({e.strerror}): name another folder') from None
    for split in SPLITS:
      stats = _write_split(task, split, folder)
      expected = prepared.manifest['splits'][split]['documents']
      if stats['examples'] != expected:
        raise UserError(f'the corpus gave {stats["examples"]} {split} documents, but {expected} '
                        'were prepared: its files have changed; prepare them in another folder')
      log(f'[data] seqio cache of {split}: {stats["examples"]:,} examples, '
          f'{stats["targets_tokens"]:,} tokens')
    written = [p.name for p in sorted(folder.iterdir())]
    write_sealed_json(folder / 'fairjax.json', identity | {
      'files': describe_files(folder, written)})
    (folder / 'COMPLETED').touch()
  seqio.add_global_cache_dirs([str(folder.parent)])
  return task


def _write_split(task: seqio.Task, split: str, folder: pathlib.Path) -> dict[str, int]:
  """Writes files, features and counts of a split; returns the counts."""
  source = task.source.get_dataset(split, shuffle=False)
  dataset = task.preprocess_precache(source, seed=0).prefetch(16)
  prefix = seqio.get_cached_tfrecord_prefix(str(folder), split)
  # Counts of the tokens in front of the placeholder, as in seqio's own job: without eos.
  stats = {'examples': 0, 'targets_tokens': 0, 'targets_max_tokens': 0}
  with contextlib.ExitStack() as stack:
    files = [stack.enter_context(tf.io.TFRecordWriter(f'{prefix}-{i:05d}-of-{_SHARDS:05d}'))
             for i in range(_SHARDS)]
    for number, example in enumerate(Elements(dataset, task)):
      example = {name: tensor.numpy() for name, tensor in example.items()}
      content = seqio.utils.dict_to_tfexample(example).SerializeToString()
      files[number // _BLOCK % _SHARDS].write(content)
      length = len(example['targets'])
      stats['examples'] += 1
      stats['targets_tokens'] += length
      stats['targets_max_tokens'] = max(stats['targets_max_tokens'], length)
  features = {name: {'dtype': spec.dtype.name, 'shape': spec.shape.as_list()}
              for name, spec in dataset.element_spec.items()}
  write_json(seqio.get_cached_info_path(str(folder), split), {
    'features': features, 'num_shards': _SHARDS, 'seqio_version': seqio.__version__})
  write_json(seqio.get_cached_stats_path(str(folder), split), stats)
  return stats


if VARIABLE in os.environ:
  _prepared = open_prepared(os.environ[VARIABLE])
  register_corpus_task(_prepared.corpus, _prepared.vocabulary)
