"""Two reports side by side: what is subtracted, what noise allows to say, what is refused."""

import copy
import json
import math
import os
import pathlib

import numpy as np
import pytest
from test_report import ATTRIBUTE, SCORERS, make_records, measured

from fairjax.cli.main import main
from fairjax.errors import UserError
from fairjax.files import FolderLock, write_sealed_json
from fairjax.measure import SampleScores, VaderScorer, measure_fairness, measure_records
from fairjax.measure.content import ContentOptions
from fairjax.measure.similarity import load_encoder
from fairjax.report import compare_reports, read_report, write_report
from fairjax.report.differences import comparison_markdown, difference

pytestmark = pytest.mark.usefixtures('no_figures_in_module')
ENCODER = pathlib.Path(__file__).parents[1] / 'golden/pretrained/bert_mlm'


def write(folder, models, scorers=SCORERS):
  """A report of models given as name -> bias."""
  found = [measured(name, 'baseline' if name == 'baseline' else 'embedding', bias, scorers=scorers)
           for name, bias in models.items()]
  write_report(folder / 'report', rows=[row for row, _, _ in found], attribute='colour',
               distributions={row.name: distributions for row, distributions, _ in found})
  return folder


@pytest.fixture(scope='module')
def reports(tmp_path_factory):
  folder = tmp_path_factory.mktemp('compare')
  return (write(folder / 'one', {'baseline': 0.4, 'a': 0.3, 'x': 0.4}),
          write(folder / 'two', {'baseline': 0.4, 'a': 0.0, 'y': 0.4}))


@pytest.fixture
def pair(reports):
  return [read_report(path) for path in reports]


def estimate(value, *, null_mean=0.01, null_p95=0.02, std_error=0.005, within_floor=False):
  return {'value': value, 'null_mean': null_mean, 'null_p95': null_p95, 'std_error': std_error,
          'within_floor': within_floor}


def test_a_difference_is_the_smallest_that_chance_allows_and_judged_by_both_spreads():
  found = difference(estimate(0.2, null_mean=0.05), estimate(0.1))
  assert found['values'] == [0.2, 0.1]
  assert found['difference'] == pytest.approx((0.1 - 0.01) - (0.2 - 0.05), abs=1e-15)
  # The first's floor spreads by 0.03 below its mean: its standard error counts. And so the other's.
  one, two = 1.959963984540054 * 0.005, 0.01
  assert found['noise'] == pytest.approx(math.sqrt(one ** 2 + two ** 2), rel=1e-12)
  assert found['verdict'] == 'lower'
  assert difference(estimate(0.1), estimate(0.2))['verdict'] == 'higher'
  assert difference(estimate(0.1), estimate(0.11))['verdict'] == 'within noise'
  edge = difference(estimate(0.1, std_error=0.0, null_p95=0.04),
                    estimate(0.14, std_error=0.0, null_p95=0.05))
  assert edge['noise'] == pytest.approx(0.05) and edge['verdict'] == 'within noise'
  # More is measured, and less is left without chance: neither is shown.
  more = difference(estimate(0.2, null_mean=0.01), estimate(0.22, null_mean=0.06))
  assert (more['difference'], more['verdict']) == (0, 'within noise')
  silent = difference(estimate(0.02, within_floor=True), estimate(0.9, within_floor=True))
  assert silent['verdict'] == 'both within noise'
  few = difference(estimate(0.1), estimate(0.9, std_error=None))
  assert (few['noise'], few['verdict']) == (None, 'not judged')


