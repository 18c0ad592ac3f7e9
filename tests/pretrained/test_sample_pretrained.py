"""A published GPT-2 through the coupled sampler and the verb."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command_words import changed
from golden_models import ATTRIBUTE, GOLDEN, MORE, lm_logits, oracle_kl, padded, vocab_size
from model_oracle import continuation_logits

from fairjax.cli import main as cli
from fairjax.files import read_sealed_json, write_sealed_json
from fairjax.generate import read_records
from fairjax.generate.sampler import sample_continuations
from fairjax.model.decoder import CachedDecoder
from fairjax.pretrained import load_pretrained
from fairjax.pretrained.tokens import unused_ids

pytestmark = pytest.mark.usefixtures('one_device')


@functools.cache
def load(name='gpt2', dtype='float32'):
  model = load_pretrained(GOLDEN / name, 'lm', dtype=dtype)
  return model, CachedDecoder(model.arch)


cached_logits = jax.jit(continuation_logits, static_argnums=0)


@pytest.fixture
def folder(copy, tmp_path):
  """The golden model with an end-of-text id of its own (the library wrote GPT-2's)."""
  return copy('gpt2', eos_token_id=0).rename(tmp_path / 'gpt2')


def test_bfloat16_is_near_and_keeps_float32_caches_on_cpu():
  """Its logits differ from float32's as those of the model without a cache do."""
  rng = np.random.default_rng(0)
  prefixes, rest = rng.integers(2, 40, (2, 6)), rng.integers(2, 40, (2, 3, 8))
  found = {}
  for dtype in ('float32', 'bfloat16'):
    model, decoder = load('gpt2', dtype)
    cached = cached_logits(
      decoder, model.params, jnp.asarray(prefixes), jnp.array([6, 6]), jnp.asarray(rest))
    whole = np.concatenate([np.repeat(prefixes[:, None], 3, 1), rest], axis=2).reshape(6, -1)
    plain = lm_logits(model.params, model.arch, jnp.asarray(whole))[:, 5:-1]
    found[dtype] = [np.asarray(x, np.float64).reshape(2, 3, 8, -1) for x in (cached, plain)]
    rounded = cached == cached.astype(jnp.bfloat16)
    assert rounded.mean() < 0.1, 'logits are float32 sums, not rounded'
  exact = found['float32'][1]
  cached, plain = (np.sqrt(np.square(x - exact).mean()) for x in found['bfloat16'])
  assert 0 < cached < 1.2 * plain < 0.02 * exact.std()
  wide = jnp.float32 if jax.default_backend() == 'cpu' else jnp.bfloat16
  step = jax.make_jaxpr(lambda p: continuation_logits(
    decoder, p, jnp.asarray(prefixes), jnp.array([6, 6]), jnp.asarray(rest)))(model.params)
  loops = [e for e in step.eqns if e.primitive.name == 'while']
  kept = {v.aval.dtype for loop in loops for v in loop.outvars if v.aval.ndim == 5}
  assert kept == {jnp.dtype(wide)}


def test_the_verb_samples_resumes_and_measures(tmp_path, folder, attribute, printed, refused):
  out = tmp_path / 'towns.jsonl'
  command = ['sample', f'--pretrained={folder}', f'--attribute={attribute}', f'--output={out}',
             '--samples=5', '--max-new-tokens=6', '--batch-size=2', '--seed=7']
  assert cli.main(command) == 0
  records = list(read_records(out))
  assert len(records) == 2 * 2 * 5 and {r['model'] for r in records} == {'gpt2'}
  assert {r['prefix'] for r in records} == {
    'The Rome is', 'The Oslo is', 'My friend from Rome likes', 'My friend from Oslo likes'}
  content = out.read_bytes()
  # An interruption in the last record: the same command ends with the same bytes.
  out.write_bytes(content[:-20])
  manifest = out.with_name('towns.manifest.json')
  state = read_sealed_json(manifest, again='')
  write_sealed_json(manifest, state | {'complete': False})
  assert cli.main(command) == 0 and out.read_bytes() == content
  refused([*command, '--temperature=0.5'], 'generated otherwise')
  assert 'I.F. ' in printed('measure', f'--records={out}', f'--attribute={attribute}',
                            '--scorer=vader', '--permutations=20')
  # Its rewordings are an arm of the records.
  attribute.write_text(ATTRIBUTE + '''rewordings:
  - ['A {value} is', 'This {value} is', 'That {value} is']
  - ['A friend from {value} likes', 'My pal from {value} likes', 'Our friend from {value} likes']
''', encoding='utf-8')
  command[3] = f"--output={tmp_path / 'reworded.jsonl'}"
  assert cli.main([*command, '--rewordings']) == 0
  reworded = list(read_records(tmp_path / 'reworded.jsonl'))
  assert [r | {'_where': ''} for r in reworded if 'arm' not in r] == [
    r | {'_where': ''} for r in records]
  assert {(r['arm'], r['rewording'], r['prefix']) for r in reworded if 'arm' in r} >= {
    ('rewording', 1, 'A Rome is'), ('rewording', 3, 'Our friend from Oslo likes')}
  assert len(reworded) == 4 * len(records)
  # A fraction of crossed values has a next-token file that fits the whole attribute.
  (tmp_path / 'town.yaml').write_text("""
name: town
values: [Rome, Oslo, Bonn]
templates: ['{value}']
""")
  crossed = tmp_path / 'crossed.yaml'
  crossed.write_text("""
name: crossed
crossed: {from: town.yaml, to: town.yaml}
templates: ['From {from} to {to} is']
""")
  out = tmp_path / 'crossed.jsonl'
  command[2:4] = f'--attribute={crossed}', f'--output={out}'
  assert cli.main([*command, '--fraction=0.8']) == 0
  assert len({r['value'] for r in read_records(out)}) == 7
  found = printed('measure', f'--records={out}', f'--attribute={crossed}', '--scorer=vader',
                  '--permutations=20')
  assert 'main effect of from' in found and ' KL\n' in found
  assert 'no record of 2 combinations' in found


def test_independent_and_start_reach_the_sampler(tmp_path, folder, attribute):
  model, found = load_pretrained(folder, 'lm'), {}
  for option in ('', '--independent', '--start'):
    out = tmp_path / f'x{option}.jsonl'
    assert cli.main(['sample', f'--pretrained={folder}', f'--attribute={attribute}',
                     f'--output={out}', '--samples=4', '--max-new-tokens=6',
                     *([option] if option else [])]) == 0
    identity = json.loads(
      out.with_name(f'x{option}.manifest.json').read_text(encoding='utf-8'))['identity']
    assert identity['coupled'] == (option != '--independent')
    assert identity['vocabulary'] == model.files.vocabulary(
      start=option == '--start').fingerprint
    found[option] = [r['continuation'] for r in read_records(out)]
  assert found[''] != found['--independent'] and found[''] != found['--start']


def test_chat_says_so_and_leaves_prefix_and_continuation_apart(
    tmp_path, copy, attribute, refused):
  pytest.importorskip('jinja2')
  folder = copy('gpt2', lambda tensors: {  # of 128 positions
    name: np.tile(t, (4, 1)) if 'wpe' in name else t for name, t in tensors.items()},
    eos_token_id=0, n_positions=128)
  out = tmp_path / 'x.jsonl'
  command = ['sample', f'--pretrained={folder}', f'--attribute={attribute}', f'--output={out}',
             '--samples=3', '--max-new-tokens=4', '--chat']
  (folder / 'chat_template.jinja').write_text(
    '{{ messages[0].content }}\n{{ messages[1].content }}')
  assert cli.main(command) == 0
  records = list(read_records(out))
  assert {r['prefix'] for r in records} == {
    'The Rome is', 'The Oslo is', 'My friend from Rome likes', 'My friend from Oslo likes'}
  assert all(r['asked'] == 'chat' and 'Continue' not in r['continuation'] for r in records)
  identity = read_sealed_json(out.with_name('x.manifest.json'), again='')['identity']
  vocabulary = load_pretrained(folder, 'lm').files.vocabulary(chat=True)
  assert (identity['asked'], identity['vocabulary']) == ('chat', vocabulary.fingerprint)
  # Another way of asking is another sampling.
  refused(command[:-1], 'was generated otherwise')
  refused([*command, '--start'])


def test_more_tokens_than_the_model_has_positions_are_refused_in_one_line(
    tmp_path, folder, attribute, refused):
  refused(['sample', f'--pretrained={folder}', f'--attribute={attribute}',
           f'--output={tmp_path / "x.jsonl"}', '--max-new-tokens=30'], '32 positions')


def test_the_next_token_stands_beside_the_records_and_in_what_is_measured(
    tmp_path, folder, attribute, printed, refused, found):
  out, sidecar = tmp_path / 'towns.jsonl.gz', tmp_path / 'towns.next_token.json'
  sample = ['sample', f'--pretrained={folder}', f'--attribute={attribute}', f'--output={out}',
            '--samples=4', '--max-new-tokens=4']
  measure = ['measure', f'--records={out}', f'--attribute={attribute}', '--scorer=vader',
             '--permutations=20']
  assert 'KL of the next token' in printed(*sample)
  mean, largest = oracle_kl(folder)
  measures = found(*measure)
  divergence = measures['next_token_divergence']
  assert mean > 1e-3 and divergence['prefixes'] == 4
  assert divergence['kl'] == pytest.approx(mean, rel=1e-4)
  assert divergence['kl_largest'] == pytest.approx(largest, rel=1e-4)
  assert set(measures['absent']) == {'semantic_similarity'}
  assert f'{mean:.4f}' in printed(*measure)

  # A finished file keeps it; one that is gone or damaged is made again, with the same content.
  content = sidecar.read_bytes()
  for broken in (None, b'{}', content[:-30]):
    sidecar.unlink() if broken is None else sidecar.write_bytes(broken)
    if broken is None:
      assert 'fairjax sample' in found(*measure)['absent']['next_token_divergence']
    else:
      refused(measure, 'next_token.json is damaged')
    assert cli.main(sample) == 0 and sidecar.read_bytes() == content

  # More samples are other records: it is written for them.
  assert cli.main(changed(sample, ['--samples=5'])) == 0 and sidecar.read_bytes() != content
  assert found(*measure)['next_token_divergence'] == divergence

  # In another form it goes along, and a report of records shows it.
  other = tmp_path / 'other.parquet'
  assert cli.main(['records', 'convert', f'--records={out}', f'--output={other}']) == 0
  measure[1] = f'--records={other}'
  assert found(*measure)['next_token_divergence'] == divergence
  assert cli.main(['report', f'--records={out}', f'--attribute={attribute}', '--scorer=vader',
                   '--permutations=20', f'--output={tmp_path / "report"}']) == 0
  for page in ('report.md', 'index.html'):
    assert f'{mean:.4f}' in (tmp_path / 'report' / page).read_text(encoding='utf-8')


def test_a_next_token_of_other_records_or_another_model_is_refused(
    tmp_path, folder, attribute, refused):
  for name, more in (('a', []), ('b', ['--seed=3'])):
    assert cli.main(['sample', f'--pretrained={folder}', f'--attribute={attribute}', *more,
                     f'--output={tmp_path / name}.jsonl', '--samples=2',
                     '--max-new-tokens=4']) == 0
  mine, foreign = tmp_path / 'a.next_token.json', tmp_path / 'b.next_token.json'
  whole = mine.read_bytes()

  def refuse(message, *more, of=attribute, verb='measure'):
    refused([verb, f'--records={tmp_path / "a.jsonl"}', f'--attribute={of}', '--scorer=vader',
             '--permutations=20', *more], message, 'a.next_token.json')

  mine.write_bytes(foreign.read_bytes())
  refuse('belongs to other records than a.jsonl')
  refuse('belongs to other records than a.jsonl', f'--output={tmp_path / "r"}', verb='report')
  refused(['records', 'convert', f'--records={tmp_path / "a.jsonl"}',
           f'--output={tmp_path / "c.jsonl"}'])
  assert not list(tmp_path.glob('c.*'))
  # Of these very records, but another model's.
  mine.write_bytes(whole)
  saved = read_sealed_json(mine, again='')
  identity = saved['identity'] | {'card': {'fingerprint': 'other'}}
  write_sealed_json(mine, saved | {'identity': identity})
  refuse('of another sampling than a.manifest.json: card.fingerprint')
  # Of another content of the attribute.
  mine.write_bytes(whole)
  changed = tmp_path / 'changed.yaml'
  changed.write_text(ATTRIBUTE.replace("'The {value} is'", "'A {value} is'"), encoding='utf-8')
  refuse('other values or templates of town', of=changed)


def test_rows_of_no_token_are_never_sampled_and_the_others_as_before(copy):
  size = vocab_size('gpt2')
  model = load_pretrained(copy('gpt2', padded(size), vocab_size=size + MORE), 'lm')
  plain = load_pretrained(GOLDEN / 'gpt2', 'lm')
  prefixes, rest = jnp.array([[5, 6, 7]]), jnp.arange(8, 14)[None, None]
  decoder = CachedDecoder(model.arch, unused_ids(model.tokenizer, model.arch.vocab_size))
  params = jax.tree.map(jnp.asarray, model.params)
  found = np.asarray(cached_logits(decoder, params, prefixes, jnp.array([3]), rest))
  assert np.isneginf(found[..., size:]).all()
  text = np.concatenate([prefixes, rest[0]], axis=1)
  expected = np.asarray(lm_logits(plain.params, plain.arch, text))[:, 2:-1]
  np.testing.assert_allclose(found[0, :, :, :size], expected, atol=1e-5)
  # As the reference library has them: the likelihood of a text counts what the table holds.
  whole = np.asarray(lm_logits(model.params, model.arch, text))
  assert np.isfinite(whole).all() and np.abs(whole[..., size:]).max() > np.abs(expected).max()
  for lm, drawn in ((decoder, False), (CachedDecoder(model.arch), True)):
    tokens, _ = sample_continuations(
      model.params, lm, [[5, 6], [7, 8]], template=0, samples=range(40), seed=1, max_new_tokens=6,
      temperature=100.0, eos_id=0, batch_size=40)
    assert (tokens.max() >= size) == drawn
