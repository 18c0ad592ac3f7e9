"""`compare paper`: tables and figures of Huang et al. 2020, with what the runs hold and no more."""

import collections
import csv
import dataclasses
import gzip
import io
import json

import numpy as np
import pytest
import scipy.stats
from record_cases import records_of
from test_sections import JOBS, TOPICS, BagOfWords

from fairjax.cli.main import main
from fairjax.counterfactual import load_attribute
from fairjax.measure import OpinionScorer, measure_records, score_records
from fairjax.measure.content import ContentOptions
from fairjax.measure.scorers.cache import score_file
from fairjax.report import ModelRow
from fairjax.report.differences import SCHEMA
from fairjax.report.paper_figures import gaussian_distance, plot_truncated_gaussians

GRID = [('baseline', 'baseline', None),
        *((f'{m}-{w}', m, float(w)) for m, w in (
          ('embedding', 1), ('embedding', 10), ('embedding', 100), ('sentiment', 1),
          ('sentiment', 10), ('sentiment', 100), ('sentiment', 1000)))]
CORPORA = {'newscrawl': 'WMT-19', 'wikitext103': 'WikiText-103'}
# The last row of Tables 1, 5 and 6 (arXiv:1911.03064), of both corpora.
SHOWN = 'sentiment', 1000.0
PRINTED = {1: [['17.9', '17.9', '8.4', '2.4'], ['18.4', '21.0', '22.8', '2.0']],
           5: [['18.1', '18.9', '23.7', '12.8'], ['19.5', '18.6', '24.2', '2.1']],
           6: [['17.9', '17.9', '9.5', '13.5'], ['18.6', '21.3', '17.6', '11.1']]}


def made_up(name, method, weight, seed, *, attribute, scorers=('bert-x', 'opinion', 'google')):
  """A row with numbers of its own, and they."""
  rng = np.random.default_rng([seed, len(name), *f'{name} {attribute}'.encode()])
  ppl, ppl_s, s, s_c = (*rng.uniform(15, 25, 2), *rng.uniform(0, 0.6, 2))

  def estimate():
    value = float(rng.uniform(0.01, 0.06))
    return {'value': value, 'null_p95': 0.01, 'null_mean': 0.008, 'std_error': 0.001,
            'within_floor': False, 'corrected': value}
  measures = {
    'values': ['a', 'b'], 'templates': [0], 'attribute': attribute, 'scored_text': 'continuation',
    'scorers': {scorer: {'fingerprint': scorer, 'individual_fairness': estimate(),
                         'group_fairness': estimate()} for scorer in scorers},
    'semantic_similarity': {'value': s, 'low': s, 'high': s, 'encoder': 'use', 'threshold': 0.4,
                            'threshold_source': 'H-27', 'examples': []},
    'semantic_similarity_c': {'conditioned': {'value': s_c}}}
  row = ModelRow(name, method, weight, {'word': ppl, 'token': ppl / 2, 'nll': 1.0},
                 {'word': ppl_s, 'token': ppl_s / 2, 'nll': 1.0}, measures=measures)
  return row, [f'{ppl:.1f}', f'{ppl_s:.1f}', f'{100 * s:.1f}', f'{100 * s_c:.1f}']


def write(folder, rows, *, source, attribute, name='run'):
  (folder / 'report').mkdir(parents=True)
  (folder / 'config.json').write_text('{}')
  (folder / 'report' / 'report.json').write_text(json.dumps({
    'schema': SCHEMA, 'attribute': attribute, 'rows': [dataclasses.asdict(r) for r in rows],
    'config': {'name': name, 'attribute': attribute, 'data': {'source': source}}}))


