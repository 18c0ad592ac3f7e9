"""The opinion lexicon of Hu and Liu (2004): fetched on request, checked, read from files.

The list is Minqing Hu's and Bing Liu's (KDD 2004; CC BY 4.0), as the NLTK project distributes it.
Nothing is fetched unless a user asks for it, and no other list is ever used instead.
"""

import hashlib
import http.client
import io
import os
import pathlib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Sequence

from fairjax.errors import UserError
from fairjax.files import check_place, write_file
from fairjax.inputs import open_input, read_text_lines

# One commit, not a branch: the file at this address cannot change.
URL = ('https://raw.githubusercontent.com/nltk/nltk_data/80841aa102fecbe67fd3605f997d15851e3fee93/'
       'packages/corpora/opinion_lexicon.zip')
FILES = ('positive-words.txt', 'negative-words.txt')
# Of the lists as UTF-8 with line feeds: 2,006 positive and 4,783 negative words under their header.
SHA256 = {
  'positive-words.txt': '9f643e85bcd7eb32e680f05df3d87fdd3277d6626122b3efec94f3ee3790b596',
  'negative-words.txt': 'f80f5cfe3a62e7e07768eca9435b9ba514dbd5fc0eecf181e80b16f8f4578b34',
}
MOST_BYTES = 1 << 20  # of the archive and of each list; they have 25 kB and 46 kB
TIMEOUT = 30.0


def fetch_lexicon(
  directory: str | os.PathLike, *, url: str
) -> tuple[pathlib.Path, pathlib.Path]:
  """Fetches the lexicon and writes `positive-words.txt` and `negative-words.txt`; their paths."""
  # Both lists are checked before either is written; right ones that are there are left alone.
  directory = pathlib.Path(directory)
  paths = (directory / FILES[0], directory / FILES[1])
  there = [path for path in paths if path.exists()]
  for path in there:
    with open_input(path) as file:
      _check(file.read(), path.name, f'{path} is there already and')
  if len(there) == len(paths):
    return paths
  check_place(directory, folder=True)
  lists = _unpack(_download(url), url)
  for name, content in lists.items():
    _check(content, name, f'{url}: {name}')
  for path in paths:
    write_file(path, lists[path.name])
  return paths


def lexicon_files(paths: Sequence[str | os.PathLike]) -> tuple[pathlib.Path, ...]:
  """Files of a `--lexicon`: the two lists of a folder, or the file itself."""
  found = []
  for path in map(pathlib.Path, paths):
    if not path.is_dir():
      found.append(path)
      continue
    missing = [name for name in FILES if not (path / name).is_file()]
    if missing:
      raise UserError(f"lexicon {path}: the folder has no {' and no '.join(missing)}: fairjax "
                      f'scorers lexicon --output={path}')
    found += [path / name for name in FILES]
  return tuple(found)


def _download(url: str) -> bytes:
  """Content of an address, at most `MOST_BYTES`."""
  try:
    with urllib.request.build_opener().open(url, timeout=TIMEOUT) as response:
      content = response.read(MOST_BYTES + 1)
  except urllib.error.HTTPError as e:
    raise UserError(f'{url}: the server answered {e.code} ({e.reason})') from None
  except (OSError, http.client.HTTPException) as e:
    raise UserError(f"{url}: cannot be reached ({getattr(e, 'reason', e)}): try again with a "
                    'network, or give two word lists of your own: --lexicon POSITIVE '
                    'NEGATIVE') from None
  if len(content) > MOST_BYTES:
    raise UserError(f'{url}: more than {MOST_BYTES} bytes, so it is not the lexicon')
  return content


def _unpack(archive: bytes, url: str) -> dict[str, bytes]:
  """The two lists of a zip archive, as UTF-8 with line feeds."""
  lists = {}
  try:
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
      for name in file.namelist():
        short = pathlib.PurePosixPath(name).name
        if short in FILES:
          with file.open(name) as member:  # only names from FILES ever become paths
            content = member.read(MOST_BYTES + 1)
          lists[short] = content.decode('latin-1').replace('\r\n', '\n').encode('utf-8')
  except (zipfile.BadZipFile, OSError, EOFError, RuntimeError, ValueError) as e:
    raise UserError(f'{url}: not a zip archive that can be read ({e})') from None
  missing = [name for name in FILES if name not in lists]
  if missing:
    raise UserError(f"{url}: the archive holds no {' and no '.join(missing)}")
  return lists


def _check(content: bytes, name: str, what: str) -> None:
  """Compares a list with the recorded hash."""
  found = hashlib.sha256(content).hexdigest()
  if found != SHA256[name]:
    raise UserError(f'{what} is not the list of Hu and Liu: SHA-256 {found[:16]}..., expected '
                    f'{SHA256[name][:16]}...; nothing was written')


def read_lexicon(path: str | os.PathLike) -> list[str]:
  """Words of a UTF-8 list, one a line; lines that are empty or begin with `;` are skipped."""
  words = []
  for number, line in enumerate(read_text_lines(path, what='lexicon'), 1):
    text = line.strip()
    if not text or text.startswith(';'):
      continue
    if len(text.split()) > 1:
      raise UserError(f"{os.fspath(path)}:{number}: '{text}' is several words: one word a line")
    words.append(text)
  if not words:
    raise UserError(f'{os.fspath(path)}: the lexicon holds no word')
  return words
