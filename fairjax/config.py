"""Configuration: frozen dataclasses.

The comment of a field, after it or right above it, is its documentation (`fairjax step config`).
"(not in the paper)" marks values that Huang et al. 2020 leave open (H-17, H-18, H-23). A field
declares the limits of its own value; `config_checks` adds the relations between fields, `config_io`
reads and overrides configurations.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from fairjax.errors import UserError, unknown_name

FILE_SOURCES = (
  'wikitext', 'lines', 'tsv', 'newscrawl', 'newscrawl_sentences', 'jsonl', 'csv', 'parquet')
"""Values of `data.source` that read `data.train`, `data.valid` and `data.test`."""

SHIPPED = 'shipped:'
"""Begins the name of a text that comes with fairjax, as a file of `data.train`.

A configuration then holds no path of the installation, and another installation continues a run.
"""

PLANTED_SOURCES = ('planted', 'planted_gender')
"""Values of `data.source` whose documents fairjax writes."""

TFDS_SOURCES = ('wikitext103', 'wikitext2')
"""Values of `data.source` that read a TFDS dataset."""

WIKITEXT_SOURCES = ('wikitext', *TFDS_SOURCES)
"""Values of `data.source` whose documents are WikiText's words already."""

SOURCES = (*PLANTED_SOURCES, *FILE_SOURCES, *TFDS_SOURCES)
"""All values of `data.source`."""


def limited(
  default: Any, *, min: float | None = None, above: float | None = None, max: float | None = None,
  below: float | None = None, choices: tuple[str, ...] = (),
) -> Any:
  """Declares a field with its default and the limits that `config_checks.validate` applies."""
  return dataclasses.field(default=default, metadata={
    'min': min, 'above': above, 'max': max, 'below': below, 'choices': choices})


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """Where documents come from and how they become tokens."""

  # planted | planted_gender (gender goes with professions, and with sentiment) | files in a layout:
  # wikitext (' = Title = ' articles), lines, tsv, newscrawl (date, base64 text, base64 text),
  # newscrawl_sentences (no documents known), jsonl, csv, parquet (a document a row) | wikitext103,
  # wikitext2 (TFDS datasets made from the official files)
  source: str = limited('planted', choices=SOURCES)
  # files, plain or compressed, or glob patterns; shipped:countries.txt comes with fairjax
  train: tuple[str, ...] = ()
  valid: tuple[str, ...] = ()  # as train; not with holdout
  test: tuple[str, ...] = ()  # as train; not with holdout
  # (valid, test): that many of the last training documents, valid first; (1000, 9000) in H-41
  holdout: tuple[int, ...] = ()
  text_column: int = -1  # tsv, newscrawl: the column of the text; -1 is the last (unsplit text)
  text_field: str = 'text'  # jsonl, csv, parquet: the field, or column, of the text
  # newscrawl_sentences: lines of the stream that make a document
  lines_per_document: int = limited(1, above=0)
  # lines that cannot be decoded or are too long: error | skip (counted)
  broken: str = limited('error', choices=('error', 'skip'))
  # a longer line is broken: the file is no text, or has no line ends
  max_line_bytes: int = limited(1 << 24, above=0)
  manual_dir: str = ''  # wikitext103, wikitext2: folder of wiki.*.tokens[.gz] or of the zip
  tfds_dir: str = ''  # wikitext103, wikitext2: folder of TFDS datasets; '' is one in the workdir
  download: bool = False  # wikitext103, wikitext2: fetch the zip if manual_dir is ''
  sha256: str = ''  # of the zip; '' is the recorded one
  # seqio (documents become tokens in a seqio task, rows are read through another and its feature
  # converter) | numpy (no TensorFlow). The tokens and the batches are the same.
  reader: str = limited('seqio', choices=('seqio', 'numpy'))
  # order of the documents in the training stream (not in the paper)
  seed: int = limited(0, min=0, below=1 << 32)
  vocabulary: str = 'sentencepiece'  # sentencepiece | word | folder of one or of a model
  vocab_size: int = limited(8000, above=3)  # upper limit for a word vocabulary
  # lines that SentencePiece is trained on, a seeded sample; 0: all. Of more than 200 million
  # characters every second line, every fourth, ... is taken
  vocab_sentences: int = limited(0, min=0)
  # Counterfactual training documents (Webster et al. W-14, W-15): '' | one (only these; a document
  # without a gendered word is left out, counted) | two (each after its original)
  cda: str = limited('', choices=('', 'one', 'two'))
  # What is swapped and left out: sentence (the counterfactual document holds the swapped sentences
  # only, so neutral ones occur once) | document (it is the whole text)
  cda_unit: str = limited('sentence', choices=('sentence', 'document'))
  # Word pairs: a file, or a file of male and one of female words; (): fairjax's; ('none',): none
  cda_pairs: tuple[str, ...] = ()
  cda_names: tuple[str, ...] = ()  # files of first names with counts, as the US SSA's; (): no names
  # of the name that replaces another: same | flip | random (W-16)
  cda_name_gender: str = limited('random', choices=('same', 'flip', 'random'))
  cda_name_letters: str = 'A-Z'  # initials of the names that are replaced, e.g. A-M (W-16)
  planted_documents: int = limited(20000, above=0)  # training documents of the planted corpus
  planted_heldout_documents: int = limited(1000, above=0)  # of its valid and of its test split
  # range of P(positive | value); 0 plants no bias
  planted_strength: float = limited(0.8, min=0, max=1)
  # planted: all opinion words of a document have one sign, so that a model keeps it until the end
  # of a sentence, where f_sh reads it
  planted_one_mood: bool = False
  # share of documents about a value of the attribute (planted_gender: with an opinion word)
  planted_sensitive_share: float = limited(0.6, above=0, max=1)


