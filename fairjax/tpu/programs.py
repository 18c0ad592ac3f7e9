"""The programs of a run, lowered with abstract arguments: no array is made, no device touched."""

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fairjax.config import Config, ModelConfig, parse_variant
from fairjax.counterfactual import COUNT_NAMES, load_attribute
from fairjax.errors import UserError
from fairjax.generate import noise, sampler
from fairjax.model import CausalLM, language_model
from fairjax.model.decoder import DecoderModel, LoraDecoder
from fairjax.model.decoding import Chunk, TransformerXLDecoder, write_slot
from fairjax.pretrained.checkpoint import open_model
from fairjax.run.published import run_decoder
from fairjax.tpu.chips import Slice
from fairjax.train import check_batch_size, make_mesh, params_template, steps
from fairjax.train.memory import device_bytes
from fairjax.train.optimizer import Adam
from fairjax.train.sharding import batch_sharding, replicated
from fairjax.train.steps import FairnessTerm, TrainState


def slice_devices(where: Slice, *, num_slices: int = 1) -> list:
  """Describes the devices of a slice that is not there; `prepare_process` must run before."""
  options: dict = dict(where.chip.options)
  if num_slices > 1:
    options['num_slices'] = num_slices
  if where.num_devices == 1:  # otherwise libtpu takes a host of 2x2 chips
    options['chips_per_host_bounds'] = [1, 1, 1]
  return list(topologies.get_topology_desc(
    platform='tpu', topology_name=where.name, **options).devices)


PROGRAMS = ('lm', 'debias', 'sample')
MOST_LAYERS_OF_WHOLE_SAMPLER = 8


def programs_of(config: Config) -> list[str]:
  """The programs that a configuration has: debias only if it goes that far and regularises."""
  debiases = config.until == 'debias' and any(
    parse_variant(variant).regularised for variant in config.debias.variants)
  published = bool(config.pretrained.model)  # in the place of step 1
  return [p for p in PROGRAMS if (p == 'debias' or not published) and (p != 'debias' or debiases)]


def sized(config: Config) -> Config:
  """The configuration with a published model's sizes in `model`; its config.json is read alone."""
  if not config.pretrained.model:
    return config
  d = open_model(config.pretrained.model).decoder
  return dataclasses.replace(config, model=dataclasses.replace(
    config.model, vocab_size=d.vocab_size, num_layers=d.num_layers, model_dim=d.model_dim,
    num_heads=d.num_heads, head_dim=d.head_dim, ff_dim=d.ff_dim, memory_len=0))


def model_of(config: Config) -> CausalLM:
  """The model; a published one has as many of its layers as `sized`, or its caller, says."""
  if not config.pretrained.model:
    return language_model(compiled_model(config))
  whole = run_decoder(config, open_model(config.pretrained.model).decoder)
  layers = config.model.num_layers
  return DecoderModel(dataclasses.replace(
    whole, num_layers=layers, windows=whole.windows[:layers]))


def compiled_model(config: Config) -> ModelConfig:
  """The model; where its vocabulary size is that of the data, the size that the data may reach."""
  size = config.model.vocab_size or config.data.vocab_size
  return dataclasses.replace(config.model, vocab_size=size)


def _trained(config: Config) -> CausalLM:
  """What has the parameters that move: the model, or its adapters."""
  model = model_of(config)
  if config.pretrained.lora and isinstance(model, DecoderModel):
    return LoraDecoder(model.config, config.pretrained.lora)
  return model


@dataclasses.dataclass(frozen=True)
class LoweredProgram:
  """A program before the TPU compiler."""

  lowered: jax.stages.Lowered
  mesh: Mesh  # over the devices of the slice
  argument_bytes: int  # on one device


