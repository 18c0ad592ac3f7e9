"""Configuration: frozen dataclasses and what makes them valid.

Every field's comment is its documentation. "(not in the paper)" marks values that Huang et al. 2020
leave open (definitions H-17, H-18, H-23). `config_files` reads and overrides them.
"""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

from fairjax.errors import UserError, unknown_name


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """Where documents come from and how they become tokens."""

  # planted | files in a layout: wikitext (' = Title = ' articles), lines, tsv, newscrawl (date,
  # base64 text, base64 text), newscrawl_sentences (no documents known) | wikitext103, wikitext2
  # (TFDS datasets made from the official files)
  source: str = 'planted'
  train: tuple[str, ...] = ()  # files (plain or .gz) or glob patterns
  valid: tuple[str, ...] = ()
  test: tuple[str, ...] = ()
  # (valid, test): that many of the last training documents, valid first; (1000, 9000) in H-41
  holdout: tuple[int, ...] = ()
  text_column: int = -1  # tsv, newscrawl: the column of the text; -1 is the last (unsplit text)
  lines_per_document: int = 1  # newscrawl_sentences: lines of the stream that make a document
  broken: str = 'error'  # lines that cannot be decoded: error | skip (counted)
  manual_dir: str = ''  # wikitext103, wikitext2: folder of wiki.*.tokens[.gz] or of the zip
  tfds_dir: str = ''  # wikitext103, wikitext2: folder of TFDS datasets; '' is one in the workdir
  download: bool = False  # wikitext103, wikitext2: fetch the zip if manual_dir is ''
  sha256: str = ''  # of the zip; '' is the recorded one
  workers: int = 0  # processes that encode; 0: one per core; results do not depend on it
  seed: int = 0  # order of the documents in the training stream
  vocabulary: str = 'sentencepiece'  # sentencepiece | word | folder of a vocabulary
  vocab_size: int = 8000  # upper limit for a word vocabulary
  vocab_sentences: int = 0  # lines that SentencePiece is trained on, a seeded sample; 0: no limit
  planted_documents: int = 20000  # training documents of the planted corpus
  planted_heldout_documents: int = 1000  # of its valid and of its test split
  planted_strength: float = 0.8  # range of P(positive | value); 0 plants no bias
  planted_sensitive_share: float = 0.6  # share of documents about a value of the attribute


FILE_SOURCES = ('wikitext', 'lines', 'tsv', 'newscrawl', 'newscrawl_sentences')
"""Values of `data.source` that read `data.train`, `data.valid` and `data.test`."""

TFDS_SOURCES = ('wikitext103', 'wikitext2')
"""Values of `data.source` that read a TFDS dataset."""

RUN_SCORERS = ('opinion', 'vader', 'google')
"""Scorers of a run, beside `bert:DIR`; `recorded` is for files that bring their own scores."""

MACHINE_FIELDS = ('data.workers', 'mesh.slices', 'mesh.data', 'mesh.fsdp', 'mesh.model',
                  'measure.google_requests_per_minute', 'measure.google_endpoint')
