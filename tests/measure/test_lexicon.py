"""Fetching the opinion lexicon from servers on this machine, good and bad."""

import hashlib
import http.server
import io
import os
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
import zipfile

import pytest
from google_server import self_signed

from fairjax.errors import UserError
from fairjax.measure.scorers import lexicon as lexicons
from fairjax.measure.scorers import load_scorer
from fairjax.measure.scorers.base import OpinionScorer
from fairjax.measure.scorers.lexicon import (
  FILES,
  SHA256,
  URL,
  fetch_lexicon,
  lexicon_files,
  read_lexicon,
)

WORDS = {'positive-words.txt': '; Opinion Lexicon: Positive\n\na+\ngood\n',
         'negative-words.txt': '; Opinion Lexicon: Negative\n\nbad\nnaïve\n'}


def archive(words=WORDS, *, end='\n', folder='opinion_lexicon/'):
  """A zip like the distributed one: latin-1, a folder, something else beside the lists."""
  content = io.BytesIO()
  with zipfile.ZipFile(content, 'w', zipfile.ZIP_DEFLATED) as file:
    file.writestr(folder + 'README.txt', 'about')
    for name, text in words.items():
      file.writestr(folder + name, text.replace('\n', end).encode('latin-1'))
  return content.getvalue()


@pytest.fixture
def small(monkeypatch):
  """Hashes of the short lists above in the place of those of the real ones."""
  monkeypatch.setattr(lexicons, 'SHA256', {
    name: hashlib.sha256(text.encode('utf-8')).hexdigest() for name, text in WORDS.items()})


@pytest.fixture
def serve():
  """Starts servers that answer every path with what they are given."""
  servers = []

  def start(answers, *, secure=None):
    class Handler(http.server.BaseHTTPRequestHandler):
      def do_GET(self):
        code, headers, body = answers.get(self.path, (404, {}, b''))
        self.send_response(code)
        for name, value in headers.items():
          self.send_header(name, value)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

      def log_message(self, *_):
        pass

    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    if secure:
      context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
      context.load_cert_chain(*secure)
      server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    servers.append(server)
    return server.server_address[1]

  yield start
  for server in servers:
    server.shutdown()
    server.server_close()


def local(port, path='/lexicon.zip'):
  """An opener that asks a plain server here, whatever the address."""
  direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
  return lambda url: direct.open(f'http://127.0.0.1:{port}{path}', timeout=5)


@pytest.mark.parametrize('end', ['\n', '\r\n'])
def test_fetched_lists_are_utf8_and_make_a_scorer(small, serve, tmp_path, end):
  port = serve({'/lexicon.zip': (200, {}, archive(end=end))})
  asked = []

  def opener(url):
    asked.append(url)
    return local(port)(url)

  paths = fetch_lexicon(tmp_path / 'deep' / 'lexicon', opener=opener)
  assert asked == [URL] and [p.name for p in paths] == list(FILES)
  assert [p.read_text('utf-8') for p in paths] == list(WORDS.values())
  assert sorted(p.name for p in (tmp_path / 'deep' / 'lexicon').iterdir()) == sorted(FILES)
  for given in (paths, [tmp_path / 'deep' / 'lexicon']):
    assert load_scorer('opinion', lexicon=given).lexicon == {
      'a+': 1, 'good': 1, 'bad': -1, 'naïve': -1}
  assert fetch_lexicon(tmp_path / 'deep' / 'lexicon', opener=opener) == paths
  assert len(asked) == 1  # they were there


def test_the_recorded_hashes_are_those_of_the_real_lists(test_data):
  for name, kind in zip(FILES, ('positive', 'negative'), strict=True):
    content = (test_data / 'lexicons' / f'opinion_{kind}.txt').read_bytes()
    assert hashlib.sha256(content).hexdigest() == SHA256[name]
    assert f'; Opinion Lexicon: {kind.capitalize()}' in content.decode('utf-8')
  assert set(SHA256) == set(FILES) and URL.startswith('https://')