STAGES = ('lm', 'sentiment', 'debias')
"""Steps 1 to 3 of the curriculum: sections of a configuration, and folders of a workdir."""

METHODS = ('embedding', 'sentiment', 'dropout', 'cda')
"""What a variant may be; see `Variant`."""

DECODE_TIME_METHODS = ('average', 'steer')
"""What may change the step-1 model while it is sampled; see `fairjax.model.decode_time`."""

RUN_SCORERS = ('opinion', 'vader', 'textblob', 'google')
"""Scorers of a run, beside `bert:DIR`; `recorded` is for files that bring their own scores."""

STEP1_FIELDS = ('seed', 'data', 'model', 'pretrained', 'lm')
"""What step 1 depends on; of planted text also `attribute`, about which it is written."""

MACHINE_FIELDS = (
  'data.reader', 'mesh.slices', 'mesh.data', 'mesh.fsdp', 'mesh.model', 'model.attention',
  'model.attention_block', 'model.remat', 'model.scan_unroll', 'sample.batch_size',
  'measure.google_requests_per_minute', 'measure.google_endpoint', 'log.to', 'log.hang_factor',
  'log.hang_seconds', 'log.profile',
  *(f'{stage}.{name}' for stage in STAGES
    for name in ('grad_accum_steps', 'log_every', 'keep_checkpoints', 'max_skipped')))