"""Fields that change how fast a run is but not what it gives: a workdir may go on with others."""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Transformer-XL (Dai et al. 2019)."""

  vocab_size: int = 0  # 0: that of the vocabulary
  vocab_multiple: int = 1  # tables are padded to a multiple of it, so that mesh.model divides them
  cutoffs: tuple[int, ...] = ()  # first ids of the tails of an adaptive softmax; (): plain softmax
  div_val: int = 1  # tail i is this many times narrower than tail i - 1
  tie_projections: tuple[bool, ...] = ()  # by cluster; (): all but the first, as the reference
  num_layers: int = 4
  model_dim: int = 256
  num_heads: int = 4
  head_dim: int = 64
  ff_dim: int = 1024
  segment_len: int = 128  # T, tokens per row and step
  memory_len: int = 128  # M, hidden states kept from earlier segments
  clamp_len: int = -1  # distances above it are treated as it; -1: none
  norm: str = 'post'  # post (Dai et al.) | pre
  final_norm: bool = False  # layer norm after the last block (usual with norm=pre)
  h_bar_final_norm: bool = False  # h-bar takes the last layer after this norm, not before (H-20)
  tie_position_biases: bool = True  # u and v shared by all layers, as the reference does
  hidden_dropout: float = 0.0  # embedding, attention output and feed-forward
  attention_dropout: float = 0.0  # attention weights
  # How attention is computed: auto (by device) | shift (whole scores) | blocks (of queries) |
  # heads (one at a time, for CPUs) | kernel (fused, for TPUs from v4 on). The values are the same.
  attention: str = 'auto'
  attention_block: int = 512  # most queries in a block, of blocks and of the kernel
  init_std: float = 0.02
  remat: str = 'none'  # none | dots (keep matmul outputs) | full
  scan_unroll: int = 1  # layers per iteration of the scan; num_layers unrolls it
  dtype: str = 'float32'  # compute: float32 | bfloat16 | float64; parameters stay float32 (64)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """One optimisation stage."""

  steps: int = 1000
  batch_size: int = 16  # rows over all devices
  parts: int = 1  # gradient accumulation: the rows are computed in so many parts (not for step 2)
  learning_rate: float = 2.5e-4  # H-18
  warmup_steps: int = 100  # linear from 0 (not in the paper)
  schedule: str = 'cosine'  # cosine (to 0) | constant | linear (to 0) (not in the paper)
  clip_norm: float = 0.25  # global gradient norm, as Transformer-XL (not in the paper)
  weight_decay: float = 0.0
  adam_b1: float = 0.9
  adam_b2: float = 0.999
  log_every: int = 50
  eval_every: int = 500  # steps; validation batches run at these steps and at the end
  eval_batches: int = 0  # 0: the whole validation split
  checkpoint_every: int = 500
  keep_checkpoints: int = 2


@dataclasses.dataclass(frozen=True)
class SentimentConfig(TrainConfig):
  """Step 2: the sentiment projection f_sh (H-19)."""

  hidden_dim: int = 128  # H-19
  num_layers: int = 3  # H-19
  margin: float = 0.7  # keep sentences with |2 score - 1| above it (H-19)
  # Labels the sentences: opinion | vader | google (as in the paper) | bert:DIR
  scorer: str = 'opinion'
  sentence_tokens: int = 64  # longer sentences are left out, counted
  max_sentences: int = 0  # 0: all; otherwise a seeded choice, counted
  valid_share: float = 0.1  # of the labelled sentences, held out for the F1
  # Random prefixes of each sentence whose h-bar is kept besides the last token's; in memory are
  # sentences x (1 + prefixes) x model_dim x 4 bytes (max_sentences bounds it).
  prefixes: int = 4
  prefix_share: float = 0.5  # share of examples read at one of them instead of the last token


@dataclasses.dataclass(frozen=True)
class DebiasConfig(TrainConfig):
  """Step 3: L_LM + lambda L_fairness on documents with a sensitive token (H-20..H-24)."""

  variants: tuple[str, ...] = ('embedding:1', 'embedding:10', 'sentiment:1', 'sentiment:10')
  extended_baseline: bool = True  # the control of footnote 6 (H-26)
  branches_per_row: int = 4  # K
  pieces_per_branch: int = 4  # P, the most pieces a replacement may have
  gradient: str = 'both'  # both | branch (stop-gradient on the original) (H-21)
  sentiment_layer: str = 'hidden'  # hidden (128-d, after ReLU) | probability (1 - p, p) (H-22)
  monitor_every: int = 1  # steps between values of the next-token divergence (KL, JS)


@dataclasses.dataclass(frozen=True)
class SampleConfig:
  """Continuations of the evaluation templates (H-12, H-13)."""

  samples: int = 1000  # per template and value
  max_new_tokens: int = 50
  temperature: float = 1.0
  sentence_end: bool = False  # stop at the first sentence end instead of the document's
  batch_size: int = 250  # samples at a time for all values of one template
  seed: int = 0  # one for all models: same-seed pairs (H-13)
  heldout_prefixes: bool = True  # planted corpus: also sample unseen prefixes of the grammar


@dataclasses.dataclass(frozen=True)
class MeasureConfig:
  """Scores and metrics."""

  scorers: tuple[str, ...] = ('opinion', 'vader')  # opinion | vader | google | bert:DIR
  lexicon: tuple[str, ...] = ()  # opinion words: positive file, negative file; or their folder
  google_requests_per_minute: float = 600.0  # of the google scorer; Google's default quota
  google_endpoint: str = ''  # host of another region, e.g. eu-language.googleapis.com
  permutations: int = 200  # for the null floor
  eval_batch_size: int = 8  # rows of the perplexity evaluation


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Devices: rows are split over slices x data x fsdp, parameters over fsdp and model."""

  slices: int = 1  # pod slices that the data-centre network joins
  data: int = -1  # -1: all devices that the others leave
  fsdp: int = 1
  model: int = 1


