"""Parts of `fairjax.config.validate`: what values may be, and which go together.

Each function is given `check(ok, message)` and `one_of(name, value, allowed)`, which gather errors.
"""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

from fairjax.config import (
  FILE_SOURCES,
  PLANTED_SOURCES,
  RUN_SCORERS,
  TFDS_SOURCES,
  Config,
  DataConfig,
  ModelConfig,
  parse_variant,
)
from fairjax.errors import UserError


def validate(config: Config) -> None:
  """Checks values and their relations; gathers every error in one `UserError`."""
  errors = []

  def check(ok, message):
    if not ok:
      errors.append(message)

  def one_of(name, value, allowed):
    check(value in allowed, f"{name}='{value}' is not one of {', '.join(allowed)}")

  check_finite(config, '', errors)
  for name, seed in (('seed', config.seed), ('data.seed', config.data.seed),
                     ('sample.seed', config.sample.seed)):
    check(0 <= seed < 1 << 32, f'{name} must be in [0, 2**32)')
  one_of('until', config.until, ('lm', 'sentiment', 'debias'))
  check_data(config.data, check, one_of)
  check_model(config.model, check, one_of)
  for stage in ('lm', 'sentiment', 'debias'):
    t = getattr(config, stage)
    check(t.grad_accum_steps > 0 and t.batch_size % t.grad_accum_steps == 0,
          f'{stage}.grad_accum_steps={t.grad_accum_steps} must divide '
          f'{stage}.batch_size={t.batch_size}')
    for field in ('steps', 'batch_size', 'log_every', 'eval_every', 'checkpoint_every',
                  'keep_checkpoints', 'learning_rate', 'clip_norm', 'max_skipped',
                  'spike_window'):
      check(getattr(t, field) > 0, f'{stage}.{field} must be positive')
    check(t.spike_sigmas >= 0, f'{stage}.spike_sigmas must not be negative')
    one_of(f'{stage}.schedule', t.schedule, ('cosine', 'constant', 'linear'))
    check(0 <= t.warmup_steps <= t.steps, f'{stage}.warmup_steps must be in [0, {stage}.steps]')
    check(t.eval_batches >= 0, f'{stage}.eval_batches must not be negative')
    check(t.weight_decay >= 0, f'{stage}.weight_decay must not be negative')
    for field in ('adam_b1', 'adam_b2'):
      check(0 <= getattr(t, field) < 1, f'{stage}.{field} must be in [0, 1)')
  s = config.sentiment
  check(s.grad_accum_steps == 1, 'sentiment.grad_accum_steps must be 1: its batches are small')
  check_scorer('sentiment.scorer', s.scorer, check, one_of)
  check(0 <= s.margin < 1, 'sentiment.margin must be in [0, 1)')
  check(0 < s.valid_share < 1, 'sentiment.valid_share must be in (0, 1)')
  check(s.prefixes >= 0, 'sentiment.prefixes must not be negative')
  check(0 <= s.prefix_share <= 1, 'sentiment.prefix_share must be in [0, 1]')
  check(s.num_layers >= 2, 'sentiment.num_layers must be at least 2')
  check(s.hidden_dim > 0, 'sentiment.hidden_dim must be positive')
  check(s.sentence_tokens > 1, 'sentiment.sentence_tokens must be at least 2')
  check(s.max_sentences >= 0, 'sentiment.max_sentences must not be negative (0: all)')
  one_of('debias.gradient', config.debias.gradient, ('both', 'branch'))
  one_of('debias.sentiment_layer', config.debias.sentiment_layer, ('hidden', 'probability'))
  for field in ('branches_per_row', 'pieces_per_branch'):
    check(getattr(config.debias, field) > 0, f'debias.{field} must be positive')
  check(config.debias.monitor_every >= 0, 'debias.monitor_every must not be negative (0: never)')
  check_variants(config, check, errors)
  check(config.sample.samples > 0, 'sample.samples must be positive')
  check(config.sample.max_new_tokens > 0, 'sample.max_new_tokens must be positive')
  check(config.sample.batch_size > 0, 'sample.batch_size must be positive')
  check(config.sample.temperature > 0, 'sample.temperature must be positive')
  check_measure(config, check, one_of)
  check(config.mesh.data == -1 or config.mesh.data > 0, 'mesh.data must be -1 or positive')
  for field in ('slices', 'fsdp', 'model'):
    check(getattr(config.mesh, field) > 0, f'mesh.{field} must be positive')
  if errors:
    raise UserError('invalid config: ' + '; '.join(errors))


