"""Prompts for models behind an API, and the way back into the measures."""

import gzip
import json

import pytest

from fairjax.cli.main import main
from fairjax.counterfactual import load_attribute
from fairjax.generate.generations import write_prompts

FIELDS = {'attribute', 'value', 'subgroup', 'template', 'prefix'}


@pytest.mark.parametrize('attribute, count', [('country', 100), ('occupation', 290), ('name', 340)])
def test_every_template_and_value_is_a_line(tmp_path, attribute, count):
  loaded = load_attribute(attribute)
  for name in ('p.jsonl', 'p.jsonl.gz'):
    assert write_prompts(loaded, tmp_path / name) == count
  text = (tmp_path / 'p.jsonl').read_text('utf-8')
  assert gzip.decompress((tmp_path / 'p.jsonl.gz').read_bytes()).decode('utf-8') == text
  lines = [json.loads(line) for line in text.splitlines()]
  assert {(r['template'], r['value']): r['prefix'] for r in lines} == {
    (t, v): loaded.prefix(t, a) for t in range(len(loaded.templates))
    for a, v in enumerate(loaded.value_texts)}
  assert all(set(r) == FIELDS and r['attribute'] == attribute for r in lines)
  assert all(r['subgroup'] == loaded.values[loaded.value_index(r['value'])].subgroup for r in lines)


def test_the_round_trip(tmp_path, capsys):
  prompts, answers = tmp_path / 'prompts.jsonl', tmp_path / 'answers.jsonl'
  assert main(['sample', '--prompts-only', '--attribute=country', f'--output={prompts}']) == 0
  assert '100 prompts of country' in capsys.readouterr().out
  with open(answers, 'w', encoding='utf-8') as file:
    for line in prompts.read_text('utf-8').splitlines():
      record = json.loads(line)
      mood = 'terrible' if record['value'] == 'Syria' else 'wonderful'
      for i in range(3):
        file.write(json.dumps({**record, 'continuation': f' a {mood} place, {i}.'}) + '\n')
  assert main(['measure', f'--records={answers}', '--attribute=country', '--scorer=vader',
               '--permutations=19', '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['records'] == 300 and found['n'] == {'min': 3, 'max': 3}
  assert found['coupled'] is False  # samples of an API share no noise
  assert found['templates_not_in_records'] == []
  by_value = found['scorers']['vader']['mean_score_by_value']
  gap = by_value['Chile'] - by_value['Syria']
  # Nine of the 45 pairs differ, all by the same gap.
  assert found['scorers']['vader']['individual_fairness']['value'] == pytest.approx(gap * 9 / 45)
  assert not found['scorers']['vader']['individual_fairness']['within_floor']
  assert main(['measure', f'--records={prompts}', '--attribute=country', '--scorer=vader']) == 2
  assert 'prompts.jsonl:1: fields missing: continuation' in capsys.readouterr().err


def test_the_attribute_may_come_from_a_config(tmp_path, repository, monkeypatch):
  monkeypatch.chdir(repository)
  assert main(['sample', '--prompts-only', '--config=configs/quickstart.py:attribute=name',
               f'--output={tmp_path / "p.jsonl"}']) == 0
  assert len((tmp_path / 'p.jsonl').read_text().splitlines()) == 340


@pytest.mark.parametrize('arguments, words', [
  (['--prompts-only', '--attribute=country'], 'needs --output=FILE'),
  (['--prompts-only', '--output=p'], 'either --attribute=A or --config=FILE'),
  (['--prompts-only', '--output=p', '--attribute=contry'], "did you mean 'country'"),
  (['--prompts-only', '--output=there', '--attribute=country'], 'may hold continuations'),
  (['--prompts-only', '--output=there/p', '--attribute=country'], 'cannot be written'),
  (['--attribute=country', '--output=p'], 'belong to sample --prompts-only'),
  (['--workdir=x'], 'sample needs --config=FILE and --workdir=DIR'),
])
def test_bad_input_is_one_line(tmp_path, capsys, monkeypatch, arguments, words):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'there').write_text('mine')
  assert main(['sample', *arguments]) == 2
  error = capsys.readouterr().err
  assert words in error and error.count('\n') == 1
  assert (tmp_path / 'there').read_text() == 'mine' and not (tmp_path / 'p').exists()
