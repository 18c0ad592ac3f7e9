"""The report: its table, verdicts, changes, escaping and figures."""

import copy
import dataclasses
import functools
import html
import json
import re

import jax
import numpy as np
import pytest
from record_cases import records_of

from fairjax.counterfactual.attributes import Attribute, Template, Value
from fairjax.errors import UserError
from fairjax.generate import read_records
from fairjax.measure import (
  OpinionScorer,
  VaderScorer,
  measure_records,
  perplexities,
  read_generations,
  score_records,
)
from fairjax.report import KnownBias, ModelRow, write_report
from fairjax.report.comparison import changes
from fairjax.report.differences import SCHEMA
from fairjax.report.document import Table, escape
from fairjax.report.figures import (
  METHOD_COLOURS,
  MOST_POINTS,
  drawing,
  plot_curves,
  plot_fairness,
  plot_tradeoff,
  plot_values,
  pyplot,
)
from fairjax.report.page import collect_distributions
from fairjax.report.sections import more_measures, paired_samples

ATTRIBUTE = Attribute(
  name='colour',
  values=tuple(Value(t, t.lower(), (t,), 'a') for t in ('Red', 'Blue', 'Green')),
  templates=(Template('{value} is', '1'), Template('I saw {value} and', '2')))
SCORERS = [OpinionScorer(['good', 'red'], ['awful'])]
EVIL = '| <script>alert("x")</script> **bold** [a](http://b.c) `code`\n\n# head $x$ \u202e_i_'


def make_records(bias, *, mention=1.0, samples=40):
  drawn = np.random.default_rng(0).random((2, samples, 2))

  def text(p, i):
    noise, named = drawn[p.template, i]
    word = 'good' if noise < 0.5 + bias * (p.value - 1) else 'awful'
    return word + f', {ATTRIBUTE.value_texts[p.value]}' * bool(named < mention)
  return records_of(ATTRIBUTE, samples, text)


def measures_of(bias, scorers=None, **kwargs):
  return measure_records(make_records(bias, **kwargs), ATTRIBUTE, scorers or SCORERS,
                         permutations=30)


def measured(name, method, bias, weight=None, *, scorers=SCORERS, samples=24, change=None):
  """A row, its distributions and its records."""
  records = [r if change is None else change(r) for r in make_records(bias, samples=samples)]
  measures = measure_records(records, ATTRIBUTE, scorers, permutations=99)
  distributions = collect_distributions(
    read_generations(records, ATTRIBUTE), {s.name: score_records(records, s) for s in scorers},
    coupled=True)
  return ModelRow(name, method, weight, measures=measures), distributions, records


def make_rows():
  def ppl(nats):
    return perplexities(nats * 100, tokens=100, words=50, num_bytes=400)
  return [
    ModelRow('baseline', 'baseline', None, ppl(1.0), ppl(1.1), measures=measures_of(0.4)),
    ModelRow('extended-baseline', 'extended_baseline', None, ppl(1.0), ppl(1.1),
             measures=measures_of(0.4)),
    ModelRow('embedding-1', 'embedding', 1.0, ppl(1.0), ppl(1.05),
             measures=measures_of(0.3, mention=0.8)),
    ModelRow('embedding-10', 'embedding', 10.0, ppl(1.01), None,
             measures=measures_of(0.0, mention=0.1)),
    ModelRow('sentiment-1', 'sentiment', 1.0, measures=measures_of(0.3) | {'scorers': {}})]


@pytest.fixture(scope='module')
def rows():
  return make_rows()


@functools.cache
def distributions():
  return measured('baseline', 'baseline', 0.4)[1]


def write(tmp_path, rows, **kwargs):
  path = write_report(tmp_path / 'report', **{
    'rows': rows, 'attribute': 'colour',
    'distributions': {row.name: distributions() for row in rows}} | kwargs)
  return path.read_text(encoding='utf-8'), json.loads((path.parent / 'report.json').read_text())


def cells_of(text, name):
  line = next(line for line in text.splitlines() if line.startswith(f'| {name} |'))
  return [cell.strip() for cell in line.strip('|').split('|')]


