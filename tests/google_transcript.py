"""The transcript of docs/google_scorer.md: `python -m tests.google_transcript`.

Each block is one call of the scorer against the server of `google_server`, which is scripted to
fail. At the end everything that was printed or written is searched for the key.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import grpc

from fairjax.errors import UserError
from fairjax.measure.scorers.google import GoogleScorer
from tests import google_server

KEY = 'AIzaTranscript0123456789abcdefghijklmno'
MANY = 300
PROCESS = f'''
import sys
from fairjax.measure.scorers.google import GoogleScorer
scorer = GoogleScorer(sys.argv[1], endpoint=sys.argv[2], workers=4, requests_per_minute=1e5,
                      log=print)
print(len(scorer.score([f'text {{i}}' for i in range({MANY})])), 'scores')
'''


class Transcript:
  """Prints, and remembers what it printed."""

  def __init__(self):
    self.lines = []

  def say(self, text: str) -> None:
    """Prints lines."""
    print(text, flush=True)
    self.lines += text.splitlines()

  def call(self, title: str, scorer: GoogleScorer, texts: list[str]) -> None:
    """One call of the scorer under a title."""
    self.say(f'# {title}')
    try:
      scorer.score(texts)
    except UserError as e:
      self.say(f'fairjax: {e}')
    self.say('')


def failures(transcript: Transcript, folder: pathlib.Path) -> None:
  """All ways to fail, with a scorer whose client asks for no credentials."""
  def texts(count):
    return [f'text {i}' for i in range(count)]

  os.chdir(folder)  # the file is named in messages
  with google_server.running() as server:
    def make(**options):
      return GoogleScorer('a.jsonl', client=server.client(), log=transcript.say, **{
        'requests_per_minute': 1e6, 'pause': (0.05, 0.05), 'timeout': 5.0,
        'deadline': 20.0} | options)

    status = grpc.StatusCode
    server.script['text 0'] = [status.RESOURCE_EXHAUSTED] * 5
    transcript.call('429 five times, then success', make(), texts(3))
    server.script['text 3'] = [status.UNAVAILABLE] * 3
    transcript.call('503 three times, then success; three texts are kept from before', make(),
                    texts(5))
    server.script['text 5'] = ['slow'] * 2
    transcript.call('two requests time out (0.3 s each), then success', make(timeout=0.3), texts(6))
    server.script['text 6'] = [1.5]
    transcript.call('garbage: a score of 1.5', make(workers=1), texts(8))
    server.script['text 6'] = ['empty']
    transcript.call('garbage: no document_sentiment', make(workers=1), texts(8))
    server.script['text 7'] = [(status.INVALID_ARGUMENT, 'The document is not supported.')]
    transcript.call('a text that the service refuses', make(workers=1), texts(10))
    kept = [f'text {i}' for i in range(15) if i != 7]
    server.always = status.RESOURCE_EXHAUSTED
    transcript.call('quota used up: 429 until the deadline (1 s here)', make(deadline=1.0), kept)
    server.always = None
    transcript.call('the same call later', make(), kept)
    more = [*kept, *(f'text {i}' for i in range(15, 20))]
    server.always = google_server.quota_status('RequestsPerDayPerProject')
    transcript.call('quota of the day: no retry', make(workers=1), more)
    server.always = (status.INVALID_ARGUMENT,
                     f'API key {KEY} not valid. Please pass a valid API key.')
    transcript.call('the service names the key', make(workers=1), more)


def kills(transcript: Transcript, folder: pathlib.Path) -> set[str]:
  """A process that is killed twice, over TLS and with a key; returns the keys received."""
  secure, certificate = google_server.self_signed(folder)
  path = folder / 'many.jsonl'
  transcript.say(f'# {MANY} texts, killed twice (SIGKILL) and started again, 4 workers')
  with google_server.running(secure=secure, delay=0.02) as server:
    command = [sys.executable, '-c', PROCESS, str(path), f'127.0.0.1:{server.port}']
    environment = os.environ | {'GRPC_DEFAULT_SSL_ROOTS_FILE_PATH': str(certificate),
                                'no_proxy': '127.0.0.1',
                                'PYTHONPATH': str(pathlib.Path(__file__).parents[1])}
    for kill in (1, 2):
      process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT)
      while len(server.answered) < kill * MANY // 3:
        if process.poll() is not None:
          raise SystemExit(process.communicate()[0])
        time.sleep(0.002)
      process.send_signal(signal.SIGKILL)
      transcript.lines += process.communicate()[0].splitlines()
      transcript.say(f'(killed after {_kept(path)} kept scores)')
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=True)
    transcript.say(done.stdout.strip())
    transcript.lines += done.stderr.splitlines()
    transcript.say(f'answers paid for: {len(server.answered)}, of different texts: '
                   f'{len(set(server.answered))}\n')
    return server.keys


def _kept(path: pathlib.Path) -> int:
  """Whole lines behind the first one, which says whose scores they are."""
  return path.read_bytes().count(b'\n') - 1


def main() -> None:
  """Prints the transcript; exit code 1 if the key is anywhere in it."""
  os.environ['FAIRJAX_GOOGLE_API_KEY'] = KEY
  transcript = Transcript()
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    failures(transcript, folder)
    received = kills(transcript, folder)
    files = [p for p in folder.rglob('*') if p.is_file()]
    lines = sum(KEY in line for line in transcript.lines)
    found = sum(KEY.encode() in p.read_bytes() for p in files)
    os.chdir('/')
  if received != {KEY}:
    raise SystemExit('the server did not receive the key: the search says nothing')
  print(f'# grep for the key, which the server did receive: {lines} of '
        f'{len(transcript.lines)} lines of output, {found} of {len(files)} files')
  sys.exit(bool(lines or found))


if __name__ == '__main__':
  main()