@pytest.mark.parametrize('words, message', [
  ({**WORDS, 'positive-words.txt': '; list\ngood\nextra\n'},
   'positive-words.txt is not the list of Hu and Liu: SHA-256 .*nothing was written'),
  ({**WORDS, 'negative-words.txt': ''}, 'negative-words.txt is not the list'),
  ({'positive-words.txt': WORDS['positive-words.txt']},
   'the archive holds no negative-words.txt')])
def test_other_lists_are_refused_and_nothing_is_written(small, serve, tmp_path, words, message):
  port = serve({'/lexicon.zip': (200, {}, archive(words))})
  with pytest.raises(UserError, match=message):
    fetch_lexicon(tmp_path / 'lexicon', opener=local(port))
  assert not (tmp_path / 'lexicon').exists()


def test_a_list_that_is_there_but_another_is_not_overwritten(small, serve, tmp_path):
  port = serve({'/lexicon.zip': (200, {}, archive())})
  mine = tmp_path / 'positive-words.txt'
  mine.write_text('my own\n')
  with pytest.raises(UserError, match='positive-words.txt is there already and is not the list'):
    fetch_lexicon(tmp_path, opener=local(port))
  assert mine.read_text() == 'my own\n' and list(tmp_path.iterdir()) == [mine]


@pytest.mark.parametrize('answer, message', [
  ((404, {}, b''), 'the server answered 404'), ((500, {}, b'x'), 'the server answered 500'),
  ((200, {}, b'<html>no zip</html>'), 'not a zip archive'),
  ((200, {}, archive()[:-40]), 'not a zip archive'),
  ((200, {}, b'x' * (lexicons.MOST_BYTES + 1)), 'more than 1048576 bytes')])
def test_answers_that_are_no_archive(small, serve, tmp_path, answer, message):
  port = serve({'/lexicon.zip': answer})
  with pytest.raises(UserError, match=message) as error:
    fetch_lexicon(tmp_path / 'lexicon', opener=local(port))
  assert '\n' not in str(error.value) and not (tmp_path / 'lexicon').exists()


def test_a_list_that_unpacks_to_too_much_is_not_read_whole(serve, tmp_path):
  bomb = archive({**WORDS, 'positive-words.txt': 'x' * (5 * lexicons.MOST_BYTES)})
  assert len(bomb) < lexicons.MOST_BYTES
  port = serve({'/lexicon.zip': (200, {}, bomb)})
  content = lexicons._unpack(lexicons._download('https://x', local(port)), 'https://x')
  assert len(content['positive-words.txt']) == lexicons.MOST_BYTES + 1
  with pytest.raises(UserError, match='is not the list'):
    fetch_lexicon(tmp_path / 'lexicon', opener=local(port))


def test_names_in_the_archive_never_become_paths(small, serve, tmp_path):
  port = serve({'/lexicon.zip': (200, {}, archive(folder='../../escaped/'))})
  fetch_lexicon(tmp_path / 'a' / 'lexicon', opener=local(port))
  assert sorted(p.name for p in tmp_path.rglob('*') if p.is_file()) == sorted(FILES)


def test_only_https(tmp_path):
  with pytest.raises(UserError, match='http://x/l.zip: only https addresses'):
    fetch_lexicon(tmp_path, url='http://x/l.zip')
  with pytest.raises(UserError, match='only https'):
    fetch_lexicon(tmp_path, url='file:///etc/passwd')


def command(*arguments, certificate):
  environment = os.environ | {
    'SSL_CERT_FILE': str(certificate), 'no_proxy': '127.0.0.1', 'NO_PROXY': '127.0.0.1'}
  return subprocess.run([sys.executable, '-m', 'fairjax', 'lexicon', 'fetch', *arguments],
                        capture_output=True, text=True, env=environment, timeout=120)