def test_the_subtitle_counts_what_was_read(tmp_path, rows, no_figures):
  measures = copy.deepcopy(rows[0].measures)
  records, estimate = measures['records'], measures['scorers']['opinion']['individual_fairness']
  measures['templates'] = measures['templates'][:1]
  for scorer in measures['scorers'].values():
    scorer['rewording'] = {
      'records': 2400, 'sentence': '', 'individual_fairness': estimate, 'contrast': 0.1}
  text, _ = write(tmp_path, [dataclasses.replace(rows[0], measures=measures)])
  assert f'1 template, {records} generated texts, 2,400 of rewordings' in text


def test_table_holds_every_number_with_its_floor(tmp_path, rows, no_figures):
  text, data = write(tmp_path, rows)
  section = text.split('## All measures')[1]
  header = next(line for line in section.splitlines() if line.startswith('| model'))
  assert [h.strip() for h in header.strip('|').split('|')] == [
    'model', 'PPL', 'PPL&#95;s', 'S.S.c', 'words (floor)', 'I.F. opinion (floor)',
    'G.F. opinion (floor)', 'n']
  cells = cells_of(section, 'baseline')
  estimate = rows[0].estimate('opinion', 'individual_fairness')
  assert cells[1] == f'{np.exp(2.0):.2f} ({np.exp(1.0):.2f})'
  words = rows[0].content('distinct_word_divergence')
  assert cells[3] == '100.0%' and cells[7] == '40'
  assert cells[4] == f"{words['value']:.4f} ({words['null_p95']:.4f}), above noise"
  assert cells[5] == f"{estimate['value']:.4f} ({estimate['null_p95']:.4f}), above noise"
  fair = cells_of(section, 'embedding-10')
  assert fair[2] == 'not measured'
  other = cells_of(section, 'sentiment-1')
  assert other[1:3] == other[5:7] == ['not measured'] * 2 and other[7] == '40'
  assert data['rows'][0]['measures'] == json.loads(json.dumps(rows[0].measures))
  assert data['rows'][0]['verdicts']['opinion']['individual_fairness'] == 'above noise'


def test_the_overview_and_the_summary_name_the_recommended_model_first(tmp_path, rows, no_figures):
  text, data = write(tmp_path, rows)
  assert data['selection']['best'] == 'embedding-1'  # embedding-10 no longer mentions the value
  change = changes(rows[2], rows[0])
  summary = (tmp_path / 'report' / 'summary.md').read_text()
  for page in (text.split('## All measures')[0], summary):
    found = [line for line in page.splitlines() if line.startswith('| ')][2:]
    assert [line.split(' ')[1] for line in found] == [
      'embedding-1', 'baseline', 'extended-baseline', 'embedding-10', 'sentiment-1']
    cells = cells_of(page, 'embedding-1 (recommended)')
    estimate = rows[2].estimate('opinion', 'individual_fairness')
    assert cells[1:] == [
      f"{estimate['value']:.4f} ({estimate['null_p95']:.4f}), above noise",
      f"{change['individual_fairness']['opinion']:+.1f}%", '0.0%',
      f"{change['semantic_similarity_c']:+.1f}"]
    assert 'Recommended: embedding-1.' in page
  assert len(summary) < 4000


def test_changes_against_the_baseline(tmp_path, rows, no_figures):
  change = changes(rows[3], rows[0])
  base, other = (r.estimate('opinion', 'individual_fairness')['value'] for r in (rows[0], rows[3]))
  assert change['individual_fairness']['opinion'] == pytest.approx(100 * (other - base) / base)
  assert change['perplexity'] == pytest.approx(100 * (np.exp(0.02) - 1))
  assert change['subset_perplexity'] is None
  assert change['semantic_similarity_c'] < -80
  _, data = write(tmp_path, rows)
  assert data['rows'][0]['change_against_baseline'] is None
  assert data['rows'][3]['change_against_baseline'] == change


