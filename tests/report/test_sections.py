"""Model selection and the alarms of fairness by erasure (H-35), on simulated models."""

import copy
import dataclasses
import json
import re

import numpy as np
import pytest
from record_cases import records_of, write_lines

from fairjax.counterfactual.attributes import Attribute, Template, Value
from fairjax.errors import UserError
from fairjax.measure import OpinionScorer, measure_records, perplexities, read_generations
from fairjax.measure.content import ContentOptions
from fairjax.report import ModelRow, select_model, write_report
from fairjax.report.comparison import relevance_measure, warnings
from fairjax.report.page import collect_distributions
from fairjax.report.sections import brief_table, selection_section

JOBS = ('baker', 'accountant', 'sheriff', 'designer')
ATTRIBUTE = Attribute(
  name='job', values=tuple(Value(t, t, (t,), 'a') for t in JOBS),
  templates=(Template('My friend is a {value}, and we', '1'),
             Template('I got a job as a {value}. I', '2')))
TOPICS = {'baker': 'cake bread oven', 'accountant': 'taxes money books',
          'sheriff': 'police county law', 'designer': 'fashion clothes brand'}


class BagOfWords:
  """An encoder: one dimension a topic, and one for all other words."""

  name, fingerprint, threshold, threshold_source = 'bag', 'b', 0.4, 'the test'

  def encode(self, texts):
    topics = [set(f'{job} {words}'.split()) for job, words in TOPICS.items()]
    rows = []
    for text in texts:
      words = [w.strip('.,') for w in text.split()]
      rows.append([sum(w in t for w in words) for t in topics] + [0.05 * len(words)])
    return np.array(rows, np.float64).reshape(-1, 5)


def simulate(*, bias, memory, samples=150):
  """Records of a model that keeps the value with probability `memory`, else writes of anything.

  The same noise for every value: a model without memory writes the same for all, as in Table 8.
  """
  def text(p, s):
    keep, topic, tone, third = np.random.default_rng([p.template, s]).random(4)
    kept, job = keep < memory, JOBS[p.value]
    about = job if kept else JOBS[int(topic * 4)]
    word = 'good' if tone < 0.5 + kept * bias * (p.value - 1.5) / 1.5 else 'awful'
    return f'saw {TOPICS[about].split()[int(third * 3)]} and it was {word}' + (
      f' for a {job}' if kept and third < 0.6 else ' indeed')
  return records_of(ATTRIBUTE, samples, text)


def row(name, method, weight, *, bias, memory, nats=3.0, kl=None):
  measures = measure_records(
    simulate(bias=bias, memory=memory), ATTRIBUTE, [OpinionScorer(['good'], ['awful'])],
    permutations=39, content=ContentOptions(
      encoder=BagOfWords(), next_token=None if kl is None else {'kl': kl}))
  perplexity = perplexities(nats * 100, tokens=100, words=100, num_bytes=500)
  return ModelRow(name, method, weight, perplexity, perplexity, measures=measures)


@pytest.fixture(scope='module')
def rows():
  """Bias falls with lambda; at 1000 because nothing of the value is left (Table 8, C.6)."""
  return [
    row('baseline', 'baseline', None, bias=0.4, memory=0.9, kl=1.0),
    row('control', 'extended_baseline', None, bias=0.4, memory=0.9, kl=1.0),
    row('embedding-1', 'embedding', 1.0, bias=0.3, memory=0.85, kl=0.9),
    row('embedding-10', 'embedding', 10.0, bias=0.15, memory=0.75, nats=3.02, kl=0.6),
    row('random-projection-10', 'random_projection', 10.0, bias=0.1, memory=0.75, kl=0.6),
    row('embedding-1000', 'embedding', 1000.0, bias=0.0, memory=0.05, kl=0.001)]


def test_the_fairest_model_is_refused_where_it_forgot_the_value(rows):
  fairest = min(rows, key=lambda r: r.estimate('opinion', 'individual_fairness')['value'])
  assert fairest.name == 'embedding-1000'
  found = select_model(rows)
  assert found['best'] == 'embedding-10' and found['relevance'] == [
    'semantic_similarity', 'semantic_similarity_c']
  by_name = {c['name']: c for c in found['candidates']}
  assert set(by_name) == {'embedding-1', 'embedding-10', 'embedding-1000'}  # controls are not
  assert found['candidates'][0]['name'] == 'embedding-1000'
  refused = by_name['embedding-1000']['refused']
  assert [reason.partition(' ')[2][:7] for reason in refused[:2]] == ['fell to', 'fell to']
  assert len(refused) == 3 and 'next token hardly depends' in refused[2]
  assert by_name['embedding-10']['refused'] == [] == by_name['embedding-1']['refused']
  for name, candidate in by_name.items():
    model = next(r for r in rows if r.name == name)
    for measure, kept in candidate['relevance'].items():
      ours, theirs = (relevance_measure(r, measure)['value'] for r in (model, rows[0]))
      assert kept['kept'] == pytest.approx(ours / theirs)
    ratio = (model.estimate('opinion', 'individual_fairness')['value']
             / rows[0].estimate('opinion', 'individual_fairness')['value'])
    assert candidate['relative_fairness'] == pytest.approx(ratio)
  assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_share_decides(rows):
  kept = {c['name']: min(r['kept'] for r in c['relevance'].values())
          for c in select_model(rows)['candidates']}
  assert kept['embedding-1'] > kept['embedding-10'] > 0.5 > kept['embedding-1000'] > 0
  told = [ModelRow(r.name, r.method, r.weight, measures=r.measures | {
    'next_token_divergence': None, 'distinct_word_divergence': None}) for r in rows]
  for name in ('embedding-10', 'embedding-1000'):
    assert select_model(told, share=kept[name])['best'] == name
    assert select_model(told, share=kept[name] + 1e-9)['best'] != name
  assert select_model(rows, share=1.0)['best'] is None


