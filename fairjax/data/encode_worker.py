"""A process that encodes chunks: `python -m fairjax.data.encode_worker VOCABULARY FOLDER`.

It reads frames from its input until this ends, and answers each by a line of JSON. A frame is

    number of the chunk, of its documents, of its bytes     3 x uint64
    number of UTF-8 bytes of each document                  documents x uint64
    the documents, one after the other

all little-endian. The input ends when the parent does, so no process is left behind it.
"""

import itertools
import json
import os
import signal
import struct
import sys
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from fairjax.data.chunks import write_chunk
from fairjax.errors import UserError
from fairjax.vocabulary import load_encoder

_HEADER = struct.Struct('<QQQ')


def write_frame(file: BinaryIO, index: int, texts: Sequence[bytes]) -> None:
  """Sends a chunk; the texts are UTF-8."""
  lengths = np.array([len(t) for t in texts], '<u8')
  file.write(_HEADER.pack(index, len(texts), int(lengths.sum())))
  file.write(lengths.tobytes())
  file.write(b''.join(texts))
  file.flush()


def read_frame(file: BinaryIO) -> tuple[int, list[str]] | None:
  """Number and documents of the next chunk; None at the end of the input, also within a frame."""
  header = file.read(_HEADER.size)
  if len(header) < _HEADER.size:
    return None
  index, number, size = _HEADER.unpack(header)
  lengths, content = file.read(8 * number), file.read(size)
  if len(content) < size:
    return None
  ends = np.cumsum(np.frombuffer(lengths, '<u8').astype(np.int64)).tolist()
  return index, [content[a:b].decode('utf-8') for a, b in itertools.pairwise([0, *ends])]


def main(vocabulary_folder: str, folder: str) -> None:
  """Encodes until the input ends."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which ends the input
  vocabulary = load_encoder(vocabulary_folder)
  while (frame := read_frame(sys.stdin.buffer)) is not None:
    index, texts = frame
    try:
      answer = {'index': index, 'tokens': write_chunk(folder, index, texts, vocabulary)}
    except OSError as e:
      answer = {'index': index, 'error': f'{e.filename or folder}: {e.strerror}'}
    except UserError as e:  # something is in the way of its file
      answer = {'index': index, 'error': str(e)}
    try:
      print(json.dumps(answer), flush=True)
    except BrokenPipeError:
      os._exit(1)  # the parent was killed; the chunk is complete


if __name__ == '__main__':
  main(*sys.argv[1:])