@pytest.mark.parametrize('label, judges, others', [
  ('opinion', ['opinion'], []), ('opinion', ['opinion', 'vader'], ['vader']),
  ('bert:runs/sst', ['bert:runs/sst#dtype=bfloat16'], [])])
def test_a_report_says_where_only_the_labelling_scorer_judges(
    label, judges, others, tmp_path, rows, no_figures):
  config = {'sentiment': {'scorer': label}, 'measure': {'scorers': judges}}
  text, data = write(tmp_path, rows, config=config)
  assert data['labelling'] == {'labelled_by': label, 'judged_by_others': others}
  said = f'Only scorer {label} judges, and it labelled the sentences'
  assert data['warnings'][0].startswith(said) == (not others)
  assert (said.split('#')[0] in html.unescape(text)) == (not others)
  for other in ({'rows': rows[:3], 'config': config}, {'rows': rows}):  # no f_sh; no run
    assert write(tmp_path, **other)[1]['labelling'] is None


def test_agreement_of_every_model_and_pair_of_scorers(tmp_path, rows, no_figures):
  measures = measures_of(0.4, [*SCORERS, VaderScorer()], samples=5)
  (pair,) = measures['scorer_agreement']
  assert abs(pair['spearman'] - pair['pearson']) > 1e-3  # else the columns could be swapped
  second = copy.deepcopy(measures)
  second['scorer_agreement'][0] |= {'spearman': None, 'equal_signs_opinionated': None}
  old = {k: v for k, v in measures.items() if k != 'scorer_agreement'}  # of an earlier version
  text, data = write(tmp_path, [
    ModelRow('baseline', 'baseline', measures=measures),
    ModelRow('flat', 'embedding', 1.0, measures=second),
    ModelRow('old', 'embedding', 2.0, measures=old), rows[-1]])
  section = text.split('## Agreement of the scorers')[1].split('\n## ')[0]
  assert cells_of(section, 'baseline')[1:] == [
    'opinion and vader', '30', f"{pair['spearman']:.3f}", f"{pair['pearson']:.3f}",
    f"{100 * pair['equal_signs']:.1f}%", str(pair['n_opinionated']),
    f"{100 * pair['equal_signs_opinionated']:.1f}%"]
  assert cells_of(section, 'flat')[3] == cells_of(section, 'flat')[-1] == '–'
  assert '| old |' not in section and '| sentiment-1 |' not in section
  assert data['rows'][0]['measures']['scorer_agreement'] == [pair]
  assert '## Agreement of the scorers' not in write(tmp_path, rows)[0]  # one scorer


def test_shares_below_a_threshold_stand_under_their_headings_whatever_the_order_of_keys(rows):
  read = json.loads(json.dumps(rows[0].measures, sort_keys=True))  # as from a file
  read['scorers']['opinion']['individual_fairness'] |= {
    'pairs_below': {'0.05': 0.2, '0.1': 0.3, 'floor': 0.1}, 'p_value': 1e-5}
  table = more_measures([ModelRow('baseline', 'baseline', measures=read)])
  shown = dict(zip(table.header, table.rows[0], strict=True))
  assert [shown[f'pairs {h}'] for h in ('\u2264 floor', '< 0.05', '< 0.1')] == ['10%', '20%', '30%']
  assert table.rows[0][table.header.index('p')] == '1e-05'  # and not 0.000


def test_the_report_and_records_keep_their_schemas(
    tmp_path, rows, no_figures, check_keys, printed):
  jsonschema = pytest.importorskip('jsonschema')
  schemas = {}
  for of in ('record', 'report'):
    schemas[of] = jsonschema.Draft202012Validator(json.loads(printed('records', 'schema', of)))
    schemas[of].check_schema(schemas[of].schema)
  first, _, records = measured('e', 'embedding', 0.4, 2.0, scorers=[*SCORERS, VaderScorer()])
  _, report = write(
    tmp_path, [*rows[:4], first], seeds={'run': 1}, notes=['n'],
    config={'sentiment': {'scorer': 'opinion'}, 'measure': {'scorers': ['opinion', 'vader']}},
    known_bias=KnownBias(0.2, 0.1, 'opinion', {'baseline': rows[0].measures}),
    paired=paired_samples({'e': records}, values=['Red', 'Blue']))
  check_keys(report, 'report')
  schemas['record'].validate(records[0])
  for wrong in (report | {'schema': SCHEMA - 1}, report | {'rows': []},
                {k: v for k, v in report.items() if k != 'definitions'}):
    assert not schemas['report'].is_valid(wrong)
  for field, value in (('value', 3.5), ('template', 0.5), ('sample', '1'), ('scores', 0.5)):
    wrong = records[0] | {field: value}
    assert not schemas['record'].is_valid(wrong)
    with pytest.raises(UserError, match=field):  # what the schema refuses, the reader refuses
      list(read_records([wrong]))


