"""Fetching the opinion lexicon from servers on this machine, good and bad."""

import contextlib
import hashlib
import http.server

import pytest
from local_server import served
from test_inputs import zipped

from fairjax.errors import UserError
from fairjax.measure.scorers import lexicon as lexicons
from fairjax.measure.scorers import load_scorer
from fairjax.measure.scorers.lexicon import (
  FILES,
  SHA256,
  fetch_lexicon,
  read_lexicon,
)

WORDS = {'positive-words.txt': '; Opinion Lexicon: Positive\n\na+\ngood\n',
         'negative-words.txt': '; Opinion Lexicon: Negative\n\nbad\nnaïve\n'}


def archive(words=WORDS, *, end='\n', folder='opinion_lexicon/'):
  """A zip like the distributed one: latin-1, a folder, something else beside the lists."""
  return zipped({folder + 'README.txt': 'about'} | {
    folder + name: text.replace('\n', end).encode('latin-1') for name, text in words.items()})


@pytest.fixture
def small(monkeypatch):
  """Hashes of the short lists above in the place of those of the real ones."""
  monkeypatch.setattr(lexicons, 'SHA256', {
    name: hashlib.sha256(text.encode('utf-8')).hexdigest() for name, text in WORDS.items()})


@pytest.fixture
def serve(monkeypatch):
  """Starts a server that answers every path with (code, body); returns its address."""
  asked = []
  monkeypatch.setenv('no_proxy', '127.0.0.1')

  def start(body, code=200):
    class Handler(http.server.BaseHTTPRequestHandler):
      def do_GET(self):
        asked.append(self.path)
        self.send_response(code)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    return f'{stack.enter_context(served(Handler))}/lexicon.zip'

  start.asked = asked
  with contextlib.ExitStack() as stack:
    yield start


@pytest.mark.parametrize('options', [{'end': '\n'}, {'end': '\r\n', 'folder': '../../escaped/'}])
def test_fetched_lists_are_utf8_and_make_a_scorer(small, serve, tmp_path, options):
  url, folder = serve(archive(**options)), tmp_path / 'deep' / 'lexicon'
  paths = fetch_lexicon(folder, url=url)
  assert [p.read_text('utf-8') for p in paths] == list(WORDS.values())
  assert sorted(p for p in tmp_path.rglob('*') if p.is_file()) == sorted(folder / n for n in FILES)
  for given in (paths, [folder]):
    assert load_scorer('opinion', lexicon=given).lexicon == {
      'a+': 1, 'good': 1, 'bad': -1, 'naïve': -1}
  assert fetch_lexicon(folder, url=url) == paths
  assert len(serve.asked) == 1  # they were there


@pytest.mark.parametrize('words, message', [
  ({**WORDS, 'positive-words.txt': '; list\ngood\nextra\n'},
   'positive-words.txt is not the list of Hu and Liu: SHA-256 .*nothing was written'),
  ({**WORDS, 'positive-words.txt': 'x' * (5 * lexicons.MOST_BYTES)}, 'is not the list'),  # a bomb
  ({'positive-words.txt': WORDS['positive-words.txt']},
   'the archive holds no negative-words.txt')])
def test_other_lists_are_refused_and_nothing_is_written(small, serve, tmp_path, words, message):
  with pytest.raises(UserError, match=message):
    fetch_lexicon(tmp_path / 'lexicon', url=serve(archive(words)))
  assert not (tmp_path / 'lexicon').exists()


def test_a_list_that_is_there_but_another_is_not_overwritten(small, serve, tmp_path):
  mine = tmp_path / 'positive-words.txt'
  mine.write_text('my own\n')
  with pytest.raises(UserError, match='positive-words.txt is there already and is not the list'):
    fetch_lexicon(tmp_path, url=serve(archive()))
  assert mine.read_text() == 'my own\n' and list(tmp_path.iterdir()) == [mine]
  with pytest.raises(UserError, match='has no negative-words.txt: fairjax scorers lexicon'):
    load_scorer('opinion', lexicon=[tmp_path])
  with pytest.raises(UserError, match=r'nowhere: no such .* --output=\S*nowhere'):
    load_scorer('opinion', lexicon=[tmp_path / 'nowhere'])


@pytest.mark.parametrize('code, body, message', [
  (404, b'', 'the server answered 404'), (200, archive()[:-40], 'not a zip archive'),
  (200, b'x' * (lexicons.MOST_BYTES + 1), 'more than 1048576 bytes')])
def test_answers_that_are_no_archive(small, serve, tmp_path, code, body, message):
  with pytest.raises(UserError, match=message):
    fetch_lexicon(tmp_path / 'lexicon', url=serve(body, code))
  assert not (tmp_path / 'lexicon').exists()


def test_the_verb_fetches_the_real_lists(serve, tmp_path, test_data, monkeypatch, printed, refused):
  words = {name: (test_data / 'lexicons' / f'opinion_{kind}.txt').read_text('utf-8')
           for name, kind in zip(FILES, ('positive', 'negative'), strict=True)}
  assert {n: hashlib.sha256(w.encode('utf-8')).hexdigest() for n, w in words.items()} == SHA256
  output = tmp_path / 'lexicon'
  command = ['scorers', 'lexicon', f'--output={output}']
  monkeypatch.setattr(lexicons, 'URL', serve(archive(words)))
  out = printed(*command)
  assert 'CC BY 4.0' in out and '2006 positive' in out
  for url, message in (('https://127.0.0.1:1/l.zip', '--lexicon POSITIVE NEGATIVE'),
                       (serve(archive()), 'is not the list of Hu and Liu')):
    monkeypatch.setattr(lexicons, 'URL', url)
    refused(['scorers', 'lexicon', f'--output={tmp_path / "other"}'], message, url)
  assert not (tmp_path / 'other').exists()


@pytest.mark.parametrize('content, message', [
  (b'; only a header\n', 'holds no word'),
  (b'good\nvery bad\n', r'words\.txt:2: .* several words')])
def test_lexicon_errors_name_file_and_line(tmp_path, content, message):
  path = tmp_path / 'words.txt'
  path.write_bytes(content)
  with pytest.raises(UserError, match=message):
    read_lexicon(path)