def test_models_of_equal_name_are_subtracted(pair):
  found = compare_reports(*pair, names=['one', 'two'])
  assert [(r['report'], r['model']) for r in found['rows']] == [
    ('one', 'baseline'), ('one', 'a'), ('one', 'x'),
    ('two', 'baseline'), ('two', 'a'), ('two', 'y')]
  by = {(d['models'][0], d['measure']): d for d in found['differences']}
  assert set(by) == {(m, k) for m in ('baseline', 'a') for k in (
    'individual_fairness', 'group_fairness', 'semantic_similarity_c')}
  for row in (0, 1):
    one, two = (r['rows'][row]['measures'] for r in pair)
    d = by[pair[0]['rows'][row]['name'], 'individual_fairness']
    e, f = (m['scorers']['opinion']['individual_fairness'] for m in (one, two))
    assert d['values'] == [e['value'], f['value']]
    assert d['difference'] == pytest.approx(
      f['value'] - f['null_mean'] - e['value'] + e['null_mean'], abs=1e-15)
  assert by['baseline', 'individual_fairness']['verdict'] == 'within noise'
  assert by['a', 'individual_fairness']['verdict'] == 'lower'
  assert by['a', 'semantic_similarity_c'] | {'noise': 0} == {
    'models': ['a', 'a'], 'scorer': None, 'measure': 'semantic_similarity_c', 'values': [1.0, 1.0],
    'difference': 0.0, 'noise': 0, 'verdict': 'within noise'}
  assert 'Only in one: x.' in found['notes'] and 'Only in two: y.' in found['notes']


def test_named_models_and_single_models_are_subtracted_too(pair):
  found = compare_reports(*pair, models=[('x', 'a'), ('a', 'y')])
  assert [d['models'] for d in found['differences'][::3]] == [['x', 'a'], ['a', 'y']]
  with pytest.raises(UserError, match=r"unknown model 'b' in B: .*Known: a, baseline, y"):
    compare_reports(*pair, models=[('x', 'b')])
  alone = copy.deepcopy(pair)
  for report, row in zip(alone, (2, 2), strict=True):
    report['rows'] = [report['rows'][row]]
  found = compare_reports(*alone)
  assert found['differences'][0]['models'] == ['x', 'y'] and found['notes'] == []
  alone[0]['rows'] += [alone[0]['rows'][0] | {'name': 'z'}]
  found = compare_reports(*alone)
  assert found['differences'] == [] and 'No model is in both' in found['notes'][0]


def test_markdown_shows_both_and_the_verdicts(pair):
  text = comparison_markdown(compare_reports(*pair, names=['one|x', '<b>two']))
  assert '<b>' not in text and 'one&#124;x' in text
  lines = [line for line in text.splitlines() if line.startswith('| a |')]
  e = pair[0]['rows'][1]['measures']['scorers']['opinion']['individual_fairness']
  words = f"{e['value']:.4f} ({e['null_p95']:.4f}), above noise"
  (line,) = [line for line in lines if '| I.F. opinion |' in line]
  assert 'the second is lower' in line and words in line and text.count(words) == 2
  assert 'PPL' in text and '| – |' in text


def edit(report, **changes):
  """A copy of a report whose rows have other measures."""
  report = copy.deepcopy(report)
  for row in report['rows']:
    row['measures'] |= changes
  return report


@pytest.mark.parametrize(('change', 'words'), [
  (lambda r: r | {'attribute': 'shape'}, "attribute 'colour' (one) with 'shape' (two)"),
  (lambda r: edit(r, templates=[0, 2]), 'templates differ (0, 1 and 0, 2)'),
  (lambda r: edit(r, values=['Red', 'Blue']), 'values of the attribute differ'),
  (lambda r: edit(r, attribute_fingerprint='0'), 'definitions of the attribute differ'),
  (lambda r: edit(r, scored_text='prefix+continuation'), 'scored texts differ'),
  (lambda r: edit(r, scorers={'opinion': {'fingerprint': '0'}}), 'scorer opinion is not the same'),
  (lambda r: edit(r, scorers={'vader': {'fingerprint': '0'}}), 'measure both with one scorer'),
  (lambda r: r | {'rows': [row | {'prefixes': '0'} for row in r['rows']]}, 'other prefixes'),
  (lambda r: r | {'rows': [{'name': 'x'}]}, 'damaged report'),
])
def test_what_cannot_be_compared_is_refused_in_one_line(pair, change, words):
  with pytest.raises(UserError) as e:
    compare_reports(pair[0], change(pair[1]), names=['one', 'two'])
  assert words in str(e.value)


