"""Validation of a configuration: the limits of each field, and which fields go together."""

import dataclasses
import math
import operator
import re
from collections.abc import Iterator
from typing import Any

from fairjax.config import (
  FILE_SOURCES,
  PLANTED_SOURCES,
  RUN_SCORERS,
  STAGES,
  TFDS_SOURCES,
  Config,
  DataConfig,
  MeasureConfig,
  ModelConfig,
  PretrainedConfig,
  parse_decoding,
  parse_threshold,
  parse_variant,
)
from fairjax.errors import UserError

_INITIALS = re.compile('([A-Z])-([A-Z])')
_LIMITS = (('min', 'at least', lambda value, limit: value >= limit),
           ('above', 'above', lambda value, limit: value > limit),
           ('max', 'at most', lambda value, limit: value <= limit),
           ('below', 'below', lambda value, limit: value < limit))


def validate(config: Config) -> None:
  """Checks every field and the relations between them; one `UserError` holds all errors."""
  checks = (_field_errors(config), _stage_errors(config), _data_errors(config.data),
            _model_errors(config.model), _pretrained_errors(config), _variant_errors(config),
            _measure_errors(config))
  if errors := [error for found in checks for error in found]:
    raise UserError('invalid config: ' + '; '.join(errors))


def _field_errors(node: Any, prefix: str = '') -> Iterator[str]:
  """Errors of single values: not finite, more than 64 bits, outside the limits of their field."""
  for field in dataclasses.fields(node):
    value, name = getattr(node, field.name), f'{prefix}{field.name}'
    if dataclasses.is_dataclass(value):
      yield from _field_errors(value, f'{name}.')
    elif wrong := limit_error(field, value):
      yield f'{prefix}{wrong}'


def limit_error(field: dataclasses.Field, value: Any) -> str:
  """What is wrong with a value of a field of `Config`, alone; '' if nothing."""
  limits = {key: limit for key, limit in field.metadata.items() if limit is not None}
  if isinstance(value, float) and not math.isfinite(value):
    return f'{field.name} is {value}'
  if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
    return f'{field.name} has more than 64 bits'
  if limits.get('choices'):
    return '' if value in limits['choices'] else (
      f"{field.name}='{value}' is not one of {', '.join(limits['choices'])}")
  if all(holds(value, limits[key]) for key, _, holds in _LIMITS if key in limits):
    return ''
  return f'{field.name}={value} must be ' + ' and '.join(
    f'{words} {limits[key]}' for key, words, _ in _LIMITS if key in limits)


def _failed(*checks: tuple[Any, str]) -> Iterator[str]:
  """Messages of the checks (condition, message) whose condition is false."""
  return (message for holds, message in checks if not holds)


def _stage_errors(config: Config) -> Iterator[str]:
  """Fields of training stages that do not go together, and the mesh."""
  for name in STAGES:
    if name == 'lm' and config.pretrained.model:  # not trained
      continue
    stage = getattr(config, name)
    yield from _failed(
      (stage.grad_accum_steps < 1 or stage.batch_size % stage.grad_accum_steps == 0,
       f'{name}.grad_accum_steps={stage.grad_accum_steps} must divide '
       f'{name}.batch_size={stage.batch_size}'),
      (stage.warmup_steps <= stage.steps,
       f'{name}.warmup_steps={stage.warmup_steps} must be at most {name}.steps={stage.steps}'))
  yield from _failed(
    (config.sentiment.grad_accum_steps == 1,
     'sentiment.grad_accum_steps must be 1: its batches are small'),
    (config.mesh.data, 'mesh.data=0 must be -1 (all other devices) or positive'))


def _measure_errors(config: Config) -> Iterator[str]:
  """Scorers, lexicon and sentence encoder."""
  measure: MeasureConfig = config.measure
  for name, scorers in (('measure.scorers', measure.scorers),
                        ('sentiment.scorer', (config.sentiment.scorer,))):
    for scorer in scorers:
      kind, _, directory = scorer.partition(':')
      if kind == 'bert' and not directory.partition('#')[0]:
        yield f"{name}='{scorer}' names no directory: bert:DIR"
      elif kind != 'bert' and scorer not in RUN_SCORERS:
        yield f"{name}='{scorer}' is not one of {', '.join((*RUN_SCORERS, 'bert:DIR'))}"
  kind, _, directory = measure.encoder.partition(':')
  needs_lexicon = ('opinion' in (*measure.scorers, config.sentiment.scorer)
                   and config.data.source not in PLANTED_SOURCES)
  try:
    parse_threshold(measure.similarity_threshold)
  except UserError as e:
    yield f'measure.{e}'
  yield from _failed(
    (measure.scorers, 'measure.scorers names no scorer'),
    (len(set(measure.scorers)) == len(measure.scorers), 'measure.scorers names a scorer twice'),
    (measure.encoder in ('', 'minilm') or (kind in ('minilm', 'use') and directory),
     f"measure.encoder='{measure.encoder}' is none of: minilm, minilm:DIR, use:DIR"),
    (not needs_lexicon or len(measure.lexicon) in (1, 2),
     'the opinion scorer needs measure.lexicon=(positive file, negative file) or (their folder,); '
     'or use the scorers vader and textblob for measure.scorers and sentiment.scorer'))