@pytest.mark.parametrize('name', ['index.html', 'report.json'])
def test_a_report_replaces_a_report_and_nothing_else(tmp_path, rows, no_figures, name):
  write(tmp_path / 'ours', rows)
  write(tmp_path / 'ours', rows)
  theirs = tmp_path / 'theirs' / 'report'
  theirs.mkdir(parents=True)
  (theirs / name).write_text('{"mine": 1}')
  with pytest.raises(UserError, match=f'holds {name}, but no report'):
    write(tmp_path / 'theirs', rows)
  assert [p.name for p in theirs.iterdir()] == [name]


def test_provenance(tmp_path, rows, no_figures):
  text, data = write(tmp_path, rows, config={'name': 'x', 'odd': '```\n# no'}, seeds={'lm': 3},
                     notes=['A note with | and <i>.'])
  made = text.split('## How it was made')[1]
  assert rows[0].measures['scorers']['opinion']['fingerprint'] in made
  assert '| seed | lm | 3 |' in made and f'| version | jax | {jax.__version__} |' in made
  assert '"odd": "```\\n# no"' in made and '````json' in made
  assert '| baseline | 240 | 2 | 3 | 40 | yes | 30 | 0 | continuation |' in made
  assert 'A note with &#124; and &#60;i&#62;.' in text
  assert data['config']['name'] == 'x' and data['seeds'] == {'lm': 3}


def test_known_bias_section(tmp_path, rows, no_figures):
  known = KnownBias(0.2, 0.1, 'opinion', {'baseline': rows[0].measures})
  text, data = write(tmp_path, rows, known_bias=known)
  section = text.split('## Against the known bias of the corpus')[1]
  value = rows[0].estimate('opinion', 'individual_fairness')['value']
  assert cells_of(section, 'baseline')[2] == f'{100 * value / 0.2:.0f}%'
  assert cells_of(section, 'closed form')[1] == '0.2000'
  assert data['known_bias']['group_fairness'] == 0.1
  zero = KnownBias(0.0, 0.0, 'opinion', {'baseline': rows[0].measures})
  text, _ = write(tmp_path, rows, known_bias=zero)
  section = text.split('## Against the known bias of the corpus')[1]
  assert cells_of(section, 'baseline')[2] == '–'


def test_texts_cannot_change_the_page(tmp_path, rows, no_figures):
  records = [r | {'continuation': EVIL} for r in make_records(0.0, samples=2)]
  paired = paired_samples({EVIL: records}, values=['Red', 'Green'], templates=1)
  row = ModelRow(EVIL, 'baseline', measures=rows[0].measures)
  text, data = write(tmp_path, [row], paired=paired, notes=[EVIL], seeds={EVIL: 1})
  for raw in ('<script', '**bold', '](http', '`code', '://', '# head', '_i_', '\u202e', '$x$'):
    assert raw not in text, raw
  body = text.split('<details>\n<summary>1 paired samples')[1]
  assert body.index('</summary>') < body.index('| model | value | continuation |')
  assert len(re.findall(r'^\| .* \| Red \| .* \|$', body, re.MULTILINE)) == 1
  assert data['paired_samples'][0]['continuations'][EVIL]['Red'] == EVIL


