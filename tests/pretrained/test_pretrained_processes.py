"""`--distributed` without a workdir: GPT-2 sampled by two processes; what is not shared refuses."""

import json

import pytest
from groups import run_group

from fairjax.cli import main as cli


@pytest.fixture
def folder(copy, tmp_path):
  """The golden GPT-2 with an end-of-text id of its own, and an attribute."""
  copy('gpt2', eos_token_id=0).rename(tmp_path / 'gpt2')
  (tmp_path / 'town.yaml').write_text(
    'name: town\nvalues: [Rome, Oslo]\ntemplates:\n  - The {value} is\n')
  return tmp_path


def test_two_processes_sample_what_one_samples_and_the_first_writes(
    repository, folder, tmp_path, one_device):
  paths = [tmp_path / name for name in ('one.jsonl', 'two.jsonl')]
  command = ['sample', f'--pretrained={folder / "gpt2"}', f'--attribute={folder / "town.yaml"}',
             '--samples=7', '--max-new-tokens=6', '--batch-size=4']
  group = run_group(['-m', 'fairjax', *command, f'--output={paths[1]}'], repository)
  assert [code for code, _, _ in group] == [0, 0], group
  assert cli.main([*command, f'--output={paths[0]}']) == 0
  assert paths[0].read_bytes() == paths[1].read_bytes()
  assert len(paths[0].read_text().splitlines()) == 2 * 7
  kept = [json.loads(p.with_name(f'{p.stem}.next_token.json').read_text()) for p in paths]
  assert kept[0]['identity'] == kept[1]['identity']
  (_, first, _), (_, second, _) = group
  assert 'measure it with' in first and 'town' not in second


def test_what_one_process_does_alone_refuses_a_group(refused, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  refused(['sample', '--prompts-only', '--attribute=country', '--output=p.jsonl',
           '--distributed=127.0.0.1:9,2,1'], 'runs in one process; leave it out')
  assert not list(tmp_path.iterdir())