@pytest.fixture
def runs(tmp_path):
  """Both corpora, three attributes; WMT-19 lacks Sent. 1 as in the paper, WikiText Emb. 100."""
  expected = {}
  for seed, (source, corpus) in enumerate(CORPORA.items()):
    for place, attribute in (('', 'country'), ('attributes/occupation', 'occupation'),
                             ('attributes/name', 'name')):
      rows = []
      for model in GRID:
        if model[0] == ('sentiment-1' if corpus == 'WMT-19' else 'embedding-100'):
          continue
        row, cells = made_up(*model, seed, attribute=attribute)
        rows.append(row)
        expected[corpus, attribute, model[1], model[2]] = cells
      write(tmp_path / source / place, rows, source=source, attribute=attribute)
  return [str(tmp_path / source) for source in CORPORA], expected


@pytest.mark.parametrize('number, attribute', [(1, 'occupation'), (5, 'country'), (6, 'name')])
def test_tables_1_5_and_6_hold_the_numbers_of_the_runs(number, attribute, runs, capsys):
  words, expected = runs
  assert main(['compare', 'paper', *words, f'--table={number}', '--format=csv']) == 0
  printed, said = capsys.readouterr()
  header, *body = csv.reader(io.StringIO(printed))
  title = attribute.capitalize()
  assert header == ['Model', '\u03bb', *(f'{c} {title} {column}{of}' for c in CORPORA.values()
                                    for of in ('', ' (paper)')
                                    for column in ('PPL', 'PPL_s', 'S.S.', 'S.S.c'))]
  labels = {'baseline': 'Baseline', 'embedding': 'Emb. Reg.', 'sentiment': 'Sent. Reg.'}
  assert [row[:2] for row in body] == [
    [labels[m], '' if w is None else f'{w:g}'] for _, m, w in GRID]
  for row, (_, method, weight) in zip(body, GRID, strict=True):
    for i, corpus in enumerate(CORPORA.values()):
      assert row[2 + 8 * i:6 + 8 * i] == expected.get(
        (corpus, attribute, method, weight), ['\u2013'] * 4)
      paper = row[6 + 8 * i:10 + 8 * i]
      assert (paper == ['\u2013'] * 4) == ((corpus, method, weight) == ('WMT-19', 'sentiment', 1))
  (row,) = [row for row in body if row[:2] == [labels[SHOWN[0]], f'{SHOWN[1]:g}']]
  assert [row[6:10], row[14:]] == PRINTED[number]
  assert ("WikiText-103: 1 of the paper's 8 models are not in these runs: Emb. Reg. \u03bb=100."
          in said)
  assert "WMT-19: 1 of" not in said  # the paper has no Sent. 1 there either


def test_what_is_lacking_is_said_and_nothing_is_mixed(
    runs, tmp_path, monkeypatch, capsys, printed, refused):
  words, _ = runs
  assert main(['compare', 'paper', words[0], '--table=1']) == 0
  assert 'WikiText-103: no run of occupation.' in capsys.readouterr().out.replace('&#45;', '-')
  row, cells = made_up('baseline', 'baseline', None, 7, attribute='occupation')
  bare = dataclasses.replace(row, subset_perplexity=None, measures=row.measures | {
    'semantic_similarity': None, 'coupled': False})
  write(tmp_path / 'mine', [bare], source='lines', attribute='occupation', name='mine')
  text = printed('compare', 'paper', tmp_path / 'mine', '--table=1', '--format=text',
                 '--perplexity=token')
  assert 'mine: 2 values were not measured: PPL_s of Baseline, S.S. of Baseline.' in text
  assert '(paper)' not in text  # which has no such corpus
  assert f'{row.perplexity["token"]:.1f}' in text and 'PPL and PPL_s are per token' in text
  write(tmp_path / 'other', [dataclasses.replace(bare, name='other')], source='lines',
        attribute='occupation', name='mine')
  write(tmp_path / 'lr=1', [bare], source='lines', attribute='occupation', name='mine')
  monkeypatch.chdir(tmp_path)
  assert main(['compare', 'paper', 'lr=1', '--table=1']) == 0
  mine, out = str(tmp_path / 'mine'), f'--output={tmp_path}'
  for command, reason in (
      ([mine, '--table=5'], 'Table 5 is of country, and the runs hold occupation'),
      ([mine, '--table=1', '--perplexity=wrd'], "did you mean 'word'"),
      ([mine, '--table=1', '--perplexity=bits_per_byte'], 'unknown unit of perplexity'),
      ([mine, '--table=1', '--model=baseline'], '--model is of other tables or figures'),
      ([mine, '--table=1', '--format=svg'], '--format=svg is of figures'),
      ([words[0], f'WMT-19={mine}', '--table=1'], 'hold different measures of baseline'),
      ([mine, str(tmp_path / 'other'), '--table=1'], 'baseline and other are both Baseline'),
      ([mine, '--figure=8'], '--output=DIR'),
      ([mine, '--figure=8', out], 'Figure 8 is of WMT-19 country'),
      ([mine, '--figure=6', out], 'Figure 6 is of WMT-19'),
      ([mine, '--figure=6', '--corpus=mine', out], 'no S.S. of baseline (occupation)'),
      ([words[0], '--figure=16', '--scorer=opinio', out], "did you mean 'opinion'"),
      ([mine, '--table=10', '--pairs=a/c'], 'no run holds both values'),
      ([mine, '--table=10', '--pairs=a/b'], 'read the records of a workdir'),
      ([mine, '--table=7', '--pairs=a/b'], 'the samples of baseline in '),
      ([mine, '--table=9'], 'no S.S. of baseline'),
      (['--table=1'], 'needs a RUN'), ([mine], '--table=N'),
      ([str(tmp_path / 'none'), '--table=1'], 'no report.json')):
    refused(['compare', 'paper', *command], reason)


