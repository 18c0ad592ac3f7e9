"""Progress: one line that is updated on a terminal, few plain lines in a log, JSON left alone."""

import json
import os
import pty
import re
import subprocess
import sys
import termios

import pytest
from record_cases import records_of, write_lines

from fairjax import progress
from fairjax.counterfactual import load_attribute
from fairjax.progress import Progress, write_line

COUNTRY = load_attribute('country')
WORK = '''
import sys, time
from fairjax import progress
progress.BAR_INTERVAL_SEC = progress.INTERVAL_SEC = 0
def log(line):
  progress.write_line(line, sys.stdout)
with progress.Progress('[train] rows', 40, unit='rows', log=log, done=10) as p:
  for i in range(30):
    time.sleep(0.01)
    p.add(1, lambda: f'loss {i}')
    if i == 14:
      log('a line between')
log('the end')
'''


def run_on_terminal(arguments, *, stdout_too, columns=90):
  """(stdout, what the terminal got) of a process whose stderr is a terminal."""
  master, slave = pty.openpty()
  termios.tcsetwinsize(slave, (24, columns))
  process = subprocess.Popen(
    [sys.executable, *arguments], stdin=subprocess.DEVNULL, stderr=slave,
    stdout=slave if stdout_too else subprocess.PIPE)
  os.close(slave)
  seen = b''
  while True:
    try:
      part = os.read(master, 1 << 16)
    except OSError:  # Linux: the other end is closed
      break
    if not part:
      break
    seen += part
  out = process.stdout.read() if process.stdout else b''
  os.close(master)
  assert process.wait() == 0, seen.decode()
  return out.decode(), seen.decode()


def screen(text):
  """The lines that are left on a terminal that got `text`."""
  lines, column = [''], 0
  for sign in re.sub(r'\x1b\[[0-9;]*m', '', text):
    if sign == '\r':
      column = 0
    elif sign == '\n':
      lines.append('')
    else:
      assert sign.isprintable(), repr(sign)
      lines[-1] = lines[-1][:column].ljust(column) + sign + lines[-1][column + 1:]
      column += 1
  return [line.rstrip() for line in lines if line.strip()]


def test_on_a_terminal_one_line_is_updated_and_lines_stand_above_it():
  _, seen = run_on_terminal(['-c', WORK], stdout_too=True)
  assert screen(seen) == ['a line between', 'the end']
  bars = [part for part in seen.split('\r') if '[train] rows' in part]
  assert len(bars) > 20 and all(len(bar.rstrip()) <= 90 and '\n' not in bar for bar in bars)
  # Resumed work starts at what is done: 10 of 40 are a quarter.
  assert '25%' in bars[0] and '10/40' in bars[0] and '40/40' in bars[-1]
  assert re.search(r'39/40 \[\d\d:\d\d<\d\d:\d\d, .* rows/s, loss 28\]', seen)  # rate, ETA, words


def test_in_a_log_there_are_plain_lines():
  result = subprocess.run([sys.executable, '-c', WORK], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, check=True)
  assert result.stderr == '' and '\r' not in result.stdout
  lines = result.stdout.splitlines()
  assert lines[15] == 'a line between' and lines[-1] == 'the end' and len(lines) == 32
  assert re.fullmatch(
    r'\[train\] rows: 11 of 40 rows, [\d.]+ rows/s, loss 0(, ETA 0:\d\d)?', lines[0])
  assert lines[-2].startswith('[train] rows: 40 of 40 rows, ') and 'ETA' not in lines[-2]


@pytest.fixture
def records(tmp_path):
  return write_lines(tmp_path / 'r.jsonl', records_of(
    load_attribute('country'), 3, lambda p, i: f' good {i} .', 1))


def test_json_on_stdout_stays_json_beside_a_bar(records):
  code = ('from fairjax import progress; from fairjax.cli.main import main; '
          'progress.BAR_INTERVAL_SEC = 0; raise SystemExit(main())')
  out, seen = run_on_terminal(
    ['-c', code, 'measure', f'--records={records}', '--attribute=country', '--scorer=vader',
     '--permutations=20', '--json'], stdout_too=False)
  assert json.loads(out)['records'] == 30
  assert 'reading: 30 records' in seen and 'pairs of values: 100%' in seen
  assert screen(seen) == ['vader: scored 3 texts']


def test_a_closed_stderr_takes_nothing_from_stdout(records):
  done = subprocess.run(
    ['bash', '-c', '"$0" -m fairjax "$@" 2>&-', sys.executable, 'measure', '--attribute=country',
     f'--records={records}', '--scorer=vader', '--permutations=20', '--json'],
    stdout=subprocess.PIPE, check=True)
  assert json.loads(done.stdout)['records'] == 30


class Clock:
  def __init__(self):
    self.now = 100.0

  def __call__(self):
    return self.now


@pytest.fixture
def clock(monkeypatch):
  clock = Clock()
  monkeypatch.setattr(progress.time, 'monotonic', clock)
  return clock


def test_plain_lines_come_at_a_bounded_rate_and_ask_for_words_then_only(clock):
  lines, asked = [], []
  with Progress('x', 1000, unit='things', log=lines.append, done=400) as p:
    for _ in range(600):
      clock.now += 0.125
      p.add(1, lambda: asked.append(1) or f'{len(asked)}. words')
  assert len(lines) == len(asked) == 7  # in 75 seconds
  assert lines[0] == 'x: 480 of 1,000 things, 8 things/s, 1. words, ETA 1:05'


def test_the_rate_counts_only_what_was_done_now(clock):
  p = Progress('x', 1000, unit='things', log=print)
  p.skip(900)
  clock.now += 50
  p.add(10)
  assert p.line() == 'x: 910 of 1,000 things, 0.2 things/s, ETA 7:30'
  unknown = Progress('y', None, unit='records', log=print)
  assert unknown.line() == 'y: 0 records'
  clock.now += 2
  unknown.add(3000)
  assert unknown.line() == 'y: 3,000 records, 1,500 records/s'


def test_an_error_closes_the_bar(monkeypatch, capsys):
  monkeypatch.setattr(sys.stderr, 'isatty', lambda: True, raising=False)
  with pytest.raises(RuntimeError), Progress('x', 3, unit='things', log=print):
    assert len(progress._open_bars) == 1
    raise RuntimeError
  assert progress._open_bars == []
  write_line('plain', sys.stdout)
  assert capsys.readouterr().out == 'plain\n'


@pytest.mark.parametrize('shown', ['no log', 'another process'])
def test_without_a_log_and_in_other_processes_nothing_is_shown(monkeypatch, capsys, shown):
  monkeypatch.setattr(sys.stderr, 'isatty', lambda: True, raising=False)
  monkeypatch.setattr(progress.processes, 'is_first', lambda: shown == 'no log')
  with Progress('x', 3, unit='things', log=None if shown == 'no log' else lambda line: None) as p:
    p.add(3)
  assert capsys.readouterr() == ('', '')


def test_lines_of_native_code_are_held_back_and_no_others():
  code = ('import os\nfrom fairjax.progress import without_native_lines\n'
          'with without_native_lines():\n'
          '  os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called\\n")\n'
          '  os.write(2, b"I0000 00:00:1795688498.076133 753 port.cc:153] oneDNN\\nours\\n")\n'
          '  raise ValueError("of ours")')
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
  assert done.stderr.startswith('ours\nTraceback') and 'ValueError: of ours' in done.stderr
  assert 'oneDNN' not in done.stderr
