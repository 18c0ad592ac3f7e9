"""Published decoders of other families than GPT-2: read from their folder, sampled, measured."""

import importlib.resources
import json
import math
import pathlib
import shutil
import string

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from golden_models import copied, oracle_kl, rewrite, same
from safetensors.numpy import load_file, save_file

from fairjax.cli.main import main
from fairjax.errors import UserError
from fairjax.gender.scored_models import open_language_model
from fairjax.generate.records import read_records
from fairjax.model.decoder import DecoderModel, NoState
from fairjax.pretrained import load_pretrained
from fairjax.pretrained.checkpoint import open_model
from fairjax.pretrained.decoder_files import read_decoder_config
from fairjax.pretrained.plain_english import rate_plain_english
from fairjax.pretrained.tensor_files import weight_files

pytestmark = pytest.mark.usefixtures('one_device')

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'decoders'
SPECIAL = ['<unk>', '<bos>', '<eos>', '<end>']


def decoder(folder, name, *, begins=True):
  """A golden decoder and 61 tokens, as SentencePiece's: letters, and a sign for the space."""
  pieces = [*SPECIAL, '\u2581', '.', ',', *string.ascii_letters, "'", '!'][:61]
  tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(
    {piece: i for i, piece in enumerate(pieces)}, [], unk_token='<unk>'))
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme='never')
  tokenizer.decoder = tokenizers.decoders.Metaspace(prepend_scheme='never')
  tokenizer.add_special_tokens(SPECIAL)
  if begins:
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
      single='<bos> $A', special_tokens=[('<bos>', 1)])
  copied(folder, GOLDEN / name, eos_token_id=2)
  tokenizer.save(str(folder / 'tokenizer.json'))
  return folder


@pytest.fixture
def make(tmp_path):
  """Makes the folder of a family."""
  return lambda name, **options: decoder(tmp_path / name, name, **options)


def sampled(folder, attribute, out, *options):
  """The records of the verb."""
  assert main(['sample', f'--pretrained={folder}', f'--attribute={attribute}', f'--output={out}',
               '--samples=40', '--max-new-tokens=6', *options]) == 0
  return list(read_records(out))


def stored(folder):
  """All tensors in the files of a folder."""
  return {name: x for path in weight_files(folder) for name, x in load_file(path).items()}


@pytest.mark.parametrize('name', sorted(p.name for p in GOLDEN.iterdir() if p.is_dir()))
def test_a_folder_is_written_as_it_came(name, make, tmp_path):
  folder, out, rng = make(name), tmp_path / 'out', np.random.default_rng(0)
  out.mkdir()
  (folder / 'chat_template.jinja').write_text('{{ messages }}')
  (folder / 'code.py').write_text('1')
  (folder / 'README.md').write_text('of the model before')
  before, model = stored(folder), load_pretrained(folder, 'lm')
  written, dtypes = open_model(folder).write(model.params, out, most=20_000)
  assert dtypes == ['float32'] and len(weight_files(out)) > 2
  same(stored(out), before)
  copied = {'config.json', 'tokenizer.json', 'chat_template.jinja'}
  assert {p.name for p in out.iterdir()} == {file for file, _ in written} == copied | {
    p.name for p in weight_files(out)} | {'model.safetensors.index.json'}
  assert all((out / n).read_bytes() == (folder / n).read_bytes() for n in copied)
  # Other numbers in another type come back as that type has them.
  other = jax.tree.map(lambda x: x + rng.normal(size=x.shape).astype(np.float32), model.params)
  half = tmp_path / 'half'
  half.mkdir()
  open_model(folder).write(other, half, dtype='bfloat16')
  same(load_pretrained(half, 'lm').params, jax.tree.map(
    lambda x: x.astype('bfloat16').astype(np.float32), other))
  assert json.loads((half / 'config.json').read_text())['dtype'] == 'bfloat16'