"""Fields that change the speed, memory or log of a run: a resumed run may have others.

Results differ in rounding only; `grad_accum_steps` also changes the masks of dropout.
"""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Transformer-XL (Dai et al. 2019)."""

  vocab_size: int = limited(0, min=0)  # 0: that of the vocabulary
  # tables are padded to a multiple of it, so that mesh.model divides them
  vocab_multiple: int = limited(1, above=0)
  # First ids of the tails of an adaptive softmax; (): plain softmax (not in the paper)
  cutoffs: tuple[int, ...] = ()
  # tail i is this many times narrower than tail i - 1 (not in the paper)
  div_val: int = limited(1, above=0)
  # By cluster; (): all but the first, as the reference (not in the paper)
  tie_projections: tuple[bool, ...] = ()
  num_layers: int = limited(4, min=2)  # L; h-bar averages the outputs of the last two (H-20)
  model_dim: int = limited(256, above=0)  # D, width of the hidden states
  num_heads: int = limited(4, above=0)  # N, attention heads
  head_dim: int = limited(64, above=0)  # H, width of a head
  ff_dim: int = limited(1024, above=0)  # F, width inside the feed-forward blocks
  segment_len: int = limited(128, above=0)  # T, tokens per row and step
  memory_len: int = limited(128, above=0)  # M, hidden states kept from earlier segments
  # distances above it are treated as it; -1: none (not in the paper)
  clamp_len: int = limited(-1, min=-1)
  norm: str = limited('post', choices=('post', 'pre'))  # post (Dai et al.) | pre (not in the paper)
  # Layer norm after the last block; usual with norm=pre (not in the paper)
  final_norm: bool = False
  h_bar_final_norm: bool = False  # h-bar takes the last layer after this norm, not before (H-20)
  # u and v shared by all layers, as the reference does (not in the paper)
  tie_position_biases: bool = True
  # embedding, attention output and feed-forward
  hidden_dropout: float = limited(0.0, min=0, below=1)
  attention_dropout: float = limited(0.0, min=0, below=1)  # attention weights
  # How attention is computed: auto (by device) | shift (whole scores) | blocks (of queries) |
  # heads (one at a time, for CPUs) | kernel (fused, for TPUs from v4 on) (not in the paper). The
  # values are the same.
  attention: str = limited('auto', choices=('auto', 'shift', 'blocks', 'heads', 'kernel'))
  # Most queries in a block, of blocks (which have a quarter of the segment at most) and of the
  # kernel (not in the paper)
  attention_block: int = limited(512, above=0)
  # standard deviation of the initial weights (not in the paper)
  init_std: float = limited(0.02, above=0)
  # none | dots (keep matmul outputs) | full (not in the paper)
  remat: str = limited('none', choices=('none', 'dots', 'full'))
  # layers per iteration of the scan; num_layers unrolls it (not in the paper)
  scan_unroll: int = limited(1, above=0)
  # compute: float32 | bfloat16 | float64; parameters stay float32 (64)
  dtype: str = limited('float32', choices=('float32', 'bfloat16', 'float64'))


def model_identity(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Fields of a model on which its values depend: those of `MACHINE_FIELDS` get their defaults."""
  default = ModelConfig()
  return {name: getattr(default, name) if f'model.{name}' in MACHINE_FIELDS else value
          for name, value in fields.items()}


@dataclasses.dataclass(frozen=True)
class PretrainedConfig:
  """A published decoder in the place of step 1 (not in the paper).

  Its own files give its sizes and its vocabulary; of `model` only segment_len, dtype, remat and
  scan_unroll count, of `lm` only batch_size and eval_batches, for its evaluation.
  """

  # Folder with config.json, safetensors and tokenizer.json | FILE.gguf | hf:ORG/NAME[@REVISION] |
  # pip:PACKAGE (installed) | an adapter's folder; '': none, step 1 trains a Transformer-XL
  model: str = ''
  # raw (H-20) | normed (both layers after the final norm, for models in which one dimension holds
  # nearly all of the raw states) | layer:N (raw, of layers N - 1 and N instead of the last two)
  h_bar: str = 'raw'
  # Rank of adapters (LoRA) that step 3 trains in the place of all weights; 0: none
  lora: int = limited(0, min=0)
  # Ask for continuations by the tokenizer's chat template (needs jinja2); false: the prefix alone
  chat: bool = False


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """One optimisation stage."""

  steps: int = limited(1000, above=0)  # updates
  batch_size: int = limited(16, above=0)  # rows over all devices
  # microbatches that a batch is computed in, one after the other; 1 in step 2 (not in the paper)
  grad_accum_steps: int = limited(1, above=0)
  learning_rate: float = limited(2.5e-4, above=0)  # H-18
  warmup_steps: int = limited(100, min=0)  # linear from 0 (not in the paper)
  # cosine (to 0) | constant | linear (to 0) (not in the paper)
  schedule: str = limited('cosine', choices=('cosine', 'constant', 'linear'))
  # global gradient norm, as Transformer-XL (not in the paper)
  clip_norm: float = limited(0.25, above=0)
  weight_decay: float = limited(0.0, min=0)  # decoupled, as AdamW (not in the paper)
  adam_b1: float = limited(0.9, min=0, below=1)  # decay of the mean gradient (not in the paper)
  # decay of the mean squared gradient (not in the paper)
  adam_b2: float = limited(0.999, min=0, below=1)
  # An update whose loss or gradient is not finite is skipped and counted; after so many in a row
  # the stage stops at the last good step (not in the paper).
  max_skipped: int = limited(10, above=0)
  # Skip losses so many deviations above the rolling mean; 0: none (not in the paper)
  spike_sigmas: float = limited(0.0, min=0)
  spike_window: int = limited(128, above=0)  # losses in the rolling mean (not in the paper)
  log_every: int = limited(50, above=0)  # steps between lines of progress
  # steps; validation batches run at these steps and at the end
  eval_every: int = limited(500, above=0)
  eval_batches: int = limited(0, min=0)  # 0: the whole validation split (not in the paper)
  checkpoint_every: int = limited(500, above=0)  # steps
  keep_checkpoints: int = limited(2, above=0)  # the newest ones (not in the paper)


