"""Registers the task of a prepared corpus by being imported, for seqio's cache job on Beam.

  FAIRJAX_CACHE_DATA=DIR/data seqio_cache_tasks --module_import=fairjax.data.cache_tasks \
      --tasks=fairjax_lines --output_cache_dir=CACHE

FAIRJAX_CACHE_DATA is a folder that `fairjax data` made: it holds the vocabulary and names the
corpus. launch/cache_tasks.sh makes the environment that Beam needs and runs the job.
"""

import os

from fairjax.data.prepare import open_prepared
from fairjax.data.seqio_tasks import register_corpus_task
from fairjax.errors import UserError

VARIABLE = 'FAIRJAX_CACHE_DATA'


def register():
  """Registers the task and returns it.

  Raises:
    UserError: the variable is not set, or names no prepared data.
  """
  folder = os.environ.get(VARIABLE)
  if not folder:
    raise UserError(f'{VARIABLE} is not set: set it to the folder that fairjax data made, e.g. '
                    'WORKDIR/data')
  prepared = open_prepared(folder)
  return register_corpus_task(prepared.corpus, prepared.vocabulary)


TASK = register()