def test_names_copies_and_buffers_are_kept(make, tmp_path):
  folder, out = make('gpt2'), tmp_path / 'out'
  out.mkdir()
  tensors = {name.removeprefix('transformer.'): x.astype('float16' if 'ln_' in name else 'bfloat16')
             for name, x in load_file(folder / 'model.safetensors').items()}
  tensors |= {'lm_head.weight': tensors['wte.weight'], 'h.0.attn.bias': np.tri(3) > 0,
              'h.1.attn.masked_bias': np.float32([-1e4])}
  save_file(tensors, folder / 'model.safetensors')
  open_model(folder).write(load_pretrained(folder, 'lm').params, out)
  same(stored(out), tensors)
  large = load_pretrained(folder, 'lm').params
  large['layers']['ff_up'][0, 0, 0] = 1e5
  with pytest.raises(UserError, match='mlp.c_fc.weight has numbers that float16 does not hold'):
    open_model(folder).write(large, out, dtype='float16')


def test_a_neox_keeps_buffers_and_the_names_of_transformers_5(make, tmp_path):
  folder, out = make('neox'), tmp_path / 'out'
  out.mkdir()
  tensors = {name.removeprefix('gpt_neox.'): x for name, x in stored(folder).items()}
  tensors['lm_head.weight'] = tensors.pop('embed_out.weight')
  tensors |= {'layers.0.attention.bias': np.tri(3) > 0,
              'layers.1.attention.masked_bias': np.float32([-1e4]),
              'layers.1.attention.rotary_emb.inv_freq': np.float32([1.0, 0.1])}
  save_file(tensors, folder / 'model.safetensors')
  open_model(folder).write(load_pretrained(folder, 'lm').params, out)
  same(stored(out), tensors)
  assert load_pretrained(folder, 'lm').stored == ('float32',)


@pytest.mark.parametrize(('text', 'above'), [
  ('language_model.model.', ''), ('model.language_model.', 'model.')])
def test_the_text_decoder_of_a_gemma_3_with_images_is_read_and_written(
    text, above, make, tmp_path, capsys):
  """As published, and as transformers 5 has it in memory."""
  folder, out = make('gemma3'), tmp_path / 'out'
  out.mkdir()
  wanted = load_pretrained(folder, 'lm')
  tensors = {f'{above}{name}': np.ones((2, 3), np.float32) for name in (
    'vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight',
    'multi_modal_projector.mm_input_projection_weight')}
  tensors |= {name.replace('model.', text, 1): x for name, x in stored(folder).items()}
  save_file(tensors, folder / 'model.safetensors')
  rewrite(folder / 'config.json', lambda config: {
    'model_type': 'gemma3', 'eos_token_id': [2, 3], 'vision_config': {}, 'text_config': {
      field: value for field, value in config.items() if field != 'hidden_activation'}})
  model = load_pretrained(folder, 'lm')
  same(model.params, wanted.params)
  assert model.arch == wanted.arch and model.files.vocabulary().end_ids == (3,)
  assert 'its 2 tensors for images are left out' in capsys.readouterr().err
  model.files.write(model.params, out)
  same(stored(out), tensors)
  assert (out / 'config.json').read_bytes() == (folder / 'config.json').read_bytes()


@pytest.mark.parametrize('name', ['llama3', 'gemma3', 'qwen2', 'neox'])
def test_the_verb_samples_what_the_model_says(name, make, attribute, tmp_path, found):
  folder, out = make(name, begins=name not in ('qwen2', 'neox')), tmp_path / 'x.jsonl'
  assert len(sampled(folder, attribute, out)) == 4 * 40
  measured = found('measure', f'--records={out}', f'--attribute={attribute}', '--scorer=vader',
                   '--permutations=20', '--empty=keep')['next_token_divergence']
  vocabulary = load_pretrained(folder, 'lm').files.vocabulary()
  assert vocabulary.start_ids == (() if name in ('qwen2', 'neox') else (1,))
  # Special tokens that neither begin nor end a text are not drawn.
  assert vocabulary.silent_ids == tuple(sorted({0, 1, 3} - {*vocabulary.start_ids}))
  assert measured['kl'] == pytest.approx(oracle_kl(folder)[0], rel=1e-4)


