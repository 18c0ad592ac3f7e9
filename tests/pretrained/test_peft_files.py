"""Adapters in PEFT's form, read onto their base."""

import dataclasses
import importlib.util
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from golden_models import rewrite, same, unloadable
from safetensors.numpy import load_file, save_file
from test_decoders import make  # noqa: F401  the fixture

from fairjax.errors import UserError
from fairjax.model.decoder import (
  DecoderModel,
  LoraDecoder,
  NoState,
  merge_adapters,
  with_adapters,
)
from fairjax.pretrained import load_pretrained
from fairjax.pretrained.checkpoint import open_model
from fairjax.pretrained.peft_files import CONFIG, WEIGHTS, adapter_tensors, write_adapter

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden'
FAMILIES = ['gpt2', 'llama3', 'gemma3', 'neox']


def adapted(folder, out, *, rank=2):
  """Writes an adapter of random numbers; gives the base with it."""
  model, rng = load_pretrained(folder, 'lm'), np.random.default_rng(0)
  adapters = jax.tree.map(
    lambda x: rng.normal(size=x.shape).astype(np.float32) / 3,
    nn.unbox(jax.eval_shape(LoraDecoder(model.arch, rank).init, jax.random.key(0))))
  out.mkdir()
  write_adapter(out, adapter_tensors(adapters, model.arch), rank=rank, base=str(folder),
                base_digest=open_model(folder).weights_digest())
  return merge_adapters(with_adapters(model.params, adapters))


@pytest.fixture(scope='module')
def golden():
  """The script that exported, and what transformers and peft computed from its folders."""
  spec = importlib.util.spec_from_file_location('exported', GOLDEN / 'make_exported.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  with np.load(GOLDEN / 'exported.npz', allow_pickle=False) as file:
    return module, dict(file)


def logits(params, config, ids):
  """In float64."""
  model = DecoderModel(dataclasses.replace(config, dtype='float64'))
  with jax.enable_x64(True):
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), params)
    hidden = jax.jit(model.apply)(params, jnp.asarray(ids), NoState()).hidden
    return np.asarray(model.logits(params, hidden))


def test_what_is_exported_computes_in_transformers_and_peft_what_it_does_here(golden, tmp_path):
  script, expected = golden
  script.write(tmp_path)
  worst = 0.0
  for name in script.FAMILIES:
    params, files = script.trained(name)
    same(script.read_params(tmp_path / name)[0], params)
    found = logits(params, files.decoder, expected['ids'])
    np.testing.assert_allclose(found, expected[name], rtol=0, atol=1e-12)
    worst = max(worst, np.abs(found - expected[name]).max())
  for name in script.ADAPTED:
    params, files = script.read_params(GOLDEN / 'decoders' / name)
    wanted = expected[f'{name}-adapter']
    both = with_adapters(params, script.adapters(files.decoder))
    found = logits(both, files.decoder, expected['ids'])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
    worst = max(worst, np.abs(found - wanted).max())
    # Read onto its base, whose float32 rounds the sum.
    found, files = script.read_params(tmp_path / f'{name}-adapter')
    np.testing.assert_allclose(
      logits(found, files.decoder, expected['ids']), wanted, rtol=0, atol=2e-6)
    assert np.abs(wanted - logits(params, files.decoder, expected['ids'])).max() > 0.1
  print(f'largest difference of a logit: {worst:.1e}')


@pytest.mark.parametrize('name', FAMILIES)
def test_an_adapter_is_its_base_with_low_rank(name, make, tmp_path, capsys):  # noqa: F811
  wanted = adapted(make(name), tmp_path / 'adapter')
  (tmp_path / 'adapter' / 'tokenizer.json').write_text('{}')  # as trainers leave it there
  found = load_pretrained(tmp_path / 'adapter', 'lm')
  assert found.name == 'adapter' and 'holds a tokenizer, which is not' in capsys.readouterr().err
  close = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)
  jax.tree.map(close, found.params, wanted)
  assert max(np.abs(x - y).max() for x, y in zip(*map(jax.tree.leaves, (
    found.params, load_pretrained(found.directory, 'lm').params)), strict=True)) > 0.3
  for tensor in open_model(tmp_path / 'adapter').tensors.values():
    if len(tensor.shape) == 2:
      close(tensor.read((slice(2, 5), slice(1, 9))), tensor.whole()[2:5, 1:9])


def test_scales_of_other_programs_are_theirs(make, tmp_path):  # noqa: F811
  folder, place = make('llama'), tmp_path / 'adapter'
  adapted(folder, place)
  base = load_pretrained(folder, 'lm').params['layers']
  once = load_pretrained(place, 'lm').params['layers']
  rewrite(place / CONFIG, lambda c: c.update(
    lora_alpha=6, use_rslora=True, alpha_pattern={'self_attn.q_proj': 4}))
  found = load_pretrained(place, 'lm').params['layers']
  for name, scale in (('query', 4 / 2**0.5), ('ff_up', 6 / 2**0.5)):
    np.testing.assert_allclose(
      found[name] - base[name], scale * (once[name] - base[name]), rtol=0, atol=1e-5)


def test_a_scale_is_that_of_the_adapters_module_whatever_the_base_names_it(
    make, tmp_path):  # noqa: F811
  folder, place = make('gpt2'), tmp_path / 'adapter'
  adapted(folder, place)
  weights = folder / 'model.safetensors'
  save_file({n.removeprefix('transformer.'): x for n, x in load_file(weights).items()}, weights)
  base = load_pretrained(folder, 'lm').params['layers']['query']
  once = load_pretrained(place, 'lm').params['layers']['query']
  rewrite(place / CONFIG, lambda c: c.update(
    alpha_pattern={'transformer.h.0.attn.c_attn': 18} | c['alpha_pattern']))  # it was 6
  found = load_pretrained(place, 'lm').params['layers']['query']
  np.testing.assert_allclose(found[0] - base[0], 3 * (once[0] - base[0]), rtol=0, atol=1e-5)
  np.testing.assert_array_equal(found[1:], once[1:])