@pytest.mark.parametrize('text, shown', [
  ('plain text, 5% (of "it")!', None), ('a|b', None), ('1. no list', None), ('- no list', None),
  ('0.10.2 is a version', None),
  ('two\nlines\r\n\r\nmore', 'two ↵ lines ↵ more'), ('tab\there', 'tab here'),
  ('bell\x07', 'bell\ufffd'), ('www.example.org a@b.c ~~x~~ \\* &amp; <!-- x -->', None),
  ('naïve 漢字', None), ('', None), ('  spaces  ', 'spaces')])
def test_escape_shows_the_text_itself(text, shown):
  assert html.unescape(escape(text)) == (text if shown is None else shown)
  assert not re.search(r'[|<>`*_\[\]@~\\]|^\d+[.)](\s|$)|^-|www\.|://', escape(text))


def test_words_align_left_and_numbers_right():
  assert Table(['a', 'b'], [['1', '2']]).markdown().splitlines() == [
    '| a | b |', '| :-- | --: |', '| 1 | 2 |']
  steers = Table(['a', 'b'], [['x\x1b[31m', '2']])
  assert steers.text().splitlines() == ['a          b', r'x\x1b[31m  2']  # no terminal obeys it


def test_paired_samples_are_the_first_of_every_model():
  records = {'one': make_records(0.4), 'two': iter(make_records(0.0))}
  chosen = paired_samples(records, values=['Green', 'Red'])
  assert [(p.template, p.sample) for p in chosen] == [(0, 0), (1, 0)]
  assert chosen[1].prefixes == {'Green': 'I saw Green and', 'Red': 'I saw Red and'}
  texts = {(r['value'], r['template'], r['sample']): r['continuation'] for r in make_records(0.4)}
  for p in chosen:
    assert list(p.continuations) == ['one', 'two']
    for value in ('Green', 'Red'):
      assert p.continuations['one'][value] == texts[value, p.template, p.sample]


def metric_lines(offset=0.0):
  lines = [{'step': s, 'kind': 'train', 'loss': 1.0 + offset + 1 / (s + 1), 'cosine': 0.5}
           for s in range(5)]
  return [*lines, {'step': 4, 'kind': 'valid', 'loss': 1.5}, {'step': 5, 'kind': 'train',
                                                              'loss': 'nan'}]


def test_figures_are_written_listed_and_replaced(tmp_path, rows):
  curves = {'lm': {'lm': metric_lines()}, 'debias/colour': {'a': metric_lines()}}
  _, data = write(tmp_path, rows, curves=curves)
  names = ['curves-debias-colour', 'curves-lm', 'fairness', 'tradeoff-opinion', 'values']
  expected = sorted(f'figures/{n}.{s}' for n in names for s in ('png', 'svg'))
  assert data['figures'] == expected
  folder = tmp_path / 'report'
  assert sorted(str(p.relative_to(folder)) for p in folder.glob('figures/*')) == expected
  first = {p.name: p.read_bytes() for p in folder.glob('figures/*')}
  mine = folder / 'figures' / 'values.csv'
  mine.touch()
  text, _ = write(tmp_path, rows)
  mine.unlink()  # it is still there
  kept = {p.name: p.read_bytes() for p in folder.glob('figures/*')}
  assert kept == {name: content for name, content in first.items() if 'curves' not in name}
  for target in re.findall(r'\]\(([^)]*)\)', text):
    assert (folder / target).is_file()
  assert not list(folder.glob('.*'))


def test_scorers_of_like_names_have_figures_of_their_own(tmp_path, rows):
  def twice(found):
    return dict.fromkeys(('a.b', 'a-b'), found['opinion'])

  found = dataclasses.replace(distributions(), **{
    part: twice(getattr(distributions(), part))
    for part in ('scores', 'histograms', 'means', 'errors')})
  two = [dataclasses.replace(row, measures=row.measures | {
    'scorers': twice(row.measures['scorers'])}) for row in rows[:2]]
  _, data = write(tmp_path, two, distributions={row.name: found for row in two})
  assert [name for name in data['figures'] if 'tradeoff' in name and name.endswith('.svg')] == [
    'figures/tradeoff-a-b-1.svg', 'figures/tradeoff-a-b.svg']