def test_other_rules(rows):
  found = select_model(rows, most_perplexity=1.0)
  assert found['best'] == 'embedding-1'  # exp(0.02) is 2 % more
  (reason,) = next(c for c in found['candidates'] if c['name'] == 'embedding-10')['refused']
  assert reason == 'perplexity rose by 2.0%'
  for measure in ('next_token_divergence', 'distinct_word_divergence'):
    found = select_model(rows, relevance=[measure])
    assert found['best'] == 'embedding-10'
    assert found['candidates'][0]['refused'][0].startswith(('KL fell', 'words less chance fell'))
  worse = row('sentiment-1', 'sentiment', 1.0, bias=0.45, memory=0.95)
  assert select_model([rows[0], worse])['candidates'][0]['refused'] == [
    'not fairer than the baseline']
  control = dataclasses.replace(rows[0], name='control')  # of a published model
  found = select_model([control, worse])
  assert found['candidates'][0]['refused'] == ['not fairer than control']
  assert "of control's S.S." in selection_section(found).body()
  assert select_model(rows, fairness='group_fairness')['best'] == 'embedding-10'


def test_what_no_longer_depends_on_the_value_is_refused_whatever_its_similarity(rows):
  """As where the value changes little besides sentiment: S.S. and S.S.c stay."""
  similar = rows[0].measures
  for key, change in (('next_token_divergence', {'kl': 0.049}),
                      ('distinct_word_divergence', similar['distinct_word_divergence'] | {
                        'within_floor': True})):
    fair = ModelRow('embedding-9', 'embedding', 9.0, measures=rows[3].measures | {
      name: similar[name] for name in ('semantic_similarity', 'semantic_similarity_c')} | {
        key: change})
    found = select_model([rows[0], fair])
    assert found['best'] is None and len(found['candidates'][0]['refused']) == 1
  fine = ModelRow('embedding-9', 'embedding', 9.0, measures=fair.measures | {
    'next_token_divergence': {'kl': 0.051},
    'distinct_word_divergence': rows[3].measures['distinct_word_divergence']})
  assert select_model([rows[0], fine])['best'] == 'embedding-9'


def test_what_cannot_be_judged_is_said(rows):
  without = [copy.deepcopy(r) for r in rows]
  for r in without:
    r.measures['semantic_similarity'] = None
  found = select_model(without)
  assert found['relevance'] == ['semantic_similarity_c']
  assert 'S.S. was not measured and judges nothing' in found['notes']
  for r in without:
    r.measures['semantic_similarity_c']['conditioned']['value'] = 0.0
  with pytest.raises(UserError, match='no measure of relevance'):
    select_model(without)
  some = [copy.deepcopy(r) for r in rows]
  some[2].measures['semantic_similarity'] = None
  refused = {c['name']: c['refused'] for c in select_model(some)['candidates']}
  assert refused['embedding-1'] == ['S.S. was not measured']
  calm = row('baseline', 'baseline', None, bias=0.0, memory=0.9)
  assert any('nothing to reduce' in n for n in select_model([calm, *rows[2:]])['notes'])


@pytest.mark.parametrize('some, arguments, words', [
  (slice(None), {'relevance': ['semantic']}, 'unknown measure of relevance'),
  (slice(None), {'fairness': 'I.F.'}, 'unknown measure of fairness'),
  (slice(None), {'scorers': ['opinio']}, "did you mean 'opinion'"),
  (slice(None), {'share': 0}, 'not in'), (slice(None), {'share': 1.1}, 'not in'),
  (slice(1, None), {}, 'baseline'), (slice(2), {}, 'fairness weight')])
def test_what_selection_refuses(rows, some, arguments, words):
  with pytest.raises(UserError, match=words):
    select_model(rows[some], **arguments)


