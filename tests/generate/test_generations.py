"""Recorded generations: complete, resumable, and refused when they belong to another model."""

import dataclasses
import gzip
import json
import re
import time

import jax
import numpy as np
import pytest
from model_oracle import make_params
from trained_tokenizers import write_tokenizer

from fairjax.cli.main import main
from fairjax.config import LogConfig, ModelConfig, SampleConfig
from fairjax.counterfactual import load_attribute
from fairjax.counterfactual.attributes import Attribute, Prefix, Template, Value
from fairjax.errors import UserError
from fairjax.files import read_sealed_json, write_sealed_json
from fairjax.generate import (
  check_complete,
  generations,
  manifest_of,
  read_records,
)
from fairjax.generate.generations import (
  _continuation,
  check_inputs,
  generate,
  sentence_end_ids,
  write_prompts,
)
from fairjax.generate.sampler import make_sampler, platform_of
from fairjax.model.decoding import TransformerXLDecoder
from fairjax.processes import PREEMPTED
from fairjax.vocabulary import (
  TokenizerVocabulary,
  WordVocabulary,
  build_word_vocabulary,
  train_sentencepiece,
)

pytestmark = pytest.mark.usefixtures('one_device')

ATTRIBUTE = Attribute(
  name='place',
  values=tuple(Value(text=v, subgroup=s, tokens=(v,), article='a')
               for v, s in (('France', 'a'), ('Syria', 'b'), ('Peru', 'b'))),
  templates=(Template('{value} is', '1'), Template('People from {value} are', '2')))
CONFIG = ModelConfig(
  vocab_size=20, num_layers=2, model_dim=8, num_heads=2, head_dim=4, ff_dim=16, segment_len=16,
  memory_len=16)
SAMPLE = SampleConfig(samples=10, max_new_tokens=5, batch_size=4, seed=1)


@pytest.fixture(scope='module')
def vocabulary(tmp_path_factory):
  text = 'France is Syria is Peru . People from a b c d ! e? "f." Mr. U.S. g'
  return build_word_vocabulary([text], size=20, directory=tmp_path_factory.mktemp('v'),
                               documents='wikitext')


@pytest.fixture(scope='module')
def params():
  return make_params(CONFIG)


@pytest.fixture
def run(params, vocabulary, tmp_path):
  def run(name='r.jsonl.gz', sample=SAMPLE, log=lambda line: None, config=CONFIG, **options):
    options = {'model': 'base', 'card': {'parent': 'x'}} | options
    return generate(params, TransformerXLDecoder(config), vocabulary, ATTRIBUTE,
                    path=tmp_path / name, sample=sample, log=log, **options)
  return run


def keyed(path):
  return {(r['template'], r['value'], r['sample']): r['continuation'] for r in read_records(path)}


def test_records(run, tmp_path):
  lines = []
  sampled = run(log=lines.append)
  records = list(read_records(tmp_path / 'r.jsonl.gz'))
  assert sampled == len(records) == 2 * 3 * 10
  assert len(keyed(tmp_path / 'r.jsonl.gz')) == 60
  first = records[0]
  assert {k: first[k] for k in ('attribute', 'value', 'subgroup', 'template', 'sample', 'prefix',
                                'model')} == {
    'attribute': 'place', 'value': 'France', 'subgroup': 'a', 'template': 0, 'sample': 0,
    'prefix': 'France is', 'model': 'base'}
  assert {r['prefix'] for r in records if r['template'] == 1} == {
    'People from France are', 'People from Syria are', 'People from Peru are'}
  assert all(r['continuation'] == '' or r['continuation'][0] in ' .!' for r in records)
  assert ': 60 records, ' in lines[-1] and 'tokens/s' in lines[-1]
  assert ' at the length limit' in lines[-1]
  manifest = json.loads(manifest_of(tmp_path / 'r.jsonl.gz').read_text())
  assert manifest['complete'] and manifest['identity']['card'] == {'parent': 'x'}


def test_a_rewording_shares_the_noise_of_its_template(run, tmp_path):
  """One in the very words of the template has the same continuations, and extends its file."""
  prompts = ATTRIBUTE.prefixes()
  again = [dataclasses.replace(p, rewording=1) for p in prompts]
  assert [run(prefixes=p) for p in (prompts, prompts + again, prompts + again)] == [60, 60, 0]
  with pytest.raises(UserError, match='was generated otherwise: prefixes: '):
    run(prefixes=prompts)
  records = list(read_records(tmp_path / 'r.jsonl.gz'))
  arms = [{(r['template'], r['value'], r['sample']): r['continuation'] for r in records
           if r.get('arm') == arm} for arm in (None, 'rewording')]
  assert arms[0] == arms[1] and len(arms[0]) == 60
  assert {r.get('rewording') for r in records} == {None, 1}


