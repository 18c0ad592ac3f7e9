"""The command line: closed pipes, spellings, the program's name twice, groups, interruptions."""

import argparse
import math
import os
import re
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from golden_models import copied

from fairjax import processes
from fairjax.cli import main as cli
from fairjax.cli.verb import print_result
from fairjax.errors import UserError
from fairjax.tpu.launch.plan import Run
from fairjax.tpu.launch.supervise import Executor

SHOW = ['step', 'config', '--config=configs/quickstart.py']


@pytest.mark.parametrize('words', [SHOW, ['attributes', 'list']])
def test_a_reader_that_is_gone_ends_a_verb_quietly(repository, words):
  process = subprocess.Popen([sys.executable, '-m', 'fairjax', *words], cwd=repository,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
  process.stdout.close()
  assert process.stderr.read() == ''
  assert process.wait() == 141


def test_a_reader_of_both_outputs_that_is_gone_ends_an_error_quietly(repository):
  process = subprocess.Popen(['bash', '-c', '"$0" -m fairjax trian 2>&1 | head -n 0; '
                              'echo "${PIPESTATUS[0]}" >&2', sys.executable], cwd=repository,
                             stderr=subprocess.PIPE, text=True)
  assert process.communicate()[1] == '141\n'


def test_a_broken_pipe_that_is_not_ours_is_a_fault(monkeypatch):
  def broken(argv):
    raise BrokenPipeError(32, 'a socket')

  monkeypatch.setattr(cli, '_run', broken)
  with pytest.raises(BrokenPipeError):
    cli.main(['doctor'])


@pytest.mark.parametrize('array', [np.zeros, jnp.zeros])
def test_too_little_memory_is_one_line(monkeypatch, capsys, array):
  def run(options):
    array(1 << 50)

  monkeypatch.setattr(cli, 'parse', lambda argv: argparse.Namespace(verb='x', run_command=run))
  assert cli.main(['measure']) == 1
  line, = capsys.readouterr().err.splitlines()
  assert 'memory' in line and '--batch-size' in line
  with pytest.raises((MemoryError, RuntimeError)):
    cli.main(['measure', '--debug'])


def test_of_several_processes_one_prints_a_result(monkeypatch, capsys):
  monkeypatch.setattr(processes, 'is_first', lambda: False)
  print_result(argparse.Namespace(json=True), {}, str)
  assert capsys.readouterr().out == ''


def test_a_full_disk_of_xla_is_no_lack_of_memory(monkeypatch):
  def run(options):
    raise RuntimeError('RESOURCE_EXHAUSTED: /x.xplane.pb; No space left on device')

  monkeypatch.setattr(cli, 'parse', lambda argv: argparse.Namespace(verb='x', run_command=run))
  with pytest.raises(RuntimeError, match='No space'):
    cli.main(['run'])


def test_what_a_launch_shows_ends_its_command_when_nobody_reads(tmp_path, monkeypatch):
  class Gone:
    def write(self, text):
      raise BrokenPipeError(32, 'Broken pipe')

  monkeypatch.setattr(sys, 'stdout', Gone())
  with pytest.raises(BrokenPipeError):
    Executor(tmp_path, log=print).run(Run(('yes',), 'write for ever'))


def test_both_spellings_reach_the_verb():
  launch = ['tpu', 'run', '--tpu=v3-8', '--zone=z']
  assert cli.parse([*launch, '--dry-run', '--valid-until', '1_h-x']).valid_until == '1_h-x'
  assert cli.parse([*launch, '--dry_run']).dry_run
  assert cli.parse([*launch, '--runtime-v=a']).runtime_version == 'a'  # the beginning is enough
  assert cli.parse(['sample', '--max_new_tokens=3', '--prompts_only']).max_new_tokens == 3
  assert cli.parse(['step', 'train', '--config=c', '--workdir=w', '--config.lm.batch-size', '3']
                   ).overrides == {'lm.batch_size': '3'}
  with pytest.raises(UserError, match='lm.batch_size is given twice'):
    cli.parse([*SHOW, '--config.lm.batch-size=3', '--config.lm.batch_size=4'])
  with pytest.raises(UserError, match='unrecognized arguments: --max-new-tokens=3 .*run --help'):
    cli.parse([*launch, '--max_new_tokens=3'])


@pytest.mark.parametrize(('words', 'nearest'), [
  (['run', '--config=c', '--workdir=w', '--lm.steps=3'], '--config.lm.steps=3'),
  (['run', '--config=c', '--workdir=w', 'debias.steps=3'], '--config.debias.steps=3'),
  (['tpu', 'run', '--tpu=v3-8', '--zone=z', '--dry-rnu'], '--dry-run'),
  (['human', 'import', 'a.csv', '--key=k', '--output=o', '--min_rater_=3'], '--min-raters=3'),
])
def test_an_unknown_option_gets_the_nearest_one(words, nearest):
  with pytest.raises(UserError, match=f'did you mean {nearest}[?]'):
    cli.parse(words)


def test_a_required_option_that_is_misspelt_is_shown():
  with pytest.raises(UserError, match='required: --workdir; unrecognized: --work-dir [(]see'):
    cli.parse(['run', '--conf=c', '--work_dir=w'])


def test_a_word_that_is_no_option_is_no_misspelt_one():
  with pytest.raises(UserError, match=r'unrecognized arguments: b.jsonl \(see'):
    cli.parse(['measure', '--records', 'a.jsonl', 'b.jsonl'])


@pytest.mark.parametrize('words', [
  'report --records', 'records convert --records=r --output=o --scores', 'measure --lexicon',
  'attributes check country --lexicon', 'gender tables --embeddings=e --records',
  'models masked-lm --workdir=w --data', 'gender pronouns --shares=s --model',
  'compare paper --pairs', 'gender cda --input=i --names',
  'gender lipschitz --records=r --bias', 'gender lipschitz --records=r --distance'])
def test_files_of_an_option_that_is_given_twice_are_all_read(words):
  name = words.rpartition('--')[2]
  assert vars(cli.parse([*words.split(), 'a', 'b', f'--{name}=c']))[name] == ['a', 'b', 'c']


def test_a_value_that_would_replace_another_is_refused():
  words = ['measure', '--records=a', '--attribute=country', '--seed=3', '--seed', '3']
  assert cli.parse(words).seed == 3
  assert math.isnan(cli.parse(['records', 'plan', '--effect=nan']).effect)
  for more in (['--seed=4'], ['--records', 'b']):
    with pytest.raises(UserError, match=f'{more[0][:6]}.* is given twice'):
      cli.parse([*words, *more])
  assert cli.parse(words).records == 'a'  # parsed anew


def test_what_everybody_types_first(capsys, printed):
  import fairjax
  for words in (['--version'], ['version']):
    with pytest.raises(SystemExit) as end:
      cli.main(words)
    assert not end.value.code and capsys.readouterr().out == f'fairjax {fairjax.__version__}\n'
  for words in (['help'], ['help', 'measure'], ['help', 'scorers'],
                ['scorers', 'lexicon', '--help']):
    with pytest.raises(SystemExit) as end:
      cli.main(words)
    assert not end.value.code and 'usage: fairjax' in capsys.readouterr().out
  with pytest.raises(UserError, match='unrecognized arguments: train b .*help step'):
    cli.parse(['help', 'step', 'data', 'train', 'b'])
  with pytest.raises(UserError, match='unrecognized arguments: b .*help measure'):
    cli.parse(['help', 'measure', 'b'])
  shown = printed()
  assert all(f'  {name} ' in shown for name in cli.VERBS)  # each stands in some group


def test_completion_knows_verbs_and_options(printed):
  script = printed('completion', 'bash')
  assert all(word in script for word in (
    *cli.VERBS, '--permutations', '--dry-run', '_shtab_fairjax_help_pos_0_choices'))
  subprocess.run(['bash', '-n'], input=script, text=True, check=True)


@pytest.mark.parametrize('program', [
  ['fairjax'], ['.venv/bin/fairjax'], ['python', '-m', 'fairjax'], ['python3.11', '-m', 'fairjax'],
  ['/usr/bin/python3', '-m', 'fairjax'], []])
def test_the_program_may_be_named_before_the_command_of_a_launch(program):
  words = ['run', '--config=x', '--workdir=gs://my-bucket/x']
  options = cli.parse(['tpu', 'run', '--tpu=v3-8', '--zone=z', '--', *program, *words])
  assert options.command == words and options.inner.verb == 'run'


def test_a_group_that_is_not_there_is_said(repository, tmp_path):
  done = subprocess.run(  # alone: a process that has computed cannot join at all
    [sys.executable, '-m', 'fairjax', 'report', *SHOW[2:], f'--workdir={tmp_path}/w',
     '--distributed'], cwd=repository, capture_output=True, text=True)
  assert done.returncode == 2 and done.stderr.count('\n') == 1 and not (tmp_path / 'w').exists()
  assert re.search('finds no group here.*leave --distributed out.*--distributed=HOST:PORT,COUNT,',
                   done.stderr)


@pytest.mark.parametrize(('words', 'message'), [
  (['attributes', 'list', '--distributed'],
   '--distributed: fairjax attributes list runs in one process; leave it out'),
  (['doctor', '--distributed=auto'], '--distributed=auto: fairjax doctor runs in one process'),
  (['compare', 'reports', 'a', 'b', '--distributed'], 'reports runs in one process'),
])
def test_what_runs_in_one_process_refuses_a_group(words, message, refused):
  refused(words, message)
  assert not processes.started()


def test_debug_shows_the_traceback(in_repository):
  with pytest.raises(UserError):
    cli.main(['step', 'config', '--config=configs/none.py', '--debug'])


# The first compilation after the sampler's noise was asked for gets SIGTERM in its midst.
SIGNALLED = '''
import os, signal, sys, threading, time, traceback
from fairjax.cli import main as cli
from fairjax.generate import noise
before, watches = noise.seed_words, []
def compiling():
  try:
    return any('backend_compile' in frame.f_code.co_name for frame, _ in traceback.walk_stack(
      sys._current_frames()[threading.main_thread().ident]))
  except AttributeError:  # the main thread left a frame while it was read
    return False
def interrupt():
  while not compiling():
    time.sleep(0.01)
  os.kill(os.getpid(), signal.SIGTERM)
def place(*arguments, **options):
  if not watches:
    watches.append(threading.Thread(target=interrupt, daemon=True))
    watches[0].start()
  return before(*arguments, **options)
noise.seed_words = place
sys.exit(cli.main())
'''


def test_sampling_that_is_terminated_while_it_compiles_ends_with_42(tmp_path, repository):
  faith, gpt2 = tmp_path / 'faith.yaml', copied(tmp_path / 'gpt2', 'gpt2', eos_token_id=0)
  faith.write_text('name: faith\nvalues: [a, b]\ntemplates:\n  - the {value} was\n')
  found = subprocess.run(
    [sys.executable, '-c', SIGNALLED, 'sample', f'--pretrained={gpt2}', f'--attribute={faith}',
     '--output=k.jsonl', '--samples=2000', '--batch-size=2000', '--max-new-tokens=20'],
    cwd=tmp_path, capture_output=True, text=True, timeout=300, env=os.environ | {
      'PYTHONPATH': str(repository), 'JAX_PLATFORMS': 'cpu',
      'JAX_ENABLE_COMPILATION_CACHE': 'false'})
  assert found.returncode == processes.PREEMPTED, found.stderr
  assert found.stderr.count('\n') == 1
  assert 'interrupted; the same command continues' in found.stderr