def test_an_adapter_of_the_output_of_a_neox_has_the_name_of_transformers(
    make, tmp_path):  # noqa: F811
  folder, place, rng = make('neox'), tmp_path / 'adapter', np.random.default_rng(1)
  adapted(folder, place)
  a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 32), (61, 2)))
  head = 'base_model.model.lm_head.lora_'
  own = load_file(folder / 'model.safetensors')['embed_out.weight']  # which PEFT saves along
  frozen = 'base_model.model.lm_head.base_layer.weight'
  save_file(load_file(place / WEIGHTS) | {
    f'{head}A.weight': a, f'{head}B.weight': b, frozen: own}, place / WEIGHTS)
  base, found = (load_pretrained(x, 'lm').params['output'] for x in (folder, place))
  np.testing.assert_allclose(found - base, b @ a, rtol=0, atol=1e-5)
  save_file(load_file(place / WEIGHTS) | {frozen: own + 1}, place / WEIGHTS)
  unloadable(place, 'lm', 'lm_head.base_layer.weight of its base .* too: merge it')


def test_an_adapter_asks_by_its_own_chat_template(make, tmp_path):  # noqa: F811
  pytest.importorskip('jinja2')
  folder, place = make('llama'), tmp_path / 'adapter'
  adapted(folder, place)
  form = '{{ messages[0].content }}{{ messages[1].content }}'
  (folder / 'chat_template.jinja').write_text(f'base: {form}')
  (place / 'tokenizer_config.json').write_text(json.dumps({'chat_template': f'own: {form}'}))
  tokenizer = json.loads((folder / 'tokenizer.json').read_text())
  (place / 'tokenizer.json').write_text(json.dumps(tokenizer, indent=4))  # the same one
  vocabulary = open_model(place).vocabulary(chat=True)
  assert vocabulary.chat_text('He') == 'own: Continue the sentence: HeHe'
  tokenizer['added_tokens'].append({**tokenizer['added_tokens'][0], 'id': 61, 'content': '<more>'})
  (place / 'tokenizer.json').write_text(json.dumps(tokenizer))
  with pytest.raises(UserError, match='another tokenizer than its base'):
    open_model(place).vocabulary(chat=True)


@pytest.mark.parametrize(('change', 'words'), [
  ({'weights': lambda t: {n: x + 1 for n, x in t.items()}}, 'trained on other weights than those'),
  ({'adapter': lambda t: {n: x[:, :-1] if '.lora_A' in n else x for n, x in t.items()}},
   r'is of another base than .*has shape \(16, 24\) there, \(16, 23\) here'),
  ({'adapter': lambda t: {n: x for n, x in t.items() if 'lora_A' in n}}, 'has half an adapter'),
  ({'adapter': lambda t: {n: x[0] for n, x in t.items()}}, 'has half an adapter'),
  ({'adapter': lambda t: {}}, 'has no adapter in adapter_model.safetensors'),
  ({'config': {'alpha_pattern': {'q_proj': '8'}}}, 'alpha_pattern gives .*q_proj.* no number'),
  ({'adapter': lambda t: t | {'base_model.model.lm_head.weight': np.ones(3)}},
   'changes base_model.model.lm_head.weight, which is no product of its base'),
  ({'config': {'peft_type': 'IA3'}}, r'is an adapter \(IA3\) of .*, and no LoRA'),
  ({'config': {'init_lora_weights': 'pissa_niter_4'}}, "with init_lora_weights='pissa_niter_4'"),
  ({'config': {'use_dora': True}}, 'with use_dora=True'),
  ({'config': {'modules_to_save': ['lm_head']}}, r"with modules_to_save=\['lm_head'\]"),
  ({'config': {'alora_invocation_tokens': [3]}}, r'with alora_invocation_tokens=\[3\]'),
  ({'config': {'base_model_name_or_path': '/not/there'}}, 'of /not/there, which is not here'),
  ({'config': {'base_model_name_or_path': '../adapter'}}, 'of ../adapter, which is not here')])
def test_what_is_of_another_base_is_refused(change, words, make, tmp_path):  # noqa: F811
  folder, place = make('llama'), tmp_path / 'adapter'
  adapted(folder, place)
  if 'config' in change:
    rewrite(place / CONFIG, lambda c: c.update(change['config']))
  if 'weights' in change:
    path = folder / 'model.safetensors'
    save_file(change['weights'](load_file(path)), path)
  if 'adapter' in change:  # as another program saves it, without the digest of its base
    save_file({n: np.ascontiguousarray(x) for n, x in change['adapter'](
      load_file(place / WEIGHTS)).items()}, place / WEIGHTS)
  unloadable(place, 'lm', words)


def test_copies_of_the_base_in_another_type_are_the_base(make, tmp_path):  # noqa: F811
  folder, place, out = make('qwen2'), tmp_path / 'adapter', tmp_path / 'copy'
  adapted(folder, place)
  out.mkdir()
  open_model(folder).write(load_pretrained(folder, 'lm').params, out, dtype='bfloat16', most=9000)
  rewrite(place / CONFIG, lambda c: c.update(base_model_name_or_path=str(out)))
  assert load_pretrained(place, 'lm').directory == out
  assert json.loads((pathlib.Path(place) / CONFIG).read_text())['r'] == 2