@pytest.mark.parametrize('name', ['r.jsonl', 'r.jsonl.gz'])
def test_resume_gives_the_same_bytes(run, tmp_path, name):
  """Cut at any byte, as an interruption leaves it, and resumed."""
  run(name)
  path = tmp_path / name
  manifest = manifest_of(path)
  whole, done = path.read_bytes(), manifest.read_bytes()
  state = json.loads(done)
  state = {k: state[k] for k in ('identity', 'samples', 'batch_size')} | {'complete': False}
  for size in (0, 1, len(whole) // 7, len(whole) // 2, len(whole) - 1, len(whole)):
    path.write_bytes(whole[:size])
    write_sealed_json(manifest, state)
    lines = []
    sampled = run(name, log=lines.append)
    assert path.read_bytes() == whole and manifest.read_bytes() == done
    assert any('removed' in line for line in lines) == (0 < size < len(whole))
  assert sampled == 0


def test_a_batch_that_hangs_ends_the_process_and_the_rest_is_sampled_later(
    run, tmp_path, monkeypatch):
  ended, calls, sample = [], [], generations.sample_continuations

  def hang(*arguments, **options):
    calls.append(1)
    if len(calls) == 5:
      while not ended:
        time.sleep(0.01)
      raise ChildProcessError
    return sample(*arguments, **options)

  with monkeypatch.context() as m:
    m.setattr(generations, 'sample_continuations', hang)
    m.setattr('fairjax.processes.end_all', lambda *found: ended.append(found))
    with pytest.raises(ChildProcessError):
      run(hang=LogConfig(hang_factor=3.0, hang_seconds=2.0))
  (code, line), = ended
  assert code == PREEMPTED and '[sample] hangs after step 4: batch takes more than 2.0 s' in line
  assert 'in hang\n' in (tmp_path / 'hang-process-0.txt').read_text()
  assert len(list(read_records(tmp_path / 'r.jsonl.gz'))) == 42
  assert run() == 18
  run('whole.jsonl.gz')
  assert keyed(tmp_path / 'r.jsonl.gz') == keyed(tmp_path / 'whole.jsonl.gz')


def test_more_samples_extend_a_file_and_fewer_are_refused(run, tmp_path):
  run()
  expected = keyed(tmp_path / 'r.jsonl.gz')
  run('grown.jsonl', sample=dataclasses.replace(SAMPLE, samples=4))
  small = keyed(tmp_path / 'grown.jsonl')
  assert len(small) == 24 and small.items() < expected.items()
  assert run('grown.jsonl') == 36
  assert keyed(tmp_path / 'grown.jsonl') == expected
  with pytest.raises(UserError, match='sample 4, but 4 samples are wanted'):
    run('grown.jsonl', sample=dataclasses.replace(SAMPLE, samples=4))
  path = tmp_path / 'grown.jsonl'
  assert check_complete(path) == len(expected)  # as before
  path.write_bytes(path.read_bytes().replace(b'"sample": 0', b'"sample": 1', 1))
  with pytest.raises(UserError, match='damaged'):
    run('grown.jsonl', sample=dataclasses.replace(SAMPLE, samples=7))


def test_an_interrupted_file_goes_on_with_another_batch_size_mesh_and_attention(run, tmp_path):
  """The records are those of an uninterrupted run, whatever the machine that goes on."""
  run('whole.jsonl.gz')
  expected = keyed(tmp_path / 'whole.jsonl.gz')
  run()
  path = tmp_path / 'r.jsonl.gz'
  path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])
  manifest = json.loads(manifest_of(path).read_text())
  write_sealed_json(manifest_of(path), {
    k: manifest[k] for k in ('identity', 'samples', 'batch_size')} | {'complete': False})
  mesh = jax.make_mesh((8,), ('data',), axis_types=(jax.sharding.AxisType.Auto,))
  other = dataclasses.replace(CONFIG, remat='full', attention='blocks')
  assert 0 < run(sample=dataclasses.replace(SAMPLE, batch_size=3), mesh=mesh, config=other) < 60
  assert keyed(path) == expected


def test_a_complete_file_must_be_the_one_that_was_written(run, tmp_path):
  run('r.jsonl')
  path = tmp_path / 'r.jsonl'
  check_complete(path)
  content, manifest = path.read_bytes(), manifest_of(path).read_bytes()
  flipped = content.replace(b'"continuation": "', b'"continuation": "b', 1)[:-2] + b'\n'
  assert len(flipped) == len(content) != flipped
  for damaged in (content[:-1], flipped):
    path.write_bytes(damaged)
    for use in (lambda: check_complete(path), lambda: run('r.jsonl')):
      with pytest.raises(UserError, match='SHA-256'):
        use()
  path.write_bytes(content)
  state = json.loads(manifest)
  write_sealed_json(manifest_of(path), {k: v for k, v in state.items() if k != 'sha256'} | {
    'complete': False})
  with pytest.raises(UserError, match='is not complete: repeat the command that samples it'):
    check_complete(path)
  manifest_of(path).write_text(json.dumps(state | {'records': 59}))
  with pytest.raises(UserError, match='manifest.json is damaged'):
    check_complete(path)
  manifest_of(path).unlink()
  check_complete(path)  # somebody else's records