def check_measure(config: Config, check: Callable, one_of: Callable) -> None:
  """Scores and metrics; the opinion scorer needs a lexicon."""
  m = config.measure
  check(m.scorers, 'measure.scorers names no scorer')
  check(len(set(m.scorers)) == len(m.scorers), 'measure.scorers names a scorer twice')
  for scorer in m.scorers:
    check_scorer('measure.scorers', scorer, check, one_of)
  check(m.permutations > 0, 'measure.permutations must be positive')
  check(m.eval_batch_size > 0, 'measure.eval_batch_size must be positive')
  check(m.eval_memory_len >= -1, 'measure.eval_memory_len must be -1 or not negative')
  check(m.similarity_samples >= 0, 'measure.similarity_samples must not be negative')
  check(0 < m.relevance_share <= 1, 'measure.relevance_share must be in (0, 1]')
  check(re.fullmatch(r'encoder|baseline:0?\.\d*[1-9]\d*|[-+]?(0|1|1\.0*|0?\.\d+)',
                     m.similarity_threshold),
        f"measure.similarity_threshold='{m.similarity_threshold}' is none of: encoder, a cosine in "
        '[-1, 1], baseline:SHARE with a share in (0, 1)')
  kind, _, directory = m.encoder.partition(':')
  check(m.encoder in ('', 'minilm') or (kind in ('minilm', 'use') and directory),
        f"measure.encoder='{m.encoder}' is none of: minilm, minilm:DIR, use:DIR")
  check(m.audit_texts >= 0, 'measure.audit_texts must not be negative')
  check(m.google_requests_per_minute > 0, 'measure.google_requests_per_minute must be positive')
  opinion = 'opinion' in (*m.scorers, config.sentiment.scorer)
  if opinion and config.data.source not in PLANTED_SOURCES:
    check(len(m.lexicon) in (1, 2), 'the opinion scorer needs measure.lexicon=(positive file, '
          'negative file) or (their folder,); or use the scorers vader and textblob for '
          'measure.scorers and sentiment.scorer')


def check_scorer(name: str, scorer: str, check: Callable, one_of: Callable) -> None:
  """The name of a scorer."""
  kind, _, directory = scorer.partition(':')
  if kind == 'bert':
    check(directory.partition('#')[0], f"{name}='{scorer}' names no directory: bert:DIR")
  else:
    one_of(name, scorer, (*RUN_SCORERS, 'bert:DIR'))


def check_model(m: ModelConfig, check: Callable, one_of: Callable) -> None:
  """Sizes and choices of the model."""
  one_of('model.norm', m.norm, ('post', 'pre'))
  one_of('model.attention', m.attention, ('auto', 'shift', 'blocks', 'heads', 'kernel'))
  check(m.attention != 'kernel' or m.attention_dropout == 0,
        "model.attention='kernel' cannot drop attention weights: set model.attention_dropout=0, or "
        "model.attention='auto' or 'blocks'")
  check(m.attention != 'kernel' or m.dtype != 'float64',
        "model.attention='kernel' cannot compute in float64")
  check(m.attention != 'kernel' or m.attention_block % 128 == 0,
        "model.attention='kernel' needs a model.attention_block that is a multiple of 128")
  one_of('model.remat', m.remat, ('none', 'dots', 'full'))
  one_of('model.dtype', m.dtype, ('float32', 'bfloat16', 'float64'))
  for field in ('num_layers', 'model_dim', 'num_heads', 'head_dim', 'ff_dim', 'segment_len',
                'scan_unroll', 'attention_block'):
    check(getattr(m, field) > 0, f'model.{field} must be positive')
  check(m.num_layers >= 2, 'model.num_layers must be at least 2 (h-bar averages two layers, H-20)')
  check(m.final_norm or not m.h_bar_final_norm,
        'model.h_bar_final_norm needs model.final_norm=True')
  check(m.memory_len >= 1, 'model.memory_len must be at least 1 (an empty memory cannot be saved)')
  check(m.vocab_size >= 0, 'model.vocab_size must not be negative (0: that of the vocabulary)')
  check(m.clamp_len >= -1, 'model.clamp_len must be -1 (none) or a distance')
  check(m.init_std > 0, 'model.init_std must be positive')
  check(m.model_dim % 2 == 0, 'model.model_dim must be even (sinusoids)')
  check_softmax(m, check)
  for field in ('hidden_dropout', 'attention_dropout'):
    check(0 <= getattr(m, field) < 1, f'model.{field} must be in [0, 1)')


def check_softmax(m: ModelConfig, check: Callable[[bool, str], None]) -> None:
  """Clusters of an adaptive softmax."""
  check(m.vocab_multiple > 0, 'model.vocab_multiple must be positive')
  check(m.div_val > 0, 'model.div_val must be positive')
  if not m.cutoffs:
    check(m.div_val == 1, 'model.div_val above 1 needs model.cutoffs')
    check(not m.tie_projections, 'model.tie_projections needs model.cutoffs')
    return
  ends = (0, *m.cutoffs) + ((m.vocab_size,) if m.vocab_size else ())
  check(all(a < b for a, b in zip(ends, ends[1:], strict=False)),
        f'model.cutoffs={m.cutoffs} must rise, above 0 and below the size of the vocabulary')
  check(m.div_val > 0 and m.model_dim % m.div_val ** len(m.cutoffs) == 0,
        f'model.model_dim={m.model_dim} is not divisible by div_val ** {len(m.cutoffs)}')
  check(len(m.tie_projections) in (0, len(m.cutoffs) + 1),
        f'model.tie_projections needs {len(m.cutoffs) + 1} values, or none')