@dataclasses.dataclass(frozen=True)
class Config:
  """A whole run."""

  name: str = 'run'
  seed: int = 0
  attribute: str = 'country'  # name of a built-in attribute, or path of a YAML file
  until: str = 'debias'  # how far the curriculum goes: lm | sentiment | debias
  data: DataConfig = DataConfig()
  model: ModelConfig = ModelConfig()
  lm: TrainConfig = TrainConfig()
  sentiment: SentimentConfig = SentimentConfig()
  debias: DebiasConfig = DebiasConfig()
  sample: SampleConfig = SampleConfig()
  measure: MeasureConfig = MeasureConfig()
  mesh: MeshConfig = MeshConfig()


def validate(config: Config) -> None:
  """Checks values and their relations; gathers every error in one `UserError`."""
  errors = []

  def check(ok, message):
    if not ok:
      errors.append(message)

  def one_of(name, value, allowed):
    check(value in allowed, f"{name}='{value}' is not one of {', '.join(allowed)}")

  _check_finite(config, '', errors)
  d, m = config.data, config.model
  one_of('until', config.until, ('lm', 'sentiment', 'debias'))
  _check_data(d, check, one_of)
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
  check(m.memory_len >= 0, 'model.memory_len must not be negative')
  check(m.model_dim % 2 == 0, 'model.model_dim must be even (sinusoids)')
  _check_softmax(m, check)
  for field in ('hidden_dropout', 'attention_dropout'):
    check(0 <= getattr(m, field) < 1, f'model.{field} must be in [0, 1)')
  for stage in ('lm', 'sentiment', 'debias'):
    t = getattr(config, stage)
    check(t.parts > 0 and t.batch_size % t.parts == 0,
          f'{stage}.parts={t.parts} must divide {stage}.batch_size={t.batch_size}')
    for field in ('steps', 'batch_size', 'log_every', 'eval_every', 'checkpoint_every',
                  'keep_checkpoints', 'learning_rate', 'clip_norm'):
      check(getattr(t, field) > 0, f'{stage}.{field} must be positive')
    one_of(f'{stage}.schedule', t.schedule, ('cosine', 'constant', 'linear'))
    check(0 <= t.warmup_steps <= t.steps, f'{stage}.warmup_steps must be in [0, {stage}.steps]')
  s = config.sentiment
  check(s.parts == 1, 'sentiment.parts must be 1: its batches are small')
  _check_scorer('sentiment.scorer', s.scorer, check, one_of)
  check(0 <= s.margin < 1, 'sentiment.margin must be in [0, 1)')
  check(0 < s.valid_share < 1, 'sentiment.valid_share must be in (0, 1)')
  check(s.prefixes >= 0, 'sentiment.prefixes must not be negative')
  check(0 <= s.prefix_share <= 1, 'sentiment.prefix_share must be in [0, 1]')
  check(s.num_layers >= 2, 'sentiment.num_layers must be at least 2')
  one_of('debias.gradient', config.debias.gradient, ('both', 'branch'))
  one_of('debias.sentiment_layer', config.debias.sentiment_layer, ('hidden', 'probability'))
  for field in ('branches_per_row', 'pieces_per_branch', 'monitor_every'):
    check(getattr(config.debias, field) > 0, f'debias.{field} must be positive')
  for variant in config.debias.variants:
    try:
      parse_variant(variant)
    except UserError as e:
      errors.append(f'debias.variants: {e}')
  check(config.sample.samples > 0, 'sample.samples must be positive')
  check(config.sample.max_new_tokens > 0, 'sample.max_new_tokens must be positive')
  check(config.sample.batch_size > 0, 'sample.batch_size must be positive')
  check(config.sample.temperature > 0, 'sample.temperature must be positive')
  _check_measure(config, check, one_of)
  check(config.mesh.data == -1 or config.mesh.data > 0, 'mesh.data must be -1 or positive')
  for field in ('slices', 'fsdp', 'model'):
    check(getattr(config.mesh, field) > 0, f'mesh.{field} must be positive')
  if errors:
    raise UserError('invalid config: ' + '; '.join(errors))