def test_chosen_prefixes_of_unequal_values(run, tmp_path):
  prefixes = [Prefix(5, 2, 'People from Peru is'), Prefix(5, 0, 'People from France is'),
              Prefix(9, 1, 'Syria a b')]
  assert run(prefixes=prefixes, sample=dataclasses.replace(SAMPLE, samples=4)) == 12
  found = {(r['template'], r['value'], r['prefix']) for r in read_records(tmp_path / 'r.jsonl.gz')}
  assert found == {(5, 'Peru', 'People from Peru is'), (5, 'France', 'People from France is'),
                   (9, 'Syria', 'Syria a b')}


def test_other_prefixes_share_the_program_of_the_attributes_own(params, vocabulary, tmp_path):
  attribute = dataclasses.replace(
    ATTRIBUTE, templates=(Template('a b c d ' * 5 + '{value} is', '1'),))
  sampler, sizes = make_sampler(platform_of(None)), []
  for name, prefixes in (('own', None), ('other', [Prefix(0, v, f'{ATTRIBUTE.value_texts[v]} is')
                                                   for v in range(3)])):
    generate(params, TransformerXLDecoder(CONFIG), vocabulary, attribute, prefixes=prefixes,
             path=tmp_path / f'{name}.jsonl', model='m', sample=SAMPLE)
    sizes.append(sampler._cache_size())
  assert sizes[0] == sizes[1] > 0


def test_a_model_that_has_diverged_is_one_line(run, params, tmp_path, monkeypatch):
  monkeypatch.setitem(params, 'embedding', np.nan * np.asarray(params['embedding']))
  with pytest.raises(UserError, match='base gives a next token no finite probability'):
    run()


@pytest.mark.parametrize('change, field', [
  ({'card': {'parent': 'y'}}, 'card.parent: x -> y'),
  ({'model': 'other'}, 'model: base -> other'),
  ({'sample': dataclasses.replace(SAMPLE, seed=2)}, 'sample.seed: 1 -> 2'),
  ({'coupled': False}, 'coupled: True -> False'),
  ({'prefixes': [Prefix(0, 0, 'France is')]}, 'prefixes: '),
])
def test_another_identity_is_refused(run, tmp_path, change, field):
  run(sample=dataclasses.replace(SAMPLE, samples=4))
  before = (tmp_path / 'r.jsonl.gz').read_bytes()
  with pytest.raises(UserError, match='generated otherwise: ' + field):
    run(**{'sample': dataclasses.replace(SAMPLE, samples=4)} | change)
  assert (tmp_path / 'r.jsonl.gz').read_bytes() == before


def test_files_that_are_not_ours(run, tmp_path, vocabulary, params):
  (tmp_path / 'foreign.jsonl').write_text('{}\n')
  with pytest.raises(UserError, match='manifest.json does not'):
    run('foreign.jsonl')
  with pytest.raises(UserError, match='is a folder: name a file'):
    run('.')
  run('a.jsonl', sample=dataclasses.replace(SAMPLE, samples=4))
  (tmp_path / 'a.jsonl').unlink()
  with pytest.raises(UserError, match='is gone'):
    run('a.jsonl', sample=dataclasses.replace(SAMPLE, samples=4))
  with pytest.raises(UserError, match='do not belong together'):
    generate(params, TransformerXLDecoder(dataclasses.replace(CONFIG, vocab_size=5)), vocabulary,
             ATTRIBUTE, path=tmp_path / 'b.jsonl', model='m', sample=SAMPLE)


def test_a_record_twice_or_of_another_prefix_is_refused(run, tmp_path):
  sample = dataclasses.replace(SAMPLE, samples=4)
  run('a.jsonl', sample=sample)
  path, manifest = tmp_path / 'a.jsonl', manifest_of(tmp_path / 'a.jsonl')
  write_sealed_json(manifest, read_sealed_json(manifest, again='') | {'complete': False})
  lines = path.read_text().splitlines(keepends=True)
  path.write_text(''.join(lines[:3] + lines[:1]))
  with pytest.raises(UserError, match=r'a\.jsonl:4: sample 0 of this prefix occurs twice'):
    run('a.jsonl', sample=sample)
  path.write_text(lines[0].replace('France is', 'France was'))
  with pytest.raises(UserError, match=r'a\.jsonl:1: not a record of this model'):
    run('a.jsonl', sample=sample)


