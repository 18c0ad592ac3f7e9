"""What must not leave the machine or get in: secrets, other people's archives, hostile texts."""

import argparse
import re
import subprocess
import sys

import pytest
from test_architecture import ROOT
from test_inputs import zipped

from fairjax.cli import main as cli
from fairjax.data import wikitext as wikitext_files
from fairjax.data.wikitext import find_wikitext
from fairjax.errors import UserError

SECRETS = ('HF_TOKEN', 'WANDB_API_KEY', 'FAIRJAX_GOOGLE_API_KEY', 'FAIRJAX_ENDPOINT_KEY',
           'AWS_SECRET_ACCESS_KEY', 'GOOGLE_OAUTH_ACCESS_TOKEN')
CANARY = 'canary-5f1b2c7e90d4'
SMALL = ['--config=configs/quickstart.py', '--config.data.planted_documents=60',
         '--config.data.planted_heldout_documents=10', '--config.data.vocab_size=600',
         '--config.data.reader=numpy']


def options_of(parser: argparse.ArgumentParser) -> list[str]:
  found = []
  for action in parser._actions:
    found += action.option_strings
    if isinstance(action, argparse._SubParsersAction):
      for part in action.choices.values():
        found += options_of(part)
  return found


def test_no_option_takes_a_secret(capsys):
  """Other users of a machine see the words of a command."""
  found = [o for o in options_of(cli.make_parser())
           if re.search('secret|password|passwd|token$|api.?key|credential', o)]
  assert found == ['--secret']  # of launch: the name of a variable, never its value
  launch = ['tpu', 'run', '--tpu=v5litepod-16', '--zone=us-east5-a', '--dry_run']
  for option in ('--secret=HF_TOKEN=', '--env=HF_TOKEN='):
    assert cli.main([*launch, option + CANARY, '--', 'doctor']) == 2
    shown = ''.join(capsys.readouterr())
    assert 'HF_TOKEN' in shown and CANARY not in shown


def test_no_environment_variable_reaches_a_file_or_the_output(tmp_path):
  import os
  environment = os.environ | {name: f'{CANARY}-{name}' for name in SECRETS}
  commands = [['step', 'data', *SMALL, f'--workdir={tmp_path / "run"}'], ['step', 'config', *SMALL],
              ['doctor'], ['step', 'check-data', f'--workdir={tmp_path / "run"}'],
              ['step', 'data', *SMALL, '--config.seed=3', f'--workdir={tmp_path / "run"}']]
  script = ('import sys\nfrom fairjax.cli.main import main\n'
            f'print([main(words) for words in {commands!r}])')
  found = subprocess.run([sys.executable, '-c', script], cwd=ROOT, env=environment, text=True,
                         capture_output=True, check=False, timeout=600)
  assert found.stdout.splitlines()[-1] == '[0, 0, 0, 0, 2]', found.stderr[-2000:]
  assert CANARY not in found.stdout + found.stderr
  files = [p for p in tmp_path.rglob('*') if p.is_file()]
  assert len(files) > 30
  assert not [p for p in files if CANARY.encode() in p.read_bytes()]


def test_a_zip_writes_only_the_files_that_are_known(tmp_path):
  names = [f'wiki.{s}.tokens' for s in ('train', 'valid', 'test')]
  (tmp_path / 'wikitext-2-v1.zip').write_bytes(zipped({
    **{f'../../{name}': f' = {name} = \n' for name in names}, '../evil.txt': 'x', '/abs.txt': 'x'}))
  found = find_wikitext('wikitext2', tmp_path, unpack_to=tmp_path / 'a' / 'b')
  assert sorted(p.name for p in found.values()) == sorted(names)
  written = [p for p in tmp_path.rglob('*') if p.is_file() and p.suffix != '.zip']
  assert sorted(written) == sorted(tmp_path / 'a' / 'b' / name for name in names)


def test_a_zip_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(wikitext_files, 'MOST_UNPACKED_BYTES', 1000)
  (tmp_path / 'wikitext-2-v1.zip').write_bytes(zipped({
    f'wiki.{s}.tokens': 'x' * 1001 for s in ('train', 'valid', 'test')}))
  with pytest.raises(UserError, match='would have 1,001 bytes: it is not the official zip'):
    find_wikitext('wikitext2', tmp_path, unpack_to=tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


def test_a_saved_configuration_runs_no_code(tmp_path):
  """`config.json` is data: what looks like code in it stays a text."""
  import json

  from fairjax.config_io import load_config, to_dict
  config = to_dict(load_config(str(ROOT / 'configs/quickstart.py')))
  config['name'] = '__import__("os").mkdir("made")'
  config['data']['train'] = ['$(touch made)', '`touch made`']
  path = tmp_path / 'config.json'
  path.write_text(json.dumps({'config': config}))
  before = sorted(tmp_path.iterdir())
  assert load_config(str(path)).data.train == ('$(touch made)', '`touch made`')
  assert sorted(tmp_path.iterdir()) == before


def test_hostile_names_stay_text_in_figures(tmp_path):
  """An unbalanced formula would stop matplotlib; tags would be live in the SVG."""
  from fairjax.report.figures import plot_fairness
  for i, text in enumerate(('$\\frac{', '<script>alert(1)</script>', '%s{0}', '$x$ & "y"')):
    plot_fairness(tmp_path / str(i), models=['base', text], methods=['baseline', 'embedding'],
                  estimates={text: {text: [None, None]}})
    assert '<script' not in (tmp_path / f'{i}.svg').read_text()
    assert (tmp_path / f'{i}.png').stat().st_size > 1000