def test_erasure_is_flagged(rows):
  def lines_of(*models):
    return [line for line in warnings([rows[0], *models]) if 'ignoring the value' in line]

  lines = lines_of(rows[-1])
  assert len(lines) >= 3
  for words in ('mentions the value in', 'stays near the meaning', 'next token hardly depends'):
    assert any(words in line for line in lines), words
  assert lines_of(*rows[1:]) == lines  # the others are fine
  assert all(': a lower bias may come, in part' in line for line in lines)  # if it is lower
  none = row('embedding-9999', 'embedding', 9999.0, bias=0.0, memory=0.0)
  assert any('no better than chance' in line for line in lines_of(none))


def test_the_report_holds_all_of_it(rows, tmp_path, no_figures):
  records = simulate(bias=0.4, memory=0.9, samples=2)
  distributions = collect_distributions(read_generations(records, ATTRIBUTE), {}, coupled=True)

  def write(rows, **options):
    return write_report(tmp_path, rows=rows, attribute='job', **options, distributions={
      row.name: distributions for row in rows}).read_text()

  text, data = write(rows), json.loads((tmp_path / 'report.json').read_text())
  assert ': embedding-10.' in text
  assert data['selection'] == json.loads(json.dumps(select_model(rows)))
  for words in ('| S.S. |', 'words (floor)', '| KL |', '## Distinct words', 'Cosine examples',
                'bits per byte', 'Encoder bag'):
    assert words in text, words
  similarity = rows[0].content('semantic_similarity')
  assert f"{similarity['mean_cosine']:.3f}" in text
  assert all(f"{e['cosine']:.3f}" in text for e in similarity['examples'])
  rule = selection_section(select_model(rows, most_perplexity=5)).body()
  assert 'at least 50%' in rule and 'at most 5% higher' in rule
  assert 'fell to' in next(x for x in rule.splitlines() if x.startswith('| embedding-1000'))
  assert ': none.' in write(rows, relevance_share=1.0)
  bare = [ModelRow('baseline', 'baseline', measures=measure_records(
    simulate(bias=0.1, memory=0.5, samples=3), ATTRIBUTE, [OpinionScorer(['good'], ['awful'])],
    permutations=5))]
  text = write(bare)
  assert 'S.S. &#40;H-27&#41; was not measured' in text or 'S.S. (H-27) was not measured' in text
  assert 'Model selection' not in text


def test_the_brief_table_takes_chance_off():
  measures = measure_records(simulate(bias=0.6, memory=0.5, samples=30), ATTRIBUTE, [
    OpinionScorer(['good'], ['awful'])], permutations=20)
  (scorer, found), = measures['scorers'].items()
  lines = {line[0]: line for line in brief_table(ModelRow('m', 'model', measures=measures)).rows}
  for name, label in (('individual_fairness', 'I.F.'), ('group_fairness', 'G.F.')):
    e, line = found[name], lines[f'{label} {scorer}']
    assert e['null_mean'] > 0.01
    assert line[1].startswith(f"{e['value']:.4f} ({e['null_p95']:.4f})")
    assert line[2:] == [f"{e['value'] - e['null_mean']:.4f}", f"{e['p_value']:.2g}", '30']


def test_measure_prints_what_stands_beside(tmp_path, printed, refused, found):
  from test_similarity import TINY

  from fairjax.counterfactual import load_attribute
  path = write_lines(tmp_path / 'r.jsonl', records_of(
    load_attribute('country'), 3, lambda p, s: ('good', 'bad', 'far')[(s + p.value) % 3], 2))
  base = ['measure', f'--records={path}', '--attribute=country', '--scorer=vader',
          '--permutations=5']
  shown = printed(*base)
  for words in ('S.S. (H-27) was not measured for r: no sentence encoder',
                'KL of the next token was not measured for r: records hold texts only'):
    assert words in shown
  tiny = [*base, f'--encoder=minilm:{TINY}', '--similarity-samples=2']
  similarity = found(*tiny, '--similarity-threshold=baseline:0.25',
                     f'--baseline-records={path}')['semantic_similarity']
  assert similarity['n'] == 40 and similarity['left_out'] == 20 and similarity['value'] <= 0.25
  assert similarity['threshold_source'] == 'calibrated: 0.25 of the baseline are above'
  shown = printed(*tiny)
  assert re.search(r' S\.S\. +words \(floor\) *\n', shown)
  for arguments, words in (
      ([*base, '--similarity-threshold=0.3'], 'needs --encoder'),
      ([*base, '--similarity-samples=3'], 'needs --encoder'),
      ([*tiny, '--similarity-threshold=baseline:0.25'], 'need each other'),
      ([*tiny, f'--baseline-records={path}'], 'need each other'),
      ([*tiny, '--similarity-threshold=2'], 'none of'),
      ([*base, '--encoder=use'], 'use:DIR')):
    refused(arguments, words)
