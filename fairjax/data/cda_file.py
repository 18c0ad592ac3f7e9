"""Counterfactual data augmentation of a text file, a line at a time."""

import collections
import contextlib
import gzip
import os
import pathlib
from collections.abc import Callable
from typing import Any

from fairjax.counterfactual import CdaCounts, GenderSwap, augment_document
from fairjax.data.documents import read_documents
from fairjax.data.sentences import split_sentences
from fairjax.files import atomic_write, refuse_existing
from fairjax.progress import Progress


def augment_file(
  source: str | os.PathLike, output: str | os.PathLike, swap: GenderSwap, *, sided: str, unit: str,
  log: Callable[[str], None],
) -> dict[str, Any]:
  """Writes the lines of a file with their counterfactual ones; in memory is one line at a time.

  Args:
    source: text, plain or gzip; a line is a document of one sentence or more.
    output: must not exist; gzip if its name ends in .gz.
    swap: makes counterfactuals.
    sided: one or two, see `augment_document`.
    unit: sentence or document.
    log: gets lines of progress.

  Returns:
    input, output, sided, unit, swap (fingerprint), lines_read, lines_written, blank_lines and
    whatever else was changed in reading, and the fields of `CdaCounts`.

  Raises:
    UserError: a file that cannot be read, or is there already; with file and line.
  """
  output, counts, reading = refuse_existing(output), CdaCounts(), collections.Counter()
  read = written = 0
  with contextlib.ExitStack() as stack:
    file = stack.enter_context(atomic_write(output))
    if output.suffix == '.gz':
      # No name and time inside: the same text gives the same bytes.
      file = stack.enter_context(gzip.GzipFile('', 'wb', fileobj=file, mtime=0))
    progress = stack.enter_context(
      Progress(f'[cda] {pathlib.Path(source).name}', None, unit='lines', log=log))
    for line in read_documents([source], layout='lines', counts=reading):
      for text in augment_document(
          line, swap, sided, unit=unit, split=split_sentences, counts=counts):
        file.write(text.encode('utf-8') + b'\n')
        written += 1
      read += 1
      progress.add(1, lambda: f'{counts.swaps:,} swaps')
    refuse_existing(output)
  return {
    'input': os.fspath(source), 'output': os.fspath(output), 'sided': sided, 'unit': unit,
    'swap': swap.fingerprint, 'lines_read': read, 'lines_written': written,
    **{k: reading[k] for k in ('blank_lines', 'carriage_returns', 'nul_characters',
                               'byte_order_marks', 'replacement_characters') if reading[k]},
    **counts.to_dict()}
