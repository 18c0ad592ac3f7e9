"""Where a TFRecord file is cut off or damaged.

A record is its length (uint64), the masked CRC-32C of these 8 bytes (uint32), the data, and the
masked CRC-32C of the data (uint32), all little-endian. TensorFlow's reader ends a file that is cut
off within the first 12 bytes of a record, or between two, without an error.
"""

import os
import struct

from fairjax.errors import UserError

_HEADER = struct.Struct('<QI')
_CRC_BYTES = 4


def check_tfrecords(path: str | os.PathLike, *, records: int | None = None) -> int:
  """Reads a file to its end.

  Args:
    path: the file.
    records: that many must be there; None: any number.

  Returns:
    Number of records.

  Raises:
    UserError: the file is cut off, damaged or cannot be read; with file, record and byte.
  """
  count = position = 0
  try:
    size = os.path.getsize(path)
    with open(path, 'rb') as file:
      while position < size:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
          raise UserError(f'{path}: record {count} begins at byte {position}, but the file ends at '
                          f'byte {size}: it is cut off; make or fetch it again')
        length, checksum = _HEADER.unpack(header)
        if _masked(_crc32c(header[:8])) != checksum:
          raise UserError(f'{path}: the length of record {count} at byte {position} is damaged: '
                          'make or fetch the file again')
        end = position + _HEADER.size + length + _CRC_BYTES
        if end > size:
          raise UserError(f'{path}: record {count} at byte {position} needs bytes up to {end}, but '
                          f'the file ends at byte {size}: it is cut off; make or fetch it again')
        position, count = end, count + 1
        file.seek(position)
  except OSError as e:
    raise UserError(f'{path}: cannot be read ({e.strerror})') from None
  _check_data(path)
  if records is not None and count != records:
    raise UserError(f'{path} ends at byte {size} with {count} records instead of {records}: make '
                    'or fetch it again')
  return count


def _check_data(path: str | os.PathLike) -> None:
  """Compares the checksums of the data, which TensorFlow does while it reads."""
  import tensorflow as tf
  try:
    for _ in tf.data.TFRecordDataset(os.fspath(path)).batch(64):
      pass
  except tf.errors.OpError as e:
    message = e.message.partition('\n')[0].rpartition('}} ')[2].partition(' [Op:')[0]
    raise UserError(f'{path}: {message}: make or fetch the file again') from None


def _crc32c(content: bytes) -> int:
  """CRC-32C (Castagnoli, reflected polynomial 0x82F63B78) of a few bytes."""
  crc = 0xFFFFFFFF
  for byte in content:
    crc ^= byte
    for _ in range(8):
      crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
  return crc ^ 0xFFFFFFFF


def _masked(crc: int) -> int:
  """The form that TFRecord files hold."""
  return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
