"""Published decoders of other families than GPT-2: read from their folder, sampled, measured."""

import importlib.resources
import json
import pathlib
import shutil
import string

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from golden_models import rewrite
from safetensors.numpy import load_file, save_file

from fairjax.cli.main import main
from fairjax.gender.scored_models import open_language_model
from fairjax.generate.records import read_records
from fairjax.model.decoder import DecoderModel, NoState
from fairjax.pretrained import TokenizerVocabulary, load_pretrained
from fairjax.pretrained.plain_english import rate_plain_english

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'decoders'
ATTRIBUTE = """
name: town
values: [Rome, Oslo]
templates: ['The {value} is', 'My friend from {value} likes']
"""
SPECIAL = ['<unk>', '<bos>', '<eos>', '<end>']


def write_tokenizer(folder, *, begins):
  """A tokenizer of 61 tokens, as SentencePiece's: letters, and a sign for the space."""
  pieces = [*SPECIAL, '\u2581', '.', ',', *string.ascii_letters, "'", '!'][:61]
  tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(
    {piece: i for i, piece in enumerate(pieces)}, [], unk_token='<unk>'))
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme='never')
  tokenizer.decoder = tokenizers.decoders.Metaspace(prepend_scheme='never')
  tokenizer.add_special_tokens(SPECIAL)
  if begins:
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
      single='<bos> $A', special_tokens=[('<bos>', 1)])
  tokenizer.save(str(folder / 'tokenizer.json'))


@pytest.fixture
def attribute(tmp_path):
  path = tmp_path / 'town.yaml'
  path.write_text(ATTRIBUTE, encoding='utf-8')
  return path


@pytest.fixture
def make(tmp_path):
  """Makes the folder of a family."""
  def folder(name, *, begins=True):
    found = tmp_path / name
    shutil.copytree(GOLDEN / name, found)
    write_tokenizer(found, begins=begins)
    rewrite(found / 'config.json', lambda config: config.update(eos_token_id=2))
    return found

  return folder


def sampled(folder, attribute, out, *options):
  """The records of the verb."""
  assert main(['sample', f'--pretrained={folder}', f'--attribute={attribute}', f'--output={out}',
               '--samples=40', '--max-new-tokens=6', *options]) == 0
  return list(read_records(out))


@pytest.mark.parametrize('name', ['llama3', 'gemma3', 'qwen2'])
def test_the_verb_samples_what_the_model_says(name, make, attribute, tmp_path, capsys):
  folder, out = make(name, begins=name != 'qwen2'), tmp_path / 'x.jsonl'
  assert len(sampled(folder, attribute, out)) == 4 * 40
  capsys.readouterr()
  assert main(['measure', f'--records={out}', f'--attribute={attribute}', '--scorer=vader',
               '--permutations=20', '--empty=keep', '--json']) == 0
  measured = json.loads(capsys.readouterr().out)['next_token_divergence']
  model = load_pretrained(folder, 'lm')
  vocabulary = TokenizerVocabulary(model)
  assert vocabulary.start_ids == (() if name == 'qwen2' else (1,))
  lm, found = DecoderModel(model.arch), []
  for text in ('The {} is', 'My friend from {} likes'):
    logits = []
    for value in ('Rome', 'Oslo'):
      ids = jnp.asarray([[*vocabulary.start_ids, *vocabulary.encode(text.format(value))]])
      hidden = lm.apply(model.params, ids, NoState()).hidden[:, -1]
      logits.append(np.asarray(jax.nn.log_softmax(lm.logits(model.params, hidden)[0])))
    found += [(np.exp(p) * (p - q)).sum() for p, q in (logits, logits[::-1])]
  assert measured['kl'] == pytest.approx(np.mean(found), rel=1e-4)


def test_correlations_read_the_probability_of_whole_texts(make):
  folder = make('gemma2')
  model, texts = load_pretrained(folder, 'lm'), ['He is a baker.', 'She went home']
  lm, vocabulary = DecoderModel(model.arch), TokenizerVocabulary(model)
  for text, found in zip(texts, open_language_model(folder).log_probs(texts), strict=True):
    ids = jnp.asarray([[*vocabulary.start_ids, *vocabulary.encode(text)]])
    hidden = lm.apply(model.params, ids[:, :-1], NoState()).hidden
    wanted = -np.asarray(lm.nll(model.params, hidden, ids[:, 1:]))[0]
    assert np.sum(found) == pytest.approx(wanted.sum(), rel=1e-5)


def test_every_end_of_a_text_ends_it(make, attribute, tmp_path):
  folder = make('llama3')
  (folder / 'generation_config.json').write_text('{"eos_token_id": [2, 3]}')
  vocabulary = TokenizerVocabulary(load_pretrained(folder, 'lm'))
  assert (vocabulary.eos_id, vocabulary.end_ids) == (2, (3,))
  # Whatever follows, the two ends are far more likely than anything else, and equally so.
  tensors = load_file(folder / 'model.safetensors')
  tensors['lm_head.weight'][:] = tensors['lm_head.weight'][2] = 0
  save_file(tensors, folder / 'model.safetensors', metadata={'format': 'pt'})
  lengths = {len(r['continuation']) for r in sampled(folder, attribute, tmp_path / 'x.jsonl')}
  assert 0 in lengths and len(lengths) > 1
  for record in sampled(folder, attribute, tmp_path / 'x.jsonl'):
    assert not set(record['continuation']) & set('<>')


@pytest.mark.parametrize(('change', 'words'), [
  ({'model_type': 'mamba'}, "model_type 'mamba'"),
  ({'rope_parameters': {'rope_type': 'yarn', 'factor': 2.0}}, "rope scaling 'yarn'"),
  ({'mlp_bias': True}, 'mlp_bias=True'), ({'attention_bias': True}, 'attention_bias=True'),
  ({'hidden_act': 'swish2'}, "activation 'swish2'"),
  ({'intermediate_size': 25}, 'has shape (16, 24)'),
  ({'num_hidden_layers': 5}, 'lacks tensors layers.4.'),
  ({'num_hidden_layers': 3}, 'holds tensors layers.3.'),
  ({'eos_token_id': 61}, 'eos_token_id is 61'), ({'eos_token_id': 9}, 'ordinary token')])
def test_what_cannot_be_computed_is_refused(make, attribute, tmp_path, capsys, change, words):
  folder = make('llama3')
  rewrite(folder / 'config.json', lambda config: config.update(change))
  assert main(['sample', f'--pretrained={folder}', f'--attribute={attribute}',
               f'--output={tmp_path / "x.jsonl"}']) == 2
  error = capsys.readouterr().err
  assert words in error and error.count('\n') == 1
  assert not list(tmp_path.glob('x*'))


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