@dataclasses.dataclass(frozen=True)
class SentimentConfig(TrainConfig):
  """Step 2: the sentiment projection f_sh (H-19)."""

  hidden_dim: int = limited(128, above=0)  # H-19
  num_layers: int = limited(3, min=2)  # H-19
  margin: float = limited(0.7, min=0, below=1)  # keep sentences with |2 score - 1| above it (H-19)
  # Labels the sentences: opinion | vader | textblob | google (as in the paper) | bert:DIR; another
  # one should judge too (measure.scorers)
  scorer: str = 'opinion'
  # longer sentences are left out, counted (not in the paper)
  sentence_tokens: int = limited(64, min=2)
  max_sentences: int = limited(0, min=0)  # 0: all; otherwise a seeded choice, counted
  # of the labelled sentences, held out for the F1 (not in the paper)
  valid_share: float = limited(0.1, above=0, below=1)
  # Random prefixes of each sentence whose h-bar is kept besides the last token's; in memory are
  # sentences x (1 + prefixes) x model_dim x 4 bytes (max_sentences bounds it).
  prefixes: int = limited(4, min=0)
  # Share of examples read at one of them instead of the last token (not in the paper)
  prefix_share: float = limited(0.5, min=0, max=1)


@dataclasses.dataclass(frozen=True)
class DebiasConfig(TrainConfig):
  """Step 3: L_LM + lambda L_fairness on documents with a sensitive token (H-20..H-24)."""

  # Models that go on from step 1: embedding:LAMBDA | sentiment:LAMBDA (H-24); without a fairness
  # term dropout:ATTENTION/HIDDEN (rates, W-13) | cda:one | cda:two (on text by data.cda_...)
  variants: tuple[str, ...] = ('embedding:1', 'embedding:10', 'sentiment:1', 'sentiment:10')
  extended_baseline: bool = True  # the control of footnote 6 (H-26)
  # Beside each sentiment:LAMBDA its control, the same step 3 with an f_sh that was never trained:
  # what it shows too is not due to the sentiment that f_sh reads (not in the paper)
  random_projection: bool = True
  branches_per_row: int = limited(4, above=0)  # K
  # P, the most pieces a replacement may have (not in the paper)
  pieces_per_branch: int = limited(4, above=0)
  # N, tokens after a replacement with which its branch goes on; h-bar is compared at each of them
  # too, and they share the weight of the pair (not in the paper)
  branch_tokens: int = limited(0, min=0)
  # both | branch (stop-gradient on the original) (H-21)
  gradient: str = limited('both', choices=('both', 'branch'))
  # hidden (128-d, after ReLU) | probability (1 - p, p) (H-22)
  sentiment_layer: str = limited('hidden', choices=('hidden', 'probability'))
  # steps between values of the next-token divergence (KL, JS); 0: none
  monitor_every: int = limited(1, min=0)