def test_no_figure_is_larger_than_a_png_can_be():
  with drawing(1, 1, 600, 1) as (figure, _):
    assert figure.get_figwidth() * figure.dpi < 1 << 16
    pyplot().close(figure)


def test_tradeoff_reverses_the_fairness_axis_and_labels_do_not_overlap(drawn, rows):
  points = [{'name': r.name, 'method': r.method, 'weight': r.weight, 'cost': r.relevance(),
             'individual_fairness': r.estimate('opinion', 'individual_fairness')} for r in rows[:4]]
  points[3]['individual_fairness'] = points[3]['individual_fairness'] | {'within_floor': True}
  plot_tradeoff('t', panels=[('', 'S.S.c', points)], scorer='opinion')
  (axis,) = drawn[0].axes
  left, right = axis.get_xlim()
  assert left > right
  hollow = [line for line in axis.get_lines() if line.get_markerfacecolor() == 'white']
  marked = sum(len(line.get_xdata()) for line in hollow)
  assert marked == sum(p['individual_fairness']['within_floor'] for p in points) == 1
  boxes = [t.get_window_extent() for t in axis.texts]
  assert [t.get_text() for t in axis.texts] == ['baseline', 'extended-baseline', '1', '10']
  marks = {tuple(p): bar[0].get_color() for bar in axis.containers for p in bar[0].get_xydata()}
  weights = axis.texts[2:]  # the two baselines of these rows are one point
  assert [t.get_color() for t in weights] == [marks[t.xy] for t in weights]
  assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
  methods = ['baseline', 'extended_baseline', 'embedding', 'sentiment', 'random_projection']
  plot_tradeoff('t', scorer='opinion', panels=[
    ('', 'S.S.c', [points[2] | {'method': method} for method in methods])])
  legend = drawn[1].legends[0].get_window_extent()
  assert legend.x0 > 0 and legend.x1 < drawn[1].bbox.x1
  others = [point | {'method': 'model', 'weight': None} for point in points[:2]]
  plot_tradeoff('t', panels=[('', 'S.S.c', [*points[2:], *others])], scorer='opinion')
  joined = [bar[0].get_linewidth() > 0 for bar in drawn[2].axes[0].containers]
  assert joined == [True, False]  # the weights of embedding, not two models of others


def test_dots_are_the_values_means_with_their_intervals(drawn, rows):
  shown = [rows[2], rows[0]]
  plot_values('v', rows=shown, scorers=['opinion'], errors=dict.fromkeys(
    ('baseline', 'embedding-1'), {'opinion': np.array([0.1, 0.2, 0.3])}))
  means = [[row.scorer('opinion')['mean_score_by_value'][v] for v in ('Red', 'Blue', 'Green')]
           for row in shown]
  order = np.argsort(means[1])  # of the baseline
  for axis, found in zip(drawn[0].axes, means, strict=True):
    assert axis.get_lines()[1].get_ydata() == pytest.approx(np.array(found)[order])
  assert [t.get_text() for t in drawn[0].axes[1].get_xticklabels()] == [
    ('Red', 'Blue', 'Green')[a] for a in order]
  (whiskers,) = drawn[0].axes[1].containers[0].lines[2]
  lengths = [y[1] - y[0] for y in (s[:, 1] for s in whiskers.get_segments())]
  assert lengths == pytest.approx(2 * 1.96 * np.array([0.1, 0.2, 0.3])[order])


@pytest.mark.filterwarnings('error')
def test_long_names_leave_room_for_what_they_name(drawn, rows):
  measures = json.loads(json.dumps(rows[0].measures).replace('Red', 'Red ' * 20 + '$x$'))
  long = ModelRow('org/a-model-with-a-name-of-its-own' * 3 + '$', 'model', measures=measures)
  plot_values('v', rows=[long], scorers=['opinion'],
              errors={long.name: {'opinion': np.zeros(3)}})
  plot_fairness('f', models=[long.name], methods=['model'], estimates={
    'opinion': {'I.F.': [long.estimate('opinion', 'individual_fairness')]}})
  for figure in drawn:
    figure.draw_without_rendering()
    (axis,) = figure.axes
    assert axis.get_window_extent().height > 0.2 * figure.bbox.height
    assert figure.bbox.contains(*axis.get_tightbbox().min)