def lower_program(config: Config, program: str, devices: list) -> LoweredProgram:
  """Lowers one of `PROGRAMS` for devices that may not be there, sharded as the run does it."""
  if config.pretrained.model and program != 'debias':
    raise UserError(f'--program={program}: of a run with pretrained.model only debias is compiled, '
                    'whose model takes the place of step 1')
  mesh = make_mesh(config.mesh, devices=devices)
  prepare = {'lm': _lm, 'debias': _debias, 'sample': _sample}[program]
  lower, arguments = prepare(config, compiled_model(config), mesh)
  # The seed's key of a template is made on the CPU, so templates are built outside the mesh.
  return LoweredProgram(lower(*arguments), mesh, device_bytes(arguments))


def _scalar(dtype: Any, mesh: Mesh) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct((), dtype, sharding=replicated(mesh))


def _rows(mesh: Mesh, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, dtype, sharding=batch_sharding(mesh))


def _token_batch(model: ModelConfig, batch_size: int, mesh: Mesh) -> dict[str, Any]:
  shape = (batch_size, model.segment_len)
  return {'inputs': _rows(mesh, shape, jnp.int32), 'targets': _rows(mesh, shape, jnp.int32),
          'reset': _rows(mesh, (batch_size,), jnp.bool_)}


def _documents(model: ModelConfig, batch_size: int, mesh: Mesh) -> dict[str, Any]:
  """What a decoder's rows of several documents hold besides."""
  shape = (batch_size, model.segment_len)
  return {'segment_ids': _rows(mesh, shape, jnp.int32), 'positions': _rows(mesh, shape, jnp.int32),
          'weights': _rows(mesh, shape, jnp.float32)}


def state_of(config: Config, program: str, mesh: Mesh) -> TrainState:
  """The train state of `lm` or `debias` as `jax.ShapeDtypeStruct` with shardings."""
  stage = {'lm': config.lm, 'debias': config.debias}[program]
  check_batch_size(stage.batch_size, mesh, field=f'{program}.batch_size',
                   grad_accum_steps=stage.grad_accum_steps)
  return steps.lm_state_template(_trained(config), stage, mesh)


def _lm(config: Config, model: ModelConfig, mesh: Mesh) -> tuple[Callable, tuple]:
  stage = config.lm
  return steps.make_lm_step(
    language_model(model), Adam.of(stage), mesh, stage.grad_accum_steps).lower, (
    state_of(config, 'lm', mesh), _token_batch(model, stage.batch_size, mesh),
    _scalar(jnp.int32, mesh), _scalar(jnp.float32, mesh))


def _debias(config: Config, model: ModelConfig, mesh: Mesh) -> tuple[Callable, tuple]:
  stage, rows = config.debias, config.debias.batch_size
  state = state_of(config, 'debias', mesh)
  branches = (rows, stage.branches_per_row)
  batch = _token_batch(model, rows, mesh) | {
    name: _rows(mesh, branches, jnp.int32)
    for name in ('branch_start', 'branch_len', 'original_end')} | {
    'branch_tokens': _rows(
      mesh, (*branches, stage.pieces_per_branch + stage.branch_tokens), jnp.int32),
    'branch_weight': _rows(mesh, branches, jnp.float32),
    'branch_counts': _rows(mesh, (rows, len(COUNT_NAMES)), jnp.int32)}
  if stage.branch_tokens:
    batch['branch_tail'] = _rows(mesh, (*branches, stage.branch_tokens), jnp.bool_)
  weights = {name: _scalar(jnp.float32, mesh) for name in ('embedding', 'sentiment')}
  # As in the curriculum: with a sentiment variant, every variant's step takes f_sh.
  projection = None
  if any(parse_variant(variant).method == 'sentiment' for variant in stage.variants):
    projection = steps.sentiment_state_template(
      model.model_dim, config.sentiment, mesh).params
  if config.pretrained.model:
    batch |= _documents(model, rows, mesh)
  base = (params_template(model_of(config), mesh),) if config.pretrained.lora else ()
  step = steps.make_debias_step(
    _trained(config), Adam.of(stage), FairnessTerm.of(stage, config.sentiment), mesh,
    stage.grad_accum_steps)
  return step.lower, (
    state, batch, _scalar(jnp.int32, mesh), _scalar(jnp.float32, mesh), weights, projection, *base)