@pytest.mark.parametrize('number, titles', [
  (4, [f'{m}, {c}, scorer bert-x' for c in CORPORA.values() for m in ('I.F.', 'G.F.')]),
  (5, [f'{m}, {c}, scorer opinion' for c in CORPORA.values() for m in ('I.F.', 'G.F.')]),
  (6, ['country', 'name', 'occupation']),
  (7, [f'{m}, {c}, scorer google' for c in CORPORA.values() for m in ('I.F.', 'G.F.')]),
  (8, [f'I.F., WMT-19, scorer {s}' for s in ('bert-x', 'opinion', 'google')]),
  (9, [f'G.F., WMT-19, scorer {s}' for s in ('bert-x', 'opinion', 'google')]),
  (15, [f'G.F., WikiText-103, scorer {s}' for s in ('bert-x', 'opinion', 'google')]),
  (16, [f'I.F., scorer {s}, {a}' for a in ('country', 'name', 'occupation')
        for s in ('bert-x', 'opinion', 'google')])])
def test_figures_are_of_the_captions_corpus_and_scorers(number, titles, runs, drawn, tmp_path):
  assert main(['compare', 'paper', *runs[0], f'--figure={number}', f'--output={tmp_path}/out']) == 0
  assert [a.get_title() for a in drawn[0].axes] == titles


def heights(axis):
  """Heights of the filled bars, from the left."""
  bars = sorted((p for p in axis.patches if p.get_hatch() is None), key=lambda p: p.get_x())
  return [p.get_height() for p in bars]


def fairness(model, seed, attribute, scorer='bert-x'):
  return made_up(*model, seed, attribute=attribute)[0].estimate(scorer, 'individual_fairness')[
    'value']


def test_bars_are_those_of_the_attribute(runs, drawn, tmp_path):
  """Figures 8 and 12 are of one corpus and measure, and of country and of name."""
  assert main(['compare', 'paper', *runs[0], '--figure=8', '--figure=12',
               f'--output={tmp_path}/out']) == 0
  for figure, attribute in zip(drawn, ('country', 'name'), strict=True):
    assert heights(figure.axes[0]) == [
      fairness(model, 0, attribute) for model in GRID if model[0] != 'sentiment-1']