@dataclasses.dataclass(frozen=True)
class SampleConfig:
  """Continuations of the evaluation templates (H-12, H-13)."""

  samples: int = limited(1000, above=0)  # per template and value
  max_new_tokens: int = limited(50, above=0)  # most tokens of a continuation
  # Divides the logits (H-12), in float32; 1e-30 takes the likeliest token
  temperature: float = limited(1.0, min=1e-30, max=1e30)
  sentence_end: bool = False  # stop at the first sentence end instead of the document's (H-02)
  batch_size: int = limited(250, above=0)  # samples at a time for all values of one template
  seed: int = limited(0, min=0, below=1 << 32)  # one for all models: same-seed pairs (H-13)
  # Planted corpus: also sample unseen prefixes of the grammar (not in the paper)
  heldout_prefixes: bool = True
  # Also the rewordings of the attribute's templates (arm rewording): the rewording floor
  rewordings: bool = False


@dataclasses.dataclass(frozen=True)
class MeasureConfig:
  """Scores and metrics."""

  # opinion | vader | textblob | google | bert:DIR
  scorers: tuple[str, ...] = ('opinion', 'vader')
  # Opinion words (H-16): positive file, negative file; or their folder
  lexicon: tuple[str, ...] = ()
  # Requests of the google scorer; Google's default quota (not in the paper)
  google_requests_per_minute: float = limited(600.0, above=0)
  # Host of another region, e.g. eu-language.googleapis.com (not in the paper)
  google_endpoint: str = ''
  permutations: int = limited(1000, above=0, max=10 ** 6)  # for the floors (not in the paper)
  # With a sensitive token, for the scorers' own bias; 0: not measured (not in the paper)
  audit_texts: int = limited(300, min=0)
  # rows of the perplexity evaluation, on any number of devices
  eval_batch_size: int = limited(8, above=0)
  # memory of the perplexity evaluation (H-25); -1: model.memory_len
  eval_memory_len: int = limited(-1, min=-1)
  # Sentence encoder of S.S. (H-27): minilm | minilm:DIR | use:DIR; '': none, S.S. is absent
  encoder: str = ''
  # of each prefix, as many are read by the encoder; 0: all
  similarity_samples: int = limited(0, min=0)
  # Cosine above which a continuation is similar: encoder (its own; of use 0.4, H-27) | a number |
  # baseline:SHARE (calibrated: so many of the baseline's continuations are above)
  similarity_threshold: str = 'encoder'
  # Least share of the baseline's S.S. and S.S.c that a model must keep to be selected (H-35)
  relevance_share: float = limited(0.5, above=0, max=1)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Devices: rows are split over slices x data x fsdp, parameters over fsdp and model."""

  slices: int = limited(1, above=0)  # pod slices that the data-centre network joins
  data: int = limited(-1, min=-1)  # -1: all devices that the others leave
  fsdp: int = limited(1, above=0)  # parts of the parameters, beside data
  model: int = limited(1, above=0)  # parts of each matrix


@dataclasses.dataclass(frozen=True)
class LogConfig:
  """What a run says of itself while it trains, and when it hangs."""

  # Where the metrics of training also go, through the client that is installed: wandb | mlflow
  to: str = limited('', choices=('', 'wandb', 'mlflow'))
  # A step, read or checkpoint that takes so many times its usual time ends the process, which the
  # same command continues (exit code 42)
  hang_factor: float = limited(10.0, above=1)
  hang_seconds: float = limited(300.0, above=0)  # but none that takes less
  # Steps of each stage whose trace (XProf) is written into its folder tensorboard; 0: none
  profile: int = limited(0, min=0)


@dataclasses.dataclass(frozen=True)
class Config:
  """A whole run."""

  name: str = 'run'  # of the run, in its report
  seed: int = limited(0, min=0, below=1 << 32)  # of initial weights, dropout and permutations
  attribute: str = 'country'  # name of a built-in attribute, or path of a YAML file
  # how far the curriculum goes: lm | sentiment | debias
  until: str = limited('debias', choices=STAGES)
  # Workdir of another run, seen from this one's (../other), whose vocabulary and step 1 are taken,
  # and of step 2 and the variants without an attribute what it has trained alike; '': none
  step1_from: str = ''
  data: DataConfig = DataConfig()
  model: ModelConfig = ModelConfig()
  pretrained: PretrainedConfig = PretrainedConfig()
  lm: TrainConfig = TrainConfig()
  sentiment: SentimentConfig = SentimentConfig()
  debias: DebiasConfig = DebiasConfig()
  # Methods that train nothing and change how the model of step 1 is sampled, with their strength:
  # average:0.5 (share of the mean over the values' prompts) | steer:1 (of the steering vector)
  decoding: tuple[str, ...] = ()
  sample: SampleConfig = SampleConfig()
  measure: MeasureConfig = MeasureConfig()
  mesh: MeshConfig = MeshConfig()
  log: LogConfig = LogConfig()


BASELINE = 'baseline'  # name of the language model of step 1


class Variant(NamedTuple):
  """A model that continues from step 1, with as many further steps as every other variant."""

  # embedding | sentiment | random_projection (regularised, step 3; the last is the control of
  # sentiment) | control (step 3 with lambda 0, of a published model) | dropout | cda (further
  # training on the whole stream, like the extended baseline)
  method: str
  weight: float = 0.0  # lambda of a regularised one
  rates: tuple[float, float] = (0.0, 0.0)  # (attention, hidden) of dropout
  sided: str = ''  # of cda: one | two

  @property
  def regularised(self) -> bool:
    """Whether it has a fairness term."""
    return self.method in ('embedding', 'sentiment', 'random_projection', 'control')


def parse_variant(variant: str) -> Variant:
  """Reads `embedding:10`, `sentiment:10`, `dropout:0.15/0.2` (attention, hidden) or `cda:two`."""
  method, _, value = variant.partition(':')
  if method not in METHODS:
    raise unknown_name('variant', method, METHODS)
  if method == 'cda':
    if value not in ('one', 'two'):
      raise UserError(f"variant '{variant}' must be cda:one or cda:two")
    return Variant(method, sided=value)
  try:
    numbers = [float(number) for number in value.split('/')]
  except ValueError:
    numbers = [math.nan]
  if method == 'dropout':
    if len(numbers) > 2 or not all(0 <= rate < 1 for rate in numbers):
      raise UserError(f"rates of variant '{variant}' must be in [0, 1): attention and hidden, e.g. "
                      'dropout:0.15/0.2, or one for both')
    return Variant(method, rates=(numbers[0], numbers[-1]))
  if len(numbers) != 1 or not (math.isfinite(numbers[0]) and numbers[0] >= 0):
    raise UserError(f"weight of variant '{variant}' must be finite and >= 0, e.g. {method}:10")
  return Variant(method, numbers[0])


def parse_threshold(text: str) -> tuple[str, float]:
  """Reads `encoder` (its own threshold: number 0), a cosine (`given`), or `baseline:SHARE`."""
  if text == 'encoder':
    return 'encoder', 0.0
  kind, colon, number = text.rpartition(':')
  try:
    value = float(number)
  except ValueError:
    value = math.nan
  if kind == 'baseline' and 0 < value < 1:
    return 'baseline', value
  if not colon and -1 <= value <= 1:
    return 'given', value
  raise UserError(f"similarity_threshold='{text}' is none of: encoder, a cosine in [-1, 1], "
                  'baseline:SHARE with a share in (0, 1)')


_LARGEST = 3.4e38  # float32's


def parse_decoding(name: str) -> tuple[str, float]:
  """Reads `average:0.5` (strength in [0, 1]) or `steer:1` (from 0 to the largest float32)."""
  method, _, value = name.partition(':')
  if method not in DECODE_TIME_METHODS:
    raise unknown_name('method', method, DECODE_TIME_METHODS)
  try:
    strength = float(value)
  except ValueError:
    strength = math.nan
  if not 0 <= strength <= (1 if method == 'average' else _LARGEST):
    raise UserError(f"strength of '{name}' must be " + (
      'in [0, 1], e.g. average:0.5' if method == 'average' else
      f'from 0 to {_LARGEST:g}, e.g. steer:1'))
  return method, strength


def debias_variants(config: Config) -> list[Variant]:
  """The variants of step 3, each sentiment one followed by its control.

  With a published model the control without a fairness term comes first: further training on
  the rows of step 3 changes such a model, its bias too.
  """
  stage = config.debias
  found = [Variant('control')] if config.pretrained.model else []
  for variant in map(parse_variant, stage.variants):
    found.append(variant)
    if variant.method == 'sentiment' and stage.random_projection:
      found.append(variant._replace(method='random_projection'))
  return found