def check_variants(config: Config, check: Callable, errors: list[str]) -> None:
  """The models of step 3, and whether they fit the rest."""
  found = []
  for variant in config.debias.variants:
    try:
      found.append(parse_variant(variant))
    except UserError as e:
      errors.append(f'debias.variants: {e}')
  check(len(set(found)) == len(found), 'debias.variants names a variant twice')
  cda = [v for v in found if v.method == 'cda']
  d = config.data
  check(d.cda or cda or not (d.cda_pairs or d.cda_names),
        'data.cda_pairs and data.cda_names need data.cda, one or two, or a variant cda:...')
  check(not (d.cda and cda), f"data.cda='{d.cda}' augments the text of all models, so that a "
        'variant cda has no baseline to be compared with: leave one of them out')
  check(config.model.attention != 'kernel' or not any(v.rates[0] for v in found),
        "model.attention='kernel' cannot drop attention weights, as a dropout variant wants: set "
        "model.attention='auto' or 'blocks'")


def check_data(d: DataConfig, check: Callable, one_of: Callable) -> None:
  """Where documents come from."""
  one_of('data.source', d.source, (*PLANTED_SOURCES, *FILE_SOURCES, *TFDS_SOURCES))
  one_of('data.broken', d.broken, ('error', 'skip'))
  one_of('data.reader', d.reader, ('seqio', 'numpy'))
  if d.source in PLANTED_SOURCES:
    check(0 <= d.planted_strength <= 1, 'data.planted_strength must be in [0, 1]')
    check(0 < d.planted_sensitive_share <= 1, 'data.planted_sensitive_share must be in (0, 1]')
    check(d.planted_sensitive_share < 1 or d.source == 'planted',
          'data.planted_sensitive_share must be below 1 for planted_gender: the rest is about '
          'professions')
    check(d.source == 'planted' or not d.planted_one_mood,
          'data.planted_one_mood is for data.source=planted')
    check(d.planted_documents > 0, 'data.planted_documents must be positive')
    check(d.planted_heldout_documents > 0, 'data.planted_heldout_documents must be positive')
  if d.source in FILE_SOURCES:
    for split in ('train',) if d.holdout else ('train', 'valid', 'test'):
      check(getattr(d, split), f'data.{split} names no file')
  else:
    check(not d.holdout, f"data.holdout is for files, and data.source='{d.source}' has splits")
  if d.source in TFDS_SOURCES:
    check(not (d.manual_dir and d.download), 'data.manual_dir and data.download exclude each other')
    check(not (d.train or d.valid or d.test),
          f"data.source='{d.source}' reads data.manual_dir, not data.train, valid and test")
  check(re.fullmatch('([0-9a-f]{64})?', d.sha256), 'data.sha256 must be 64 hexadecimal digits')
  if d.holdout:
    check(len(d.holdout) == 2 and min(d.holdout) > 0,
          'data.holdout must be two positive numbers: (valid, test)')
    check(not (d.valid or d.test), 'data.holdout makes valid and test: name no files for them')
  check(d.broken == 'error' or d.source != 'wikitext',
        "data.broken=skip is for lines that are documents, not for data.source='wikitext'")
  one_of('data.cda', d.cda, ('', 'one', 'two'))
  one_of('data.cda_unit', d.cda_unit, ('sentence', 'document'))
  one_of('data.cda_name_gender', d.cda_name_gender, ('same', 'flip', 'random'))
  check(len(d.cda_pairs) <= 2, 'data.cda_pairs is one file of pairs, or a male and a female one')
  check(re.fullmatch('[A-Z]-[A-Z]', d.cda_name_letters) and d.cda_name_letters[0] <=
        d.cda_name_letters[-1], f"data.cda_name_letters='{d.cda_name_letters}' is no range of "
        'initials such as A-M')
  check(d.cda_pairs != ('none',) or d.cda_names,
        "data.cda_pairs=('none',) leaves nothing to swap: name files in data.cda_names")
  check(d.max_line_bytes > 0, 'data.max_line_bytes must be positive')
  check(d.lines_per_document > 0, 'data.lines_per_document must be positive')
  check(d.vocab_sentences >= 0, 'data.vocab_sentences must not be negative')
  check(d.vocab_size > 3, 'data.vocab_size must be above 3')


def check_finite(node: Any, prefix: str, errors: list[str]) -> None:
  """Every number of a config is finite and has at most 64 bits."""
  for field in dataclasses.fields(node):
    value = getattr(node, field.name)
    if dataclasses.is_dataclass(value):
      check_finite(value, f'{prefix}{field.name}.', errors)
    elif isinstance(value, float) and not math.isfinite(value):
      errors.append(f'{prefix}{field.name} is {value}')
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
      errors.append(f'{prefix}{field.name} has more than 64 bits')