def test_correlations_read_the_probability_of_whole_texts(make):
  folder = make('gemma2')
  model, texts = load_pretrained(folder, 'lm'), ['He is a baker.', 'She went home']
  lm, vocabulary = DecoderModel(model.arch), model.files.vocabulary()
  for text, found in zip(texts, open_language_model(folder).log_probs(texts), strict=True):
    ids = jnp.asarray([[*vocabulary.start_ids, *vocabulary.encode(text)]])
    wanted = -np.asarray(jax.jit(lambda params, ids: lm.nll(
      params, lm.apply(params, ids[:, :-1], NoState()).hidden, ids[:, 1:]))(model.params, ids))[0]
    assert np.sum(found) == pytest.approx(wanted.sum(), rel=1e-5)


def test_every_end_of_a_text_ends_it(make, attribute, tmp_path):
  folder = make('llama3')
  (folder / 'generation_config.json').write_text('{"eos_token_id": [2, 3]}')
  vocabulary = load_pretrained(folder, 'lm').files.vocabulary()
  assert (vocabulary.eos_id, vocabulary.end_ids) == (2, (3,))
  # Special tokens end a text although the model's own end is not among them; words do not.
  for ids, ends in (([3], (3,)), ([5], ())):
    (folder / 'generation_config.json').write_text(json.dumps({'eos_token_id': ids}))
    assert load_pretrained(folder, 'lm').files.vocabulary().end_ids == ends
  (folder / 'generation_config.json').write_text('{"eos_token_id": [2, 3]}')
  rewrite(folder / 'config.json', lambda config: config.update(eos_token_id=None))
  assert load_pretrained(folder, 'lm').files.vocabulary().fingerprint == vocabulary.fingerprint
  # Whatever follows, the two ends are far more likely than anything else, and equally so.
  tensors = load_file(folder / 'model.safetensors')
  tensors['lm_head.weight'][:] = tensors['lm_head.weight'][2] = 0
  save_file(tensors, folder / 'model.safetensors', metadata={'format': 'pt'})
  texts = [r['continuation'] for r in sampled(folder, attribute, tmp_path / 'x.jsonl')]
  assert '' in texts and any(texts) and not set(''.join(texts)) & set('<>')


def replace_norm(change):
  def damage(folder):
    path, name = folder / 'model.safetensors', 'model.norm.weight'
    tensors = load_file(path)
    save_file(tensors | {name: change(tensors[name])}, path, metadata={'format': 'pt'})

  return damage


@pytest.mark.parametrize(('change', 'words'), [  # of config.json, or another damage
  ({'model_type': 'mamba'}, "model_type 'mamba'"),
  ({'rope_parameters': {'rope_type': 'longrope', 'factor': 2.0}}, "rope scaling 'longrope'"),
  ({'rope_parameters': {'sliding_attention': {'rope_type': 'linear', 'factor': 4.0}}},
   'rope scaling of sliding_attention'),
  ({'rope_parameters': {'rope_type': 'default', 'partial_rotary_factor': 0.5}},
   'partial_rotary_factor=0.5'),
  ({'mlp_bias': True}, 'mlp_bias=True'), ({'attention_bias': True}, 'attention_bias=True'),
  ({'hidden_act': 'swish2'}, "activation 'swish2'"),
  ({'intermediate_size': 25}, 'has shape (16, 24)'),
  ({'num_hidden_layers': 5}, 'lacks tensors layers.4.'),
  ({'num_hidden_layers': 3}, 'holds tensors layers.3.'),
  ({'eos_token_id': 61}, 'eos_token_id is 61'), ({'eos_token_id': 9}, 'ordinary token'),
  (replace_norm(lambda t: t[:8].copy()), 'norm.weight has shape (8,), config.json needs (16,)'),
  (replace_norm(lambda t: np.full_like(t, np.nan)), 'are not finite'),
  (lambda f: (f / 'tokenizer.json').rename(f / 'tokenizer.model'), 'holds no tokenizer.json'),
  (lambda f: shutil.copy(GOLDEN.parent / 'pretrained' / 'gpt2' / 'tokenizer.json', f),
   'the tokenizer of another model')])