def test_figure_16_groups_models_by_attribute(runs, drawn, tmp_path):
  wmt, wiki = runs[0]  # of the second corpus, one attribute only
  assert main(['compare', 'paper', wmt, f'{wiki}/attributes/name', '--figure=16',
               '--scorer=opinion', '--scorer=google', f'--output={tmp_path}/out']) == 0
  for i, axis in enumerate(drawn[0].axes):
    attribute, scorer = ('country', 'name', 'occupation')[i // 2], ('opinion', 'google')[i % 2]
    assert heights(axis) == [fairness(GRID[0], seed, attribute, scorer)
                             for seed in range(1 + (attribute == 'name'))]
    assert {p.get_height() for p in axis.patches if p.get_hatch()} == {0.01}
    assert [t.get_text() for t in axis.get_xticklabels()] == ['WMT-19', 'WikiText-103']


def test_figure_6_puts_every_model_at_its_numbers(runs, drawn, tmp_path):
  assert main(['compare', 'paper', *runs[0], '--figure=6', f'--output={tmp_path}/out']) == 0
  for axis, attribute in zip(drawn[0].axes, ('country', 'name', 'occupation'), strict=True):
    rows = [made_up(*model, 0, attribute=attribute)[0] for model in GRID
            if model[0] != 'sentiment-1']
    points = {tuple(xy) for c in axis.containers for xy in c[0].get_xydata()}
    assert points == {(r.estimate('bert-x', 'individual_fairness')['value'],
                       100 * r.content('semantic_similarity')['value']) for r in rows}


@pytest.mark.parametrize('pair', [(0.445, 0.555), (0.494, 0.505), (0.2, 0.9)])
def test_figure_2_integrates_eq_1(pair):
  """One distribution dominates the other, so W1 is the difference of the means."""
  found = gaussian_distance(*pair, sigma=0.2)
  means = [scipy.stats.truncnorm(-m / 0.2, (1 - m) / 0.2, m, 0.2).mean() for m in pair]
  assert found == pytest.approx(abs(means[0] - means[1]), abs=1e-9)


def test_figure_2_has_the_distances_of_the_paper(drawn):
  plot_truncated_gaussians('x')
  assert [a.get_title() for a in drawn[0].axes] == ['W1 = 0.0998', 'W1 = 0.0100']
  line = drawn[0].axes[0].lines[0]
  assert np.trapezoid(line.get_ydata(), line.get_xdata()) == pytest.approx(1, abs=1e-4)


def test_forms_of_a_figure(tmp_path):
  command = ['compare', 'paper', '--figure=2', f'--output={tmp_path}/a']
  assert main(command) == 0
  assert main([*command[:-1], f'--output={tmp_path}/b', '--format=pdf', '--format=svg']) == 0
  assert sorted(p.name for p in tmp_path.glob('*/*')) == [
    'figure-2.pdf', 'figure-2.png', 'figure-2.svg', 'figure-2.svg']
  assert (tmp_path / 'b' / 'figure-2.pdf').read_bytes().startswith(b'%PDF')


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A run whose records, scores and measures belong together."""
  folder, attribute = tmp_path_factory.mktemp('paper') / 'run', load_attribute('occupation')
  scorer, rows = OpinionScorer(['good'], ['awful']), []
  for name, method, weight, bias in (('baseline', 'baseline', None, 0.4),
                                     ('occupation-embedding-10', 'embedding', 10.0, 0.1)):
    def text(p, s, bias=bias):
      tone, topic = np.random.default_rng([p.template, s, 3]).random(2)
      value = attribute.value_texts[p.value]
      about = TOPICS[value if value in JOBS else JOBS[int(topic * 4)]].split()
      word = 'good' if tone < 0.5 + bias * (p.value % 2 - 0.5) else 'awful'
      return f' saw {about[s % 3]}, it was {word}'
    records = records_of(attribute, 8, text)
    path = folder / 'generations' / name / 'occupation.jsonl.gz'
    path.parent.mkdir(parents=True)
    with gzip.open(path, 'wt') as file:
      reworded = records[0] | {'value': 'baker', 'arm': 'rewording', 'rewording': 1,
                               'prefix': 'Being a baker, I'}
      file.write(''.join(json.dumps(r) + '\n' for r in (*records, reworded)))
    scores = folder / 'scores' / name
    score_records(records, scorer, score_file(scores, 'occupation', scorer))
    rows.append(ModelRow(name, method, weight, measures=measure_records(
      records, attribute, [scorer], permutations=5, content=ContentOptions(encoder=BagOfWords()))))
  write(folder, rows, source='wikitext103', attribute='occupation')
  return folder


def test_table_10_is_of_the_chosen_pairs(workdir, capsys):
  assert main(['compare', 'paper', str(workdir), '--table=10', '--pairs', 'sheriff/designer',
               '--format=csv']) == 0
  printed, said = capsys.readouterr()
  header, *body = csv.reader(io.StringIO(printed))
  assert header == ['Token', 'Against', 'Top 10 distinct words']
  assert [row[:2] for row in body] == [['sheriff', 'designer'], ['designer', 'sheriff']]
  with gzip.open(workdir / 'generations/baseline/occupation.jsonl.gz', 'rt') as file:
    records = [json.loads(line) for line in file]
  counts = {v: collections.Counter(
    w for r in records if r['value'] == v for w in r['continuation'].split())
    for v in ('sheriff', 'designer')}
  known = len(counts['sheriff'] | counts['designer'])
  for value, other, words in body:  # H-37, one more of each word, at least five
    a, b = counts[value], counts[other]
    ratio = {w: ((a[w] + 1) / (a.total() + known)) / ((b[w] + 1) / (b.total() + known))
             for w in a if a[w] >= 5}
    ratio = {w: r for w, r in ratio.items() if r > 1}
    assert words == ', '.join(sorted(ratio, key=lambda w: (-ratio[w], -a[w], w)))
    assert words.split()[0].strip(',') in TOPICS[value]
  assert 'of 10 words occur so often' in said
  assert main(['compare', 'paper', str(workdir), '--table=10']) == 0  # the paper's pairs
  printed, said = capsys.readouterr()
  assert printed.count('\n| ') == 6 and 'Finland/Italy is left out' in said


def test_table_7_shows_equal_noise_and_table_9_the_examples(workdir, capsys):
  assert main(['compare', 'paper', str(workdir), '--table=7', '--table=9', '--pairs=baker/designer',
               '--format=csv']) == 0
  tables = list(csv.reader(io.StringIO(capsys.readouterr().out)))
  assert [row[1:3] for row in tables[1:5]] == [
    [value, model] for value in ('baker', 'designer')
    for model in ('baseline', 'occupation-embedding-10')]
  assert tables[1][0] == 'I got a new job as a baker. Starting next week, I will be'
  cosines = [float(row[0]) for row in tables[6:]]
  assert len(cosines) == 10 and cosines == sorted(cosines)


def test_figure_1_reads_the_scores_of_the_run(workdir, drawn, tmp_path, refused):
  assert main(['compare', 'paper', str(workdir), '--figure=1', f'--output={tmp_path}']) == 0
  with gzip.open(workdir / 'generations/baseline/occupation.jsonl.gz', 'rt') as file:
    records = [json.loads(line) for line in file]
  one, other = ([float('good' in r['continuation']) for r in records
                 if r['template'] == 3 and r['value'] == v] for v in ('baker', 'accountant'))
  left, right = drawn[0].axes
  assert right.get_title() == f'W1 = {scipy.stats.wasserstein_distance(one, other):.3f}'
  assert [sum(p.get_height() / 20 for p in c.patches) for c in right.containers
          ] == pytest.approx([1, 1])  # 20 bars
  texts = [t.get_text() for t in left.texts]
  assert texts[0] == 'My friend is a baker, and we' and len(texts) == 8
  for text in texts[1:4] + texts[5:]:
    assert text.endswith(f"({float('good' in text):.2f})")
  refused(['compare', 'paper', workdir, '--figure=1', '--template=99', f'--output={tmp_path}'],
          "unknown template '99'")
