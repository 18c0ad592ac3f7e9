"""What the cells of the notebooks call: sizes, shown objects, tables, checkpoints, figures."""

import json
import types

import numpy as np
import pytest
from test_report import measures_of

from fairjax.counterfactual import load_attribute
from fairjax.errors import UserError
from fairjax.measure import SampleScores, VaderScorer, fairness_by_samples, individual_fairness
from fairjax.report import ModelRow, brief_table, plot_floors, plot_weights
from fairjax.report.sections import largest_cell
from fairjax.run.notebook import (
  Devices,
  Progress,
  Sizes,
  evaluate,
  find_texts,
  quick_compilation,
  show_figure,
  tiny_config,
)

SIZES = Sizes(samples=4, batch_size=4, max_new_tokens=6, permutations=20)


def test_devices_are_stated_and_sized():
  cpu = Devices('cpu', 'cpu', 1, None, '0.10.2')
  tpu = Devices('tpu', 'TPU v5 lite', 1, '0.0.42', '0.10.2')
  lost = Devices('cpu', 'cpu', 1, '0.0.42', '0.10.2')
  assert cpu.sized().samples < tpu.sized().samples == 1000
  shown = tpu._repr_markdown_()
  assert 'TPU v5 lite' in shown and '1,000 samples' in shown
  assert ['found no TPU' in d._repr_markdown_() for d in (cpu, tpu, lost)] == [False, False, True]
  assert (tpu.sized(20).samples, tpu.sized(20).batch_size) == (20, 20)
  assert tpu.sized(5000).batch_size == tpu.sized().batch_size


def test_progress_shows_the_newest_line_and_keeps_all(monkeypatch):
  shown, handle = [], types.SimpleNamespace(update=lambda page: shown.append(page.data))

  def display(page, *, display_id):
    assert display_id is True and not shown
    shown.append(page.data)
    return handle

  monkeypatch.setattr('IPython.display.display', display)
  progress = Progress('Training <b>')
  for line in ('first <i>', 'second'):
    progress(line)
  assert len(shown) == 2 and 'first' in shown[0]
  summary, _, lines = shown[1].partition('</summary>')
  assert 'second' in summary and 'first' not in summary
  assert 'first &lt;i&gt;' in lines and '<b>Training &lt;b&gt;</b>' in summary


@pytest.mark.parametrize('before', [False, True])
def test_quick_compilation_ends_as_it_began(before):
  import jax
  read = lambda: jax.config.read('jax_disable_most_optimizations')
  of_the_tests = read()
  jax.config.update('jax_disable_most_optimizations', before)
  with pytest.raises(KeyError):
    with quick_compilation():
      assert read() == (before or jax.default_backend() == 'cpu')
      raise KeyError
  assert read() == before
  jax.config.update('jax_disable_most_optimizations', of_the_tests)


def test_a_tiny_run_needs_no_tensorflow():
  config = tiny_config(SIZES, embedding=(1, 0.5), seed=3)
  assert config.data.reader == 'numpy'
  assert config.debias.variants == ('embedding:1', 'embedding:0.5')
  assert config.until == 'debias' and tiny_config(SIZES).until == 'lm'
  assert config.seed == config.data.seed == 3 and config.sample.samples == 4


@pytest.fixture
def samples():
  rng = np.random.default_rng(0)
  scores = (rng.random((2, 3, 60)) + 0.2 * np.arange(3)[:, None]) / 1.4
  return SampleScores.from_arrays(scores, coupled=True)


def test_fairness_of_the_first_samples(samples):
  found = fairness_by_samples(samples, [5, 20, 60], permutations=100)
  assert [e.n_min for e in found] == [5, 20, 60]
  assert found[-1] == individual_fairness(samples, permutations=100)
  part = [[x[:20] for x in row] for row in samples.scores]
  assert found[1].value == individual_fairness(part, permutations=2).value
  assert found[0].null_p95 > found[1].null_p95 > found[2].null_p95
  assert not found[-1].within_floor


@pytest.mark.parametrize('count', [0, 61])
def test_samples_that_are_not_there_are_refused(samples, count):
  with pytest.raises(UserError, match=f'{count} samples of every prefix: from 1 to 60 are there'):
    fairness_by_samples(samples, [5, count])


@pytest.fixture(scope='module')
def rows():
  def ppl(word):
    return {'word': word, 'token': word, 'tokens': 10}
  return [
    ModelRow('baseline', 'baseline', None, ppl(4.0), None, measures_of(0.4)),
    ModelRow('embedding-1', 'embedding', 1.0, ppl(4.1), None, measures_of(0.3)),
    ModelRow('embedding-10', 'embedding', 10.0, ppl(4.4), None,
             measures_of(0.0, mention=0.0)),
    ModelRow('sentiment-1', 'sentiment', 1.0, None, None, None)]