def check_model(model: ModelConfig) -> None:
  """Raises `UserError` where sizes do not go together, that of the vocabulary included."""
  if errors := list(_model_errors(model)):
    raise UserError('invalid config: ' + '; '.join(errors))


def _model_errors(m: ModelConfig) -> Iterator[str]:
  """Sizes of the model that do not go together."""
  yield from _failed(
    (m.attention != 'kernel' or m.attention_dropout == 0,
     "model.attention='kernel' cannot drop attention weights: set model.attention_dropout=0, or "
     "model.attention='auto' or 'blocks'"),
    (m.attention != 'kernel' or m.dtype != 'float64',
     "model.attention='kernel' cannot compute in float64"),
    (m.attention != 'kernel' or m.attention_block % 128 == 0,
     "model.attention='kernel' needs a model.attention_block that is a multiple of 128"),
    (m.final_norm or not m.h_bar_final_norm,
     'model.h_bar_final_norm needs model.final_norm=True'),
    (m.model_dim % 2 == 0, f'model.model_dim={m.model_dim} must be even (sinusoids)'))
  if not m.cutoffs:
    yield from _failed(
      (m.div_val == 1, f'model.div_val={m.div_val} needs model.cutoffs'),
      (not m.tie_projections, 'model.tie_projections needs model.cutoffs'))
    return
  ends = (0, *m.cutoffs) + ((m.vocab_size,) if m.vocab_size else ())
  clusters = len(m.cutoffs) + 1
  yield from _failed(
    (all(a < b for a, b in zip(ends, ends[1:], strict=False)),
     f'model.cutoffs={m.cutoffs} must rise, above 0 and below the size of the vocabulary'
     + f', {m.vocab_size}' * bool(m.vocab_size)),
    (m.div_val < 1 or m.model_dim % m.div_val ** len(m.cutoffs) == 0,
     f'model.model_dim={m.model_dim} is not divisible by div_val ** {len(m.cutoffs)}'),
    (len(m.tie_projections) in (0, clusters),
     f'model.tie_projections needs {clusters} values, or none'))


# What counts with a published model, in sections of which most does not. The last three of `lm`
# change nothing, but configs/pretrained.py gives them to every stage.
_OF_PRETRAINED = {
  'model': ('segment_len', 'dtype', 'remat', 'scan_unroll'),
  'lm': ('batch_size', 'eval_batches', 'schedule', 'clip_norm', 'adam_b2')}
_NOT_OF_PRETRAINED = (
  'data.vocabulary', 'data.vocab_size', 'data.vocab_sentences', 'measure.eval_memory_len', *(
    f'{section}.{field.name}' for section, kept in _OF_PRETRAINED.items()
    for field in dataclasses.fields(getattr(Config(), section)) if field.name not in kept))


def _pretrained_errors(config: Config) -> Iterator[str]:
  """Fields that a published model has no use for, or that only one has."""
  p = config.pretrained
  if not p.model:
    yield from _failed((p == PretrainedConfig(), 'pretrained.h_bar, lora and chat need '
                        'pretrained.model; a Transformer-XL has model.h_bar_final_norm'))
    return
  default = Config()
  changed = [name for name in _NOT_OF_PRETRAINED
             if operator.attrgetter(name)(config) != operator.attrgetter(name)(default)]
  dropping = [v for v in config.debias.variants if v.startswith('dropout')]
  yield from _failed(
    (re.fullmatch('raw|normed|layer:[1-9][0-9]*', p.h_bar),
     f"pretrained.h_bar='{p.h_bar}' is not one of raw, normed, layer:N"),
    (not changed, f'{", ".join(changed)}: pretrained.model has sizes of its own, brings its '
     'tokenizer, and is not trained in step 1: leave it out'),
    (config.data.source not in PLANTED_SOURCES,
     f"data.source='{config.data.source}' is for a model that learns it from nothing: give "
     'pretrained.model text (data.source=lines, data.train=FILE, ...)'),
    (not config.data.cda, 'data.cda augments the text of step 1, which pretrained.model replaces: '
     'set debias.variants=(..., cda:two)'),
    (not dropping, f"debias.variants: '{', '.join(dropping)}' is for step 1's own models: "
     'published decoders are trained without dropout'))