def test_what_cannot_be_computed_is_refused_and_nothing_is_written(
    make, attribute, tmp_path, refused, change, words):
  folder = make('llama3')
  if callable(change):
    change(folder)
  else:
    rewrite(folder / 'config.json', lambda config: config.update(change))
  assert 'no number' not in refused(['sample', f'--pretrained={folder}', f'--attribute={attribute}',
                                     f'--output={tmp_path / "x.jsonl"}'], words)
  assert not list(tmp_path.glob('x*'))


@pytest.mark.parametrize(('name', 'changes', 'expected'), [  # ...: without the field
  *((name, {'layer_types': ..., 'use_sliding_window': True, 'sliding_window': 5,
            'max_window_layers': 2}, {'windows': (0, 0, 5, 5)}) for name in ('qwen2', 'qwen3')),
  ('qwen3', {'layer_types': ['sliding_attention'] * 4, 'sliding_window': 5}, {'windows': ()}),
  ('mistral', {'sliding_window': ...}, {'windows': (4096,) * 4}),
  *((name, {'tie_word_embeddings': ...}, {'tied': tied})  # files leave the default of a family out
    for name, tied in (('llama', False), ('gemma2', True), ('smollm3', True))),
  ('llama', {'rope_parameters': ..., 'rope_scaling': {'rope_type': 'default', 'rope_theta': 500}},
   {'rope_theta': 500.0, 'rope_scaling': ()}),
  ('llama3', {'rope_theta': 777}, {'rope_theta': 500.0}),
  ('llama', {'rope_scaling': {'type': 'dynamic', 'factor': 2.0}, 'sliding_window': 5,
             'layer_types': ['sliding_attention'] * 4}, {'rope_scaling': (), 'windows': ()}),
  ('gemma3', {'attn_logit_softcapping': 2.0, 'final_logit_softcapping': 3.0},
   {'attention_cap': 0.0, 'logit_cap': 3.0}),
  ('gemma3', {'rope_parameters': ...}, {'rope_theta': 1e6, 'local_rope_theta': 1e4}),
  ('gemma3', {'rope_parameters': ..., 'rope_theta': 777, 'rope_local_base_freq': 555},
   {'rope_theta': 777.0, 'local_rope_theta': 555.0}),
  ('neox', {'rope_parameters': ..., 'rotary_pct': 0.25, 'rotary_emb_base': 777,
            'use_parallel_residual': False},
   {'rotary_share': 0.25, 'rope_theta': 777.0, 'parallel': False}),
  ('neox', {'rope_parameters': ..., 'rope_scaling': {'type': 'linear', 'factor': 2.0}},
   {'rotary_share': 0.25, 'rope_theta': 1e4, 'rope_scaling': (2.0,)}),
  ('neox', {'attention_bias': None, 'hidden_act': 'gelu_fast', 'rope_scaling': {
    'rope_type': 'default', 'rope_theta': 5, 'partial_rotary_factor': 0.25}},
   {'rotary_share': 0.25, 'rope_theta': 5.0, 'activation': 'gelu_fast'}),
  # As transformers 4.45 to 4.57 write it.
  ('neox', {'rope_parameters': ..., 'rotary_pct': 0.5, 'partial_rotary_factor': 0.5,
            'rotary_emb_base': 9, 'rope_theta': 9}, {'rotary_share': 0.5, 'rope_theta': 9.0}),
  # Without a factor of the attention, and as transformers 4 writes it.
  ('olmo3', {'rope_parameters': ..., 'layer_types': ..., 'rope_theta': 500, 'rope_scaling': {
    'type': 'yarn', 'factor': 2.0, 'mscale': 2.0, 'mscale_all_dim': 1.0}},
   {'rope_scaling': (2.0, 32.0, 1.0, 64.0, (0.2 * math.log(2) + 1) / (0.1 * math.log(2) + 1)),
    'windows': (5, 5, 5, 0), 'local_rope_theta': 500.0}),
  ('smollm3', {'layer_types': ..., 'use_sliding_window': True, 'sliding_window': ...},
   {'windows': ()}),
  ('smollm3', {'no_rope_layers': ..., 'layer_types': ..., 'use_sliding_window': True,
               'sliding_window': 5, 'pretraining_tp': 2, 'rope_parameters': ...},
   {'rotated': (1, 1, 0, 1), 'windows': (0, 0, 5, 0), 'rope_theta': 2e6, 'rope_scaling': ()}),
  ('gemma2', {'attn_logit_softcapping': ..., 'final_logit_softcapping': ...},
   {'attention_cap': 50.0, 'logit_cap': 30.0}),
  ('gemma2', {'attn_logit_softcapping': None, 'final_logit_softcapping': None},
   {'attention_cap': 0.0, 'logit_cap': 0.0})])
