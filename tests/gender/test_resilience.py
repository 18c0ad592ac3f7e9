"""The verb `resilience`: fine-tuning by step and by frozen part, end to end on a tiny BERT."""

import json
import pathlib

import jax
import numpy as np
import pytest

from fairjax.cli.gender_verbs import format_finetune
from fairjax.cli.main import main
from fairjax.data.planted_gender import write_sts, write_tables
from fairjax.gender.stsb import curve_steps
from fairjax.pretrained import heads as tokens
from fairjax.run.notebook import quick_compilation
from fairjax.train import make_mesh

BERT = pathlib.Path(__file__).parents[1] / 'golden' / 'pretrained' / 'bert_classifier'


@pytest.mark.parametrize(('total', 'points'), [(540, 5), (6, 3), (7, 100), (1, 1), (100, 0)])
def test_points_rise_from_the_head_to_before_the_end(total, points):
  found = curve_steps(total, points)
  if not points:
    assert found == ()
    return
  assert found[0] == 0 and list(found) == sorted(set(found)) and found[-1] < total
  assert len(found) <= points
  gaps = np.diff([*found, total])
  assert (np.diff(gaps) >= -1).all()  # denser at the beginning, but for rounding


def test_steps_and_freezes_end_to_end(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(tokens, 'make_mesh', lambda config: make_mesh(config, jax.devices()[:1]))
  write_sts(tmp_path / 'sts', seed=0, pairs=32, templates=3)
  write_tables(tmp_path)
  shares = tmp_path / 'professions.tsv'
  shares.write_text(shares.read_text().replace('bls_pct_female', 'mine'))
  command = ['resilience', 'finetune', f'--model={BERT}', f'--stsb={tmp_path}/sts',
             f'--professions={tmp_path}/professions.tsv', f'--output={tmp_path}/out',
             '--freeze=none,all', '--points=2', '--curve_templates=2', '--restarts=2',
             '--epochs=1', '--batch_size=8', '--learning_rate=0.001', '--column=mine']
  with quick_compilation():
    assert main(command) == 0
    said = capsys.readouterr().out
    result = json.loads((tmp_path / 'out' / 'resilience.json').read_text())
    whole, head = result['runs']
    assert (whole['freeze'], head['freeze']) == ('none', 'all')
    assert [p['step'] for p in whole['curves']] == [0, 1]
    assert [p['step'] for p in head['curves']] == [1] and whole['steps'] == 4
    # Three sentences, each after "A man" and after "A woman".
    assert whole['templates'] == 6 and whole['curve_templates'] == 2 and whole['r']['n'] == 24
    assert whole['truncated'] > 0 and len(whole['dev_pearson']['restarts']) == 2
    assert said.strip() == format_finetune(result).strip()
    assert said.count('\n| ') == 4  # the header, its rule, a row each
    assert {p.suffix for p in (tmp_path / 'out').glob('resilience.*')} == {'.json', '.png', '.svg'}
    files = {p: p.read_bytes() for p in (tmp_path / 'out').rglob('restart-*.json')}
    assert len(files) == 4
    # The same command reads what is there; another one is refused.
    assert main([*command, '--json']) == 0
    assert json.loads(capsys.readouterr().out) == result
    assert {p: p.read_bytes() for p in (tmp_path / 'out').rglob('restart-*.json')} == files
    assert main([*command, '--epochs=2']) == 2
    assert 'belongs to another training' in capsys.readouterr().err