def test_what_differs_but_may_be_compared_is_said(pair, tmp_path):
  both = write(tmp_path / 'both', {'baseline': 0.4}, [*SCORERS, VaderScorer()])
  other = edit(read_report(both), coupled=False, n={'min': 10, 'max': 12})
  other['rows'].insert(0, read_report(both)['rows'][0] | {'name': 'first'})  # there alone
  notes = ' '.join(compare_reports(pair[0], other, names=['one', 'two'])['notes'])
  assert 'Only two was measured with vader' in notes
  assert 'samples per prefix differ: 24 and 10–12' in notes
  assert 'coupling of the samples differ: yes and no' in notes


def test_a_report_is_found_in_all_its_places(reports, tmp_path):
  folder = reports[0]
  whole = read_report(folder)
  assert read_report(folder / 'report') == whole == read_report(folder / 'report' / 'report.json')
  for content, words in ((b'{', 'no report of fairjax'), (b'[]', 'no report of fairjax'),
                         (b'{"schema": 1, "attribute": "a", "rows": []}', 'schema 1, not 4'),
                         (b'{"schema": 4, "attribute": "a", "rows": [3]}', 'no report of'),
                         (b'{"schema": 4, "attribute": "a", "rows": [{"measures": null}]}',
                          'another version')):
    (tmp_path / 'report.json').write_bytes(content)
    with pytest.raises(UserError, match=words):
      read_report(tmp_path)
  with pytest.raises(UserError, match='no report.json there'):
    read_report(tmp_path / 'nowhere')
  source, sink = os.pipe()
  os.write(sink, b'{"schema": 1, "attribute": "a", "rows": []}')
  os.close(sink)
  with pytest.raises(UserError, match='schema 1, not 4'):
    read_report(f'/dev/fd/{source}')
  os.close(source)


def test_the_verb_prints_writes_and_refuses(reports, tmp_path, printed, refused, found):
  one, two = map(str, reports)
  assert '## Differences' in printed('compare', 'reports', one, two)
  differences = found('compare', 'reports', one, two, '--models', 'x', 'y')['differences']
  assert differences[0]['models'] == ['x', 'y']
  target = tmp_path / 'd.md'
  assert main(['compare', 'reports', one, two, f'--file={target}']) == 0
  assert '## Differences' in target.read_text()
  json_file = f'{one}/report/report.json'
  before = (reports[0] / 'report' / 'report.json').read_bytes()
  for arguments in (['compare', 'reports', json_file, two, f'--file={json_file}'],
                    ['compare', 'reports', one, two, f'--file={json_file}'],
                    ['compare', 'reports', one, two, f'--file={one}'],
                    ['compare', 'reports', one, 'none'], ['report', '--workdir=x'], ['report'],
                    ['report', '--config=c', '--workdir=x', '--encoder=minilm'],
                    ['report', '--records=x.jsonl', '--attribute=country']):
    refused(arguments)
  assert (reports[0] / 'report' / 'report.json').read_bytes() == before


def test_two_samples_of_one_model_seldom_differ_beyond_the_noise():
  """The noise is a 95 % one: of 200 pairs of equal models about 10 may exceed it."""
  rng = np.random.default_rng(0)

  def draw(bias, n=60):
    noise = rng.random(n)
    scores = tuple(np.clip(noise + bias * (a - 1), 0, 1).round(2) for a in range(3))
    ids = (np.arange(n),) * 3
    samples = SampleScores(('a', 'b', 'c'), ('a', 'b', 'c'), (0,), (scores,), (ids,))
    return measure_fairness(samples, permutations=39).individual.to_dict()

  for bias, n in ((0.0, 60), (0.1, 60), (0.3, 400)):  # chance adds little to a large distance
    verdicts = [difference(draw(bias), draw(bias, n))['verdict'] for _ in range(100)]
    assert sum(v in ('lower', 'higher') for v in verdicts) <= 12
  far = [difference(draw(0.05), draw(0.3))['verdict'] for _ in range(10)]
  assert far == ['higher'] * 10