def test_the_brief_table_says_what_may_be_read(rows):
  table = brief_table(rows)
  assert table.header[:2] == ['model', 'measure'] and len(table.rows) == 6
  by_model = {line[0]: line for line in table.rows if line[1] == 'I.F. opinion'}
  assert by_model['baseline'][2].endswith('), above noise') and by_model['baseline'][-1] == '40'
  assert by_model['embedding-10'][2].endswith('), within noise')
  one = brief_table(rows[:1])
  assert one.header[0] == 'measure' and [line[0] for line in one.rows] == [
    'I.F. opinion', 'G.F. opinion']
  assert one._repr_markdown_() == one.markdown()


def test_the_largest_cell_is_the_largest(rows):
  template, values = largest_cell(rows[0], 'opinion')
  cells = rows[0].scorer('opinion')['cells']['distance']
  pairs = [tuple(pair) for pair in rows[0].scorer('opinion')['pairs']['values']]
  assert cells[template][pairs.index(values)] == max(map(max, cells)) > 0
  with pytest.raises(ValueError, match='vader'):
    largest_cell(rows[0], 'vader')


def test_curves_by_weight_and_by_samples(rows, samples, tmp_path):
  found = [e.to_dict() for e in fairness_by_samples(samples, [5, 60], permutations=20)]
  for files in (plot_weights(tmp_path / 'weights', rows=rows, scorer='opinion'),
                plot_floors(tmp_path / 'floors', models={'a': found, 'b': found})):
    image = show_figure(files)
    assert image.data.startswith(b'\x89PNG') and 300 < image.width < 700
  for part in (rows[1:], rows[:1]):
    with pytest.raises(ValueError, match='need a baseline and models'):
      plot_weights(tmp_path / 'none', rows=part, scorer='opinion')


# The evaluation of a file.


def write_texts(path, *, effect):
  """20 samples a prefix; the first country's texts are good in a share of `effect` more of them."""
  country = load_attribute('country')
  with open(path, 'w', encoding='utf-8') as file:
    for prefix in country.prefixes():
      for sample in range(20):
        good = sample % 2 == 0 or (prefix.value == 0 and sample < 40 * effect)
        file.write(json.dumps({
          'attribute': 'country', 'value': country.values[prefix.value].text,
          'template': prefix.template, 'prefix': prefix.text, 'sample': sample,
          'continuation': 'wonderful.' if good else 'terrible.'}) + '\n')


@pytest.mark.parametrize('effect', [0.0, 0.25])
def test_a_file_is_measured_and_reported(tmp_path, effect):
  write_texts(tmp_path / 'x.jsonl', effect=effect)
  lines = []
  texts = find_texts(sizes=SIZES, output=tmp_path / 'out', records=str(tmp_path / 'x.jsonl'),
                     log=lines.append)
  assert 'a file of generations' in texts._repr_markdown_() and 'Syria' in texts._repr_markdown_()
  result = evaluate(texts, scorers='vader', output=tmp_path / 'out', sizes=SIZES, log=lines.append)
  # One of ten values differs from the nine others: 9 of 45 pairs, by the share times the scores'
  # difference.
  step = np.ptp(VaderScorer().score(['wonderful.', 'terrible.']))
  found = result.row.estimate('vader', 'individual_fairness')
  assert found['value'] == pytest.approx(9 / 45 * effect * step, abs=1e-9)
  _, words, _, n = result.table.rows[0]
  assert words.endswith(f"), {'above' if effect else 'within'} noise") and n == '20'
  assert ('above noise' if effect else 'no sentiment bias') in result.verdict.data
  content = {line[0]: line[1] for line in result.content_table.rows}
  assert content['PPL'] == content['KL of the next token, nats'] == 'not measured'
  for figure in (result.fairness_figure, result.pair_figure):
    assert figure.data.startswith(b'\x89PNG')
  assert (result.folder / 'index.html').is_file() and 'index.html' in result.report.data


def test_independent_texts_have_the_larger_floor(tmp_path):
  write_texts(tmp_path / 'x.jsonl', effect=0.0)
  floors = []
  for independent in (False, True):
    texts = find_texts(sizes=SIZES, output=tmp_path / f'{independent}', log=lambda line: None,
                       records=str(tmp_path / 'x.jsonl'), independent=independent)
    result = evaluate(texts, scorers='vader', output=tmp_path / f'{independent}', sizes=SIZES,
                      log=lambda line: None)
    floors.append(result.row.estimate('vader', 'individual_fairness')['null_p95'])
  assert floors[0] == 0 < floors[1]


def test_what_cannot_be_measured_is_refused(tmp_path):
  options = {'sizes': SIZES, 'output': tmp_path, 'log': lambda line: None}
  with pytest.raises(UserError, match='leave one of them empty'):
    find_texts(checkpoint='a', records='b', **options)
  with pytest.raises(UserError, match='no.jsonl is no file'):
    find_texts(records='no.jsonl', **options)
  with pytest.raises(UserError, match='has no config.json'):
    find_texts(checkpoint=str(tmp_path), **options)
  write_texts(tmp_path / 'x.jsonl', effect=0.0)
  texts = find_texts(records=str(tmp_path / 'x.jsonl'), **options)
  with pytest.raises(UserError, match='needs a lexicon'):
    evaluate(texts, scorers='opinion', **options)
  with pytest.raises(UserError, match='names no scorer'):
    evaluate(texts, scorers=' , ', **options)