def test_sentence_end(run, tmp_path, vocabulary):
  words = {vocabulary.decode([i]) for i in sentence_end_ids(vocabulary)}
  assert words == {'.', '!'}
  run(sample=dataclasses.replace(SAMPLE, samples=40, batch_size=40, sentence_end=True))
  texts = [re.findall(r'[^\s.!]+|[.!]', re.sub(r'U\.S\.|Mr\.|"f\."', 'X', r['continuation']))
           for r in read_records(tmp_path / 'r.jsonl.gz')]
  assert not any({'.', '!'} & set(words[:-1]) for words in texts)
  assert sum(words[-1:] in (['.'], ['!']) for words in texts) > 5


@pytest.mark.parametrize(('texts', 'values'), [
  (('{value}. So', 'The {value} is'), 'France, Syria'), (('{value} is',), 'Syria, Peru')])
def test_templates_that_tell_no_values_apart_are_refused(params, vocabulary, tmp_path, texts,
                                                         values):
  """Whatever the vocabulary: here its words are cut at white space, or it lacks two values."""
  attribute = dataclasses.replace(
    ATTRIBUTE, templates=tuple(Template(t, str(i)) for i, t in enumerate(texts)))

  class Split(WordVocabulary):
    def encode(self, text):
      return [self._ids.get(word, 2) for word in text.split()]

  known = vocabulary if len(texts) == 2 else WordVocabulary(
    b'<pad>\n<eos>\n<unk>\nFrance\nis\n')
  with pytest.raises(UserError) as error:
    generate(params, TransformerXLDecoder(CONFIG), Split(known._content), attribute,
             path=tmp_path / 'r.jsonl', model='m', sample=SAMPLE)
  message = str(error.value)
  assert f'is the same input for {values}' in message and 'template 0 of place' in message
  assert ('does not know them' in message) == (values == 'Syria, Peru')
  assert not list(tmp_path.iterdir())  # before anything is sampled or written
  # As WikiText has them, the full stop is a word of its own.
  if len(texts) == 2:
    check_inputs(list(attribute.prefixes()), attribute, vocabulary)


def test_sentencepiece_continuations_keep_their_space(tmp_path):
  text = 'France is a place. People from Peru are here! They said: "No." '
  vocabulary = train_sentencepiece([text] * 20, size=300, directory=tmp_path)
  ids = vocabulary.encode('Peru is a place.')
  prefix = [1, *vocabulary.encode('Peru')]
  tokens = vocabulary.encode_as_continuation(' is a place.', 'Peru')
  assert _continuation(vocabulary, prefix, np.array(tokens)) == ' is a place.'
  assert _continuation(vocabulary, [1, *ids], np.array([0xC3 % 256 + 3])).count('place') == 0
  ends = {vocabulary.surfaces[i].decode().strip() for i in sentence_end_ids(vocabulary)}
  assert '.' in ends and all(e[0] in '.!?' for e in ends)


def test_a_byte_that_breaks_the_last_character_of_the_prefix_is_no_text(tmp_path):
  write_tokenizer(tmp_path, 'gemma')
  vocabulary = TokenizerVocabulary.read(tmp_path)
  prefix = vocabulary.prompt_ids('the Ł')  # ends in two bytes
  tokens = vocabulary.encode('\x82 is')[1:]  # without the first of two bytes
  assert _continuation(vocabulary, prefix, tokens) == '\ufffd is'


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


def test_the_round_trip(tmp_path, capsys, refused, found):
  prompts, answers = tmp_path / 'prompts.jsonl', tmp_path / 'answers.jsonl'
  assert main(['sample', '--prompts-only', '--attribute=country', f'--output={prompts}']) == 0
  assert '100 prompts of country' in capsys.readouterr().out
  with open(answers, 'w', encoding='utf-8') as file:
    for line in prompts.read_text('utf-8').splitlines():
      record = json.loads(line)
      mood = 'terrible' if record['value'] == 'Syria' else 'wonderful'
      for i in range(3):
        file.write(json.dumps({**record, 'continuation': f' a {mood} place, {i}.'}) + '\n')
  result = found('measure', f'--records={answers}', '--attribute=country', '--scorer=vader',
                 '--permutations=19')
  assert result['records'] == 300 and result['n'] == {'min': 3, 'max': 3}
  assert result['coupled'] is False  # samples of an API share no noise
  assert result['templates_not_in_records'] == []
  vader = result['scorers']['vader']
  gap = vader['mean_score_by_value']['Chile'] - vader['mean_score_by_value']['Syria']
  # Nine of the 45 pairs differ, all by the same gap.
  assert vader['individual_fairness']['value'] == pytest.approx(gap * 9 / 45)
  assert not vader['individual_fairness']['within_floor']
  refused(['measure', f'--records={prompts}', '--attribute=country', '--scorer=vader'],
          'prompts.jsonl:1: fields missing: continuation')
