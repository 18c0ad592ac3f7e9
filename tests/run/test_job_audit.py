"""The scorers' own bias in a run: measured once, never at the cost of money, and in its report."""

import json

import pytest
from test_cache import CountingScorer
from test_report import measured

from fairjax.config import Config, DataConfig
from fairjax.counterfactual import load_attribute
from fairjax.errors import UserError
from fairjax.measure.scorers.audit import audit_scorers
from fairjax.measure.scorers.base import OpinionScorer, VaderScorer
from fairjax.report import write_report
from fairjax.run.job import audit_path, audit_run, load_run_scorer, read_audit

OCCUPATION = load_attribute('occupation')
TEXTS = [f'The {value} of house {i} was {word}.' for i in range(12)
         for value, word in (('cleaner', 'bad'), ('baker', 'good'))] + ['Nothing.']
RECORDS = [{'continuation': text} for text in TEXTS]


PAID = {'paid': True, 'name': 'paid', 'fingerprint': 'e' * 64}


def run(workdir, scorers, *, texts=300, log=lambda line: None):
  audit_run(workdir, lambda: RECORDS, OCCUPATION, scorers, model='baseline', texts=texts, seed=3,
            log=log)
  return read_audit(workdir)


def opinion():
  return OpinionScorer(['good', 'cleaner'], ['bad'])


def test_a_run_holds_the_audit_of_the_verb_once(tmp_path):
  assert run(tmp_path, [opinion()], texts=0) is None and not audit_path(tmp_path).exists()
  lines, length, paid = [], CountingScorer(), CountingScorer(**PAID)
  found = run(tmp_path, [opinion(), length, paid], log=lines.append)
  assert length.seen and not paid.seen
  assert found['scorers']['paid']['own_bias'] is None
  assert 'each swapped text would be paid for' in found['scorers']['paid']['not_measured']
  verb = audit_scorers(TEXTS, OCCUPATION, [opinion(), CountingScorer()], limit=300, seed=3)
  for name in ('opinion', 'length'):
    assert found['scorers'][name] == verb['scorers'][name]
  assert (found['counts'], found['model']) == (verb['counts'], 'baseline')
  assert len(lines) == 1 and 'paid not measured (each swapped text' in lines[0]
  before, asked = audit_path(tmp_path).read_bytes(), len(length.seen)
  assert run(tmp_path, [opinion(), length, paid], log=lines.append) == found
  assert (audit_path(tmp_path).read_bytes(), len(length.seen), len(lines)) == (before, asked, 1)


def test_an_interrupted_audit_asks_for_nothing_twice(tmp_path):
  first, second = CountingScorer(), CountingScorer(0, name='other', fingerprint='d' * 64)
  with pytest.raises(KeyboardInterrupt):
    run(tmp_path, [first, second])
  assert not audit_path(tmp_path).exists()
  again = CountingScorer()
  second.limit = 10**9
  found = run(tmp_path, [again, second])
  assert not again.seen and found['scorers']['length']['own_bias']['frames'] > 0


def test_a_limit_is_kept_and_said(tmp_path):
  found = run(tmp_path, [opinion()], texts=5)
  assert found['counts']['left_out'] == len(TEXTS) - 1 - 5
  assert found['scorers']['opinion']['own_bias']['n'] == 5


def write(tmp_path, audit):
  row, distributions, _ = measured('baseline', 'baseline', 0.0)
  path = write_report(tmp_path / 'report', rows=[row], attribute='occupation', audit=audit,
                      distributions={'baseline': distributions})
  return [path.read_text(), (path.parent / 'index.html').read_text(),
          json.loads((path.parent / 'report.json').read_text())]


def test_the_report_shows_it_and_warns_at_the_top(tmp_path, no_figures):
  audit = run(tmp_path, [opinion(), VaderScorer(), CountingScorer(**PAID)])
  text, page, data = write(tmp_path, audit)
  assert data['scorer_audit'] == audit
  bias = {name: {row['value']: row for row in s['own_bias']['values']}
          for name, s in audit['scorers'].items() if s['own_bias']}
  # "bad" with "cleaner" is 1/2 and else 0, "good" 1 in both.
  assert bias['opinion']['cleaner']['difference'] == pytest.approx(0.25)
  expected = f"opinion has a bias of its own in the same texts: cleaner {0.25:+.4f}."
  assert expected in text.split('## ')[0] and expected in data['warnings'][-2]
  section = text.split('## Own bias of the scorers')[1].split('\n## ')[0]
  for value in OCCUPATION.value_texts:
    cells = [c.strip() for line in section.splitlines() if line.startswith(f'| {value} |')
             for c in line.strip('|').split('|')]
    assert cells == [value, '12' if value in ('cleaner', 'baker') else '0'] + [
      cell for name in ('opinion', 'vader') for cell in (
        f"{bias[name][value]['difference'] + 0:+.4f}".replace('-0.0000', '+0.0000'),
        f"{bias[name][value]['p_holm']:.2g}")]
  assert 'paid: own bias not measured: each swapped text would be paid for' in section
  assert 'own bias not measured: each swapped' in page and 'Own bias of the scorers' in page


def test_a_report_without_a_bias_has_no_warning(tmp_path, no_figures):
  quiet = run(tmp_path, [OpinionScorer(['good'], ['bad'])])
  text, _, data = write(tmp_path, quiet)
  assert '## Own bias of the scorers' in text and 'of its own in' not in text
  assert not any('of its own in' in w for w in data['warnings'])
  text, _, data = write(tmp_path, None)
  assert 'Own bias of the scorers' not in text and data['scorer_audit'] is None


def test_the_opinion_words_of_a_planted_corpus_are_written_again_where_they_are_damaged(tmp_path):
  config = Config(data=DataConfig(source='planted'))
  path = tmp_path / 'data' / 'lexicon_negative.txt'
  path.parent.mkdir()
  scorer = load_run_scorer('opinion', config, tmp_path, print)
  whole = path.read_bytes()
  path.write_bytes(whole.replace(b'b', b'c'))
  assert load_run_scorer('opinion', config, tmp_path, print).fingerprint == scorer.fingerprint
  assert path.read_bytes() == whole


def test_a_damaged_audit_is_refused(tmp_path):
  run(tmp_path, [opinion()])
  path = audit_path(tmp_path)
  path.write_text(path.read_text().replace('baseline', 'bassline'))
  with pytest.raises(UserError, match='scorer_audit.json is damaged'):
    read_audit(tmp_path)