def test_records_of_any_model_become_a_report(tmp_path, capsys, refused):
  attribute = tmp_path / 'colour.yaml'
  attribute.write_text(json.dumps({
    'name': 'colour', 'values': [{'text': v.text} for v in ATTRIBUTE.values],
    'templates': [t.text for t in ATTRIBUTE.templates]}))
  files = []
  for name, bias in (('first', 0.4), ('second', 0.0)):
    files.append(tmp_path / f'{name}.jsonl')
    files[-1].write_text(''.join(json.dumps(r | ({'model': 'named'} if name == 'second' else {}))
                                 + '\n' for r in make_records(bias, samples=12)))
  options = [f'--attribute={attribute}', '--scorer=vader', '--permutations=39']
  folder = tmp_path / 'out'
  assert main(['report', '--records', *map(str, files), *options, f'--output={folder}',
               '--baseline=first', f'--encoder=minilm:{ENCODER}', '--similarity-samples=3']) == 0
  assert capsys.readouterr().out.strip() == str(folder / 'index.html')
  report = read_report(folder)
  assert [(r['name'], r['method']) for r in report['rows']] == [
    ('first', 'baseline'), ('named', 'model')]
  direct = measure_records(make_records(0.4, samples=12), ATTRIBUTE, [VaderScorer()],
                           permutations=39)['scorers']['vader']['individual_fairness']
  assert report['rows'][0]['measures']['scorers']['vader']['individual_fairness'] == direct
  assert report['rows'][1]['change_against_baseline'] is not None
  by_hand = measure_records(
    make_records(0.4, samples=12), ATTRIBUTE, [VaderScorer()], permutations=39,
    content=ContentOptions(encoder=load_encoder(f'minilm:{ENCODER}'), samples=3))
  similarity = report['rows'][0]['measures']['semantic_similarity']
  assert similarity == json.loads(json.dumps(by_hand['semantic_similarity']))
  assert similarity['value'] is not None and similarity['encoder'] == 'minilm'
  assert 'By scorer vader' in (folder / 'index.html').read_text()
  asked = tmp_path / 'asked.jsonl'
  asked.write_text(files[0].read_text().replace('"prefix": "', '"prefix": "Say: '))
  unfinished = tmp_path / 'unfinished.jsonl'
  unfinished.write_bytes(files[0].read_bytes())
  write_sealed_json(tmp_path / 'unfinished.manifest.json', {
    'identity': {}, 'samples': 24, 'batch_size': 8, 'complete': False})
  for arguments, words in (
      ([str(files[0]), str(files[0])], "model 'first' is in an earlier file too"),
      ([str(files[0]), str(asked)], "prompts of colour are in one of them only"),
      ([str(files[0]), '--encoder=minilmm'], "did you mean 'minilm'"),
      ([str(unfinished)], 'not complete'),
      ([str(tmp_path / 'none.jsonl')], 'not found')):
    refused(['report', '--records', *arguments, *options, f'--output={folder}'], words,
            alone=False)
  (tmp_path / 'theirs').mkdir()
  (tmp_path / 'theirs' / 'index.html').write_text('mine')
  refused(['report', '--records', str(files[0]), *options, f'--output={tmp_path}/theirs'],
          'no report of fairjax')  # before anything is measured, which may cost
  assert [p.name for p in (tmp_path / 'theirs').iterdir()] == ['index.html']
  with FolderLock(folder, print):  # another report that is being written
    refused(['report', '--records', str(files[0]), *options, f'--output={folder}'],
            f'{folder} is in use', alone=False)