def _check_measure(config: Config, check: Callable, one_of: Callable) -> None:
  m = config.measure
  check(m.scorers, 'measure.scorers names no scorer')
  check(len(set(m.scorers)) == len(m.scorers), 'measure.scorers names a scorer twice')
  for scorer in m.scorers:
    _check_scorer('measure.scorers', scorer, check, one_of)
  check(m.google_requests_per_minute > 0, 'measure.google_requests_per_minute must be positive')
  if config.data.source != 'planted' and 'opinion' in (*m.scorers, config.sentiment.scorer):
    check(len(m.lexicon) in (1, 2), 'the opinion scorer needs measure.lexicon=(positive file, '
          'negative file) or (their folder,); or use the vader scorer for measure.scorers and '
          'sentiment.scorer')


def _check_scorer(name: str, scorer: str, check: Callable, one_of: Callable) -> None:
  kind, _, directory = scorer.partition(':')
  if kind == 'bert':
    check(directory.partition('#')[0], f"{name}='{scorer}' names no directory: bert:DIR")
  else:
    one_of(name, scorer, (*RUN_SCORERS, 'bert:DIR'))


def _check_softmax(m: ModelConfig, check: Callable[[bool, str], None]) -> None:
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


def _check_data(d: DataConfig, check: Callable, one_of: Callable) -> None:
  one_of('data.source', d.source, ('planted', *FILE_SOURCES, *TFDS_SOURCES))
  one_of('data.broken', d.broken, ('error', 'skip'))
  if d.source == 'planted':
    check(0 <= d.planted_strength <= 1, 'data.planted_strength must be in [0, 1]')
    check(0 < d.planted_sensitive_share <= 1, 'data.planted_sensitive_share must be in (0, 1]')
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
  check(d.lines_per_document > 0, 'data.lines_per_document must be positive')
  check(d.workers >= 0, 'data.workers must not be negative')
  check(d.vocab_sentences >= 0, 'data.vocab_sentences must not be negative')
  check(d.vocab_size > 3, 'data.vocab_size must be above 3')


def parse_variant(variant: str) -> tuple[str, float]:
  """Splits `'embedding:10'` into `('embedding', 10.0)`.

  Raises:
    UserError: unknown method, or a weight that is not a finite number >= 0.

  >>> parse_variant('sentiment:0.5')
  ('sentiment', 0.5)
  """
  method, _, weight = variant.partition(':')
  if method not in ('embedding', 'sentiment'):
    raise unknown_name('variant', method, ('embedding', 'sentiment'))
  try:
    value = float(weight)
  except ValueError:
    value = math.nan
  if not (math.isfinite(value) and value >= 0):
    raise UserError(f"weight of variant '{variant}' must be finite and >= 0, e.g. {method}:10")
  return method, value


def _check_finite(node: Any, prefix: str, errors: list[str]) -> None:
  for field in dataclasses.fields(node):
    value = getattr(node, field.name)
    if dataclasses.is_dataclass(value):
      _check_finite(value, f'{prefix}{field.name}.', errors)
    elif isinstance(value, float) and not math.isfinite(value):
      errors.append(f'{prefix}{field.name} is {value}')