def _sample(config: Config, model: ModelConfig, mesh: Mesh) -> tuple[Callable, tuple]:
  """One batch of the largest template."""
  prefixes = load_attribute(config.attribute).prefixes()
  values = max(collections.Counter(p.template for p in prefixes).values())
  rows = min(config.sample.batch_size, config.sample.samples)
  rows = -(-rows // mesh.size) * mesh.size

  def array(dtype, *shape):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=replicated(mesh))

  arguments = (
    params_template(language_model(model), mesh), array(jnp.int32, values, sampler.PREFIX_BUCKET),
    array(jnp.int32, values), array(jnp.uint32, rows), array(jnp.uint32, 2), array(jnp.uint32),
    array(jnp.float32))
  if not samples_whole(config):
    places = NamedSharding(mesh, PartitionSpec(None, mesh.axis_names))
    shape = (values, rows, model.num_heads, config.sample.max_new_tokens, model.head_dim)
    cache: Any = jax.ShapeDtypeStruct(shape, model.dtype, sharding=places)
    tokens = jax.ShapeDtypeStruct(shape[:2], jnp.int32, sharding=places)
    step = jax.jit(functools.partial(_decode_once, config=model, mesh=mesh), donate_argnums=1)
    return step.lower, (
      arguments[0], Chunk((cache,) * model.num_layers, (cache,) * model.num_layers), tokens,
      *arguments[1:], array(jnp.int32))
  sample = sampler.make_sampler(sampler.platform_of(mesh))
  lower = functools.partial(
    sample.lower, decoder=TransformerXLDecoder(model),
    max_new_tokens=config.sample.max_new_tokens, end_ids=(1,), stop_ids=(), coupled=True,
    mesh=mesh)  # a single device has one too: it is not the device of this process
  return lower, (*arguments[:3], array(jnp.uint32, values), *arguments[3:])


def part_of(config: Config, program: str) -> str:
  """What of a program is compiled, in words."""
  return {'lm': 'lm: train step', 'debias': 'debias: train step',
          'sample': 'sample: one batch' if samples_whole(config) else
                    'sample: prefixes and one token of one batch'}[program]


def samples_whole(config: Config) -> bool:
  """Whether `sample` is the sampler's whole program; else: the prefixes and one token."""
  # The sampler unrolls its layers, once for each size of its cache: on two busy cores the TPU
  # compiler took 158 s for it with 18 layers, and more than 400 s with 48.
  return config.model.num_layers <= MOST_LAYERS_OF_WHOLE_SAMPLER


def _decode_once(
  params, chunk, tokens, prefixes, lengths, samples, seed, template, temperature, index, *, config,
  mesh,
):
  """Reads the prefixes and one new token of every sample, and draws the next one."""
  decoder, size = TransformerXLDecoder(config), prefixes.shape[1] + chunk.keys[0].shape[3]
  weights = decoder.prepare(params, num_positions=size)

  def on_device(chunk, tokens, samples, whole):
    weights, prefixes, lengths, seed, template, temperature, index = whole
    prefix, _ = decoder.prefill(weights, prefixes, lengths)
    hidden, new = decoder.step(weights, prefix, (), [chunk], tokens, index)
    chunk, = write_slot([chunk], new, index)
    logits = decoder.logits(weights, hidden) / temperature
    keys = noise.fold_in(noise.stream_key(seed, template, coupled=True), samples[None])
    keys = noise.fold_in(keys, jnp.full(keys[0].shape, index, jnp.uint32))
    gumbel = noise.gumbel(keys, size=config.vocab_size)
    return chunk, sampler.argmax(logits + jnp.broadcast_to(gumbel, logits.shape))

  # As the sampler: each device has all weights and draws its samples by itself.
  places = PartitionSpec(None, mesh.axis_names)
  return jax.shard_map(
    on_device, mesh=mesh, check_vma=False, out_specs=places,
    in_specs=(places, places, PartitionSpec(mesh.axis_names), PartitionSpec()))(
      chunk, tokens, samples, (weights, prefixes, lengths, seed, template, temperature, index))