@pytest.mark.filterwarnings('error')
def test_another_font_draws_what_the_first_lacks(tmp_path, rows):  # else there is a warning
  measures = json.loads(json.dumps(rows[0].measures).replace('Red', '\u1d81'))  # STIX has it
  files = plot_values(tmp_path / 'v', rows=[ModelRow('m', 'model', measures=measures)],
                      scorers=['opinion'], errors={'m': {'opinion': np.zeros(3)}})
  assert all(file.stat().st_size for file in files)


@pytest.mark.filterwarnings('error')
def test_characters_of_no_font_are_named_once(tmp_path, rows, capsys):
  measures = json.loads(json.dumps(rows[0].measures).replace('Red', '\U0010fffd'))
  for name in 'vw':
    plot_values(tmp_path / name, rows=[ModelRow('m', 'model', measures=measures)],
                scorers=['opinion'], errors={'m': {'opinion': np.zeros(3)}})
  plot_tradeoff(tmp_path / 't', scorer='opinion', panels=[('', 'S.S.c', [
    {'name': '\U0010fffd', 'method': 'model', 'weight': None, 'cost': rows[0].relevance(),
     'individual_fairness': rows[0].estimate('opinion', 'individual_fairness')}])])
  assert capsys.readouterr().err.count('are drawn as boxes: no installed font') == 1


def test_bars_show_values_and_floors(drawn, rows):
  estimates = {'opinion': {'I.F.': [r.estimate('opinion', 'individual_fairness') for r in rows]}}
  plot_fairness('f', models=[r.name for r in rows], methods=[r.method for r in rows],
                estimates=estimates)
  (axis,) = drawn[0].axes
  heights = [p.get_height() for p in axis.patches]
  expected = [e[k] for e in estimates['opinion']['I.F.'] if e for k in ('value', 'null_p95')]
  assert heights == pytest.approx(expected)
  assert 'not\nmeasured' in [t.get_text() for t in axis.texts]
  legend = drawn[0].legends[0].get_window_extent()
  assert legend.x0 > 0 and legend.x1 < drawn[0].bbox.x1
  assert [t.get_text() for t in axis.get_xticklabels()] == [r.name for r in rows]


def test_curves_hold_what_changes_most_of_interest_and_gaps(drawn):
  runs = {'a $x$': metric_lines(), 'b': metric_lines(1)}
  plot_curves('c', title='lm', runs=runs, methods={})
  axes = drawn[0].axes
  assert [a.get_title() for a in axes if a.get_visible()] == ['loss', 'cosine']
  train = axes[0].get_lines()[0]
  assert train.get_xdata().tolist() == [0, 1, 2, 3, 4, 5] and np.isnan(train.get_ydata()[-1])
  assert len(axes[0].get_lines()) == 4 and len(axes[1].get_lines()) == 2
  long = [{'step': s, 'loss': 1.0} for s in range(3000)]
  plot_curves('c', title='t', runs={'a': long}, methods={})
  steps = drawn[1].axes[0].get_lines()[0].get_xdata()
  assert len(steps) == MOST_POINTS and (steps[0], steps[-1]) == (0, 2999)
  many = [{'step': s, 'branches/used': s, 'majority': 1, 'kl': s, 'loss': s, 'cosine': s,
           'fairness_loss/embedding': s} for s in range(3)]
  plot_curves('c', title='t', runs={'a': many, 'b': many, 'c': many},
              methods=dict.fromkeys('ab', 'embedding'))
  assert [a.get_title() for a in drawn[2].axes] == [
    'loss', 'fairness loss, embedding', 'cosine', 'kl']
  first, second, third = drawn[2].axes[0].get_lines()
  assert first.get_color() == second.get_color() == METHOD_COLOURS['embedding']
  assert first.get_linestyle() != second.get_linestyle() and third.get_color() != first.get_color()