def test_the_verb_over_https(serve, tmp_path, repository, monkeypatch):
  monkeypatch.chdir(repository)
  (key, _), certificate = self_signed(tmp_path)
  (tmp_path / 'key.pem').write_bytes(key)
  pair = certificate, tmp_path / 'key.pem'
  plain = serve({'/l.zip': (200, {}, archive())})
  port = serve({'/l.zip': (200, {}, archive()), '/again': (302, {'Location': '/l.zip'}, b''),
                '/down': (302, {'Location': f'http://127.0.0.1:{plain}/l.zip'}, b'')}, secure=pair)
  output = tmp_path / 'lexicon'

  def error(path):
    result = command(f'--output={output}', f'--url=https://127.0.0.1:{port}{path}',
                     certificate=certificate)
    assert result.returncode == 2 and result.stderr.count('\n') == 1 and not output.exists()
    return result.stderr

  # The lists are the short ones: everything works but the hash of the real lists.
  assert 'positive-words.txt is not the list of Hu and Liu' in error('/l.zip')
  assert 'positive-words.txt is not the list of Hu and Liu' in error('/again')
  assert f'it leads to http://127.0.0.1:{plain}/l.zip: only https' in error('/down')
  with socket.socket() as closed:
    closed.bind(('127.0.0.1', 0))
    port = closed.getsockname()[1]
  assert 'cannot be reached' in error('/l.zip') and '--lexicon POSITIVE NEGATIVE' in error('/l.zip')


def test_the_verb_fetches_the_real_lists(serve, tmp_path, repository, monkeypatch, test_data):
  monkeypatch.chdir(repository)
  (key, _), certificate = self_signed(tmp_path)
  (tmp_path / 'key.pem').write_bytes(key)
  words = {name: (test_data / 'lexicons' / f'opinion_{kind}.txt').read_text('utf-8')
           for name, kind in zip(FILES, ('positive', 'negative'), strict=True)}
  port = serve({'/l.zip': (200, {}, archive(words))}, secure=(certificate, tmp_path / 'key.pem'))
  result = command(f'--output={tmp_path / "lexicon"}', f'--url=https://127.0.0.1:{port}/l.zip',
                   certificate=certificate)
  assert result.returncode == 0, result.stderr
  assert 'CC BY 4.0' in result.stdout and '2006 positive' in result.stdout
  scorer = load_scorer('opinion', lexicon=[tmp_path / 'lexicon'])
  assert len(scorer.lexicon) == 2006 + 4783 - 2 * 3


def test_a_folder_stands_for_its_two_lists(tmp_path):
  for name in FILES:
    (tmp_path / name).write_text('word\n')
  assert lexicon_files([tmp_path]) == tuple(tmp_path / name for name in FILES)
  assert lexicon_files(['a.txt', 'b.txt']) == lexicon_files(map(str, lexicon_files(['a.txt',
                                                                                   'b.txt'])))
  (tmp_path / FILES[1]).unlink()
  with pytest.raises(UserError, match='has no negative-words.txt: fairjax lexicon fetch'):
    lexicon_files([tmp_path])


def test_lexicon_file_format(tmp_path):
  path = tmp_path / 'positive.txt'
  path.write_bytes(b'\xef\xbb\xbf; a header; with words\r\n;\r\n\r\ngood\r\nna\xc3\xafve\r\n')
  assert read_lexicon(path) == ['good', 'naïve']


@pytest.mark.parametrize('content, message', [
  (b'; only a header\n', 'holds no word'),
  (b'good\nvery bad\n', r'words\.txt:2: .* several words'),
  (b'good\n\nna\xefve\n', r'words\.txt:3: not UTF-8'),
])
def test_lexicon_errors_name_file_and_line(tmp_path, content, message):
  path = tmp_path / 'words.txt'
  path.write_bytes(content)
  with pytest.raises(UserError, match=message):
    OpinionScorer.from_lexicon_files(path, path)