def test_a_config_is_read_as_transformers_reads_it(name, changes, expected):
  content = json.loads((GOLDEN / name / 'config.json').read_text()) | changes
  config = read_decoder_config({k: v for k, v in content.items() if v is not ...})
  assert {field: getattr(config, field) for field in expected} == expected


@pytest.mark.parametrize(('name', 'changes', 'words'), [
  ('neox', {'rope_parameters': {'partial_rotary_factor': 1.5}}, 'more dimensions of a head would'),
  ('neox', {'rope_parameters': {'partial_rotary_factor': 1.0}, 'hidden_size': 12},
   'would be rotated than its 3'),
  ('neox', {'attention_bias': False}, 'attention_bias=False'),
  ('llama', {'head_dim': 7}, 'would be rotated than its 7'),
  ('smollm3', {'no_rope_layers': [1, 0]}, '2 no_rope_layers, but num_hidden_layers is 4'),
  ('smollm3', {'rope_parameters': {'rope_type': 'yarn', 'rope_theta': 1.0}}, 'is no number'),
  ('olmo3', {'rope_scaling': {'type': 'yarn', 'factor': 2.0, 'truncate': False}}, 'truncated'),
  ('llama', {'rope_parameters': {'rope_theta': 10 ** 400}}, 'is no number'),
  ('llama', {'partial_rotary_factor': 0.5}, 'partial_rotary_factor=0.5')])
def test_a_config_that_is_not_computed_is_refused(name, changes, words):
  content = json.loads((GOLDEN / name / 'config.json').read_text())
  with pytest.raises(UserError, match=words):
    read_decoder_config(content | changes)


@pytest.mark.parametrize(('changes', 'words'), [
  ({'rope_parameters': [1]}, "is no number .'list'"), ({'rms_norm_eps': '1e-5'}, 'norm_eps'),
  ({'rope_parameters': {'rope_type': 'linear', 'factor': -2}}, 'rope_scaling of the gemma2 would'),
  ({'rms_norm_eps': float('nan')}, 'would be nan'), ({'sliding_window': 2.5}, 'windows'),
  ({'attn_logit_softcapping': -1.0}, 'cap of'), ({'query_pre_attn_scalar': -4}, 'query_scale')])
def test_a_config_with_wrong_numbers_is_refused(changes, words):
  content = json.loads((GOLDEN / 'gemma2' / 'config.json').read_text())
  with pytest.raises(UserError, match=words):
    read_decoder_config(content | changes)


def test_the_doctor_rates_the_text_and_warns_of_a_model_that_knows_no_english(make, capsys):
  folder = make('llama3')
  tensors = load_file(folder / 'model.safetensors')
  save_file(tensors | {'lm_head.weight': 0 * tensors['lm_head.weight']},
            folder / 'model.safetensors', metadata={'format': 'pt'})
  model = load_pretrained(folder, 'lm')
  perplexity, bits = rate_plain_english(model)  # in rows of 64 tokens
  text = (importlib.resources.files('fairjax.pretrained') / 'assets' / 'plain_english.txt'
          ).read_text().strip()
  assert perplexity == pytest.approx(61, rel=1e-5)
  assert bits == pytest.approx(
    (len(model.tokenizer.encode(text).ids) - 1) * np.log2(61) / len(text), rel=1e-5)
  assert main(['doctor', f'--pretrained={folder}']) == 2
  found = capsys.readouterr().out
  count = sum(x.size for x in tensors.values())
  assert f'llama, {count:,} parameters in float32' in found and '61 ids' in found
  assert f'! {folder} writes no English' in found