def _variant_errors(config: Config) -> Iterator[str]:
  """Models of step 3 that are invalid or do not fit the rest."""
  found, decoding, data = [], [], config.data
  for variant in config.debias.variants:
    try:
      found.append(parse_variant(variant))
    except UserError as e:
      yield f'debias.variants: {e}'
  for method in config.decoding:
    try:
      decoding.append('{}-{:g}'.format(*parse_decoding(method)))
    except UserError as e:
      yield f'decoding: {e}'
  cda = any(v.method == 'cda' for v in found)
  # Folders have the names of models, with six digits of a number.
  variants = [(v.method, v.sided, *map('{:g}'.format, (v.weight, *v.rates))) for v in found]
  yield from _failed(
    (len(set(decoding)) == len(decoding), 'decoding names a method twice'),
    (len(set(variants)) == len(variants), 'debias.variants names a variant twice'),
    (data.cda or cda or not (data.cda_pairs or data.cda_names),
     'data.cda_pairs and data.cda_names need data.cda, one or two, or a variant cda:...'),
    (not (data.cda and cda),
     f"data.cda='{data.cda}' augments the text of all models, so a variant cda has no baseline: "
     'leave one of them out'),
    (config.model.attention != 'kernel' or not any(v.rates[0] for v in found),
     "model.attention='kernel' cannot drop attention weights, as a dropout variant does: set "
     "model.attention='auto' or 'blocks'"))


_OF_SOURCES = {  # values of `data.source` that a field is for
  'text_column': ('tsv', 'newscrawl'), 'text_field': ('jsonl', 'csv', 'parquet'),
  'lines_per_document': ('newscrawl_sentences',),
  'max_line_bytes': tuple(s for s in FILE_SOURCES if s not in ('csv', 'parquet')),
  **dict.fromkeys(('manual_dir', 'tfds_dir', 'download', 'sha256'), TFDS_SOURCES)}


def _data_errors(d: DataConfig) -> Iterator[str]:
  """Sources of documents, and counterfactual training documents."""
  splits = ('train',) if d.holdout else ('train', 'valid', 'test')
  initials = _INITIALS.fullmatch(d.cda_name_letters)
  yield from _failed(
    *((d.source not in FILE_SOURCES or getattr(d, split), f'data.{split} names no file')
      for split in splits),
    (d.source in FILE_SOURCES or not d.holdout,
     f"data.holdout is for files, and data.source='{d.source}' has splits"),
    (d.source != 'planted_gender' or d.planted_sensitive_share < 1,
     'data.planted_sensitive_share must be below 1 for planted_gender: the rest is about '
     'professions'),
    (d.source != 'planted_gender' or not d.planted_one_mood,
     'data.planted_one_mood is for data.source=planted'),
    (d.source not in TFDS_SOURCES or not (d.manual_dir and d.download),
     'data.manual_dir and data.download exclude each other'),
    (d.source not in TFDS_SOURCES or not (d.train or d.valid or d.test),
     f"data.source='{d.source}' reads data.manual_dir, not data.train, valid and test"),
    (re.fullmatch('([0-9a-f]{64})?', d.sha256), 'data.sha256 must be 64 hexadecimal digits'),
    (not d.holdout or (len(d.holdout) == 2 and min(d.holdout) > 0),
     'data.holdout must be two positive numbers: (valid, test)'),
    (not d.holdout or not (d.valid or d.test),
     'data.holdout makes valid and test: name no files for them'),
    (d.broken != 'skip' or d.source != 'wikitext',
     "data.broken=skip is for lines that are documents, not for data.source='wikitext'"),
    (len(d.cda_pairs) <= 2, 'data.cda_pairs is one file of pairs, or a male and a female one'),
    (initials and initials[1] <= initials[2],
     f"data.cda_name_letters='{d.cda_name_letters}' is no range of initials such as A-M"),
    (d.cda_names or (d.cda_name_letters, d.cda_name_gender) == ('A-Z', 'random'),
     'data.cda_name_letters and cda_name_gender need data.cda_names'),
    *((d.source in sources or getattr(d, name) == getattr(DataConfig(), name),
       f"data.{name} is for data.source={', '.join(sources)}, not '{d.source}': leave it out")
      for name, sources in _OF_SOURCES.items()),
    (d.cda_pairs != ('none',) or d.cda_names,
     "data.cda_pairs=('none',) leaves nothing to swap: name files in data.cda_names"))
