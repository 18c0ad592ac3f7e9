"""A trained model as a folder of fairjax's own: `models export` writes, `models import` reads it.

    config.json              the configuration of the run, versions, and metadata under `export`
    model.safetensors        parameters under fairjax's names, in their own dtype, padding included
    vocabulary/              as `fairjax.vocabulary` writes it: byte for byte that of the run
    README.md                the model card

The metadata are the name of the model, its identity, the digests of parameters and vocabulary and
the size. No file is executed when it is read.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairjax import processes
from fairjax.config import BASELINE, Config, ModelConfig
from fairjax.config_io import from_dict, read_config_json, read_saved, to_dict
from fairjax.errors import Damaged, UserError
from fairjax.files import atomic_folder, installed_versions, refuse_existing, write_file, write_json
from fairjax.inputs import read_text, read_text_lines, refuse_pointer
from fairjax.model import Params, language_model
from fairjax.model.reference import params_from_reference, params_to_reference, reference_notes
from fairjax.pretrained import folder_name
from fairjax.pretrained.checkpoint import open_model
from fairjax.pretrained.hub import is_hub_name
from fairjax.pretrained.peft_files import adapter_tensors, write_adapter
from fairjax.report import sections
from fairjax.report.comparison import ModelRow, count_scorers, scorer_names, verdicts
from fairjax.report.document import Code, Table, escape
from fairjax.run.job import Job
from fairjax.run.workdir import Model, files_digest
from fairjax.vocabulary import EOS_ID, PAD_ID, UNK_ID, Vocabulary, WordVocabulary, load_vocabulary

# Reference checkpoints in and out of a workdir: `models import` and `models export`.

_SPECIAL = {'<pad>': PAD_ID, '<eos>': EOS_ID, '<unk>': UNK_ID}
_PAD_BIAS = -1e4  # of the added <pad>: its probability is 0
# What weights depend on; lengths, dropout and dtype may differ.
_FIELDS = ('num_layers', 'model_dim', 'num_heads', 'head_dim', 'ff_dim', 'cutoffs', 'div_val',
           'tie_projections', 'norm', 'final_norm', 'tie_position_biases', 'clamp_len')


@dataclasses.dataclass(frozen=True)
class Reference:
  """A checkpoint of the reference, read and checked."""

  model: ModelConfig  # its config, with the size of its vocabulary
  # NumPy parameters, the vocabulary's tables padded as the run's model has them
  params: Mapping[str, Any]
  vocabulary: WordVocabulary | None  # of its words; None if none were given
  file: pathlib.Path  # the safetensors file
  notes: tuple[str, ...]  # lines about differences to the reference


def read_reference(
  wanted: ModelConfig, *, weights: str, arguments: str, words: str | None = None
) -> Reference:
  """Reads a checkpoint of the reference and compares it with the model of a run; writes nothing."""
  text = read_text(arguments, what='arguments')
  state_dict = read_tensors(weights, cure='give a safetensors file')
  try:
    reference = json.loads(text)
  except (ValueError, RecursionError) as e:
    raise UserError(f'{arguments} is not JSON ({e})') from None
  if not isinstance(reference, dict):
    raise UserError(f"{arguments} holds {type(reference).__name__}, not an object of the "
                    "constructor's arguments and their values")
  model, params = params_from_reference(state_dict, reference, dtype=wanted.dtype)
  vocabulary = None
  if words is not None:
    lines = read_text_lines(words, what='words of the checkpoint')
    vocabulary, order = order_words(lines, model, where=words)
    model, params = reorder(model, params, order)
  check_fields(wanted, model)
  return Reference(model, pad_vocabulary(params, wanted.vocab_multiple), vocabulary,
                   pathlib.Path(weights), tuple(reference_notes(reference)))


def import_reference(job: Job, found: Reference) -> dict[str, float]:
  """Imports a checkpoint of the reference as step 1. A group of processes calls it."""
  if found.vocabulary is not None:
    _take_over(job, found.vocabulary)
  size = job.vocabulary.size
  if size != found.model.vocab_size:
    raise UserError(f'the checkpoint has {found.model.vocab_size} ids, the vocabulary in '
                    f'{job.workdir / "data"} {size}: give the words of the checkpoint (--words), '
                    'and another --workdir')
  for note in found.notes:
    job.log(f'[lm] {note}')
  made = job.curriculum(processes.StopSignal()).import_lm(
    found.params, source={'form': 'transformer-xl', 'file': found.file.name})
  job.log(f'[lm] imported from {found.file}: validation perplexity {made["perplexity"]:.4g} by '
          'token')
  return made


def _take_over(job: Job, vocabulary: Vocabulary) -> None:
  """Makes an imported model's vocabulary that of the run, or finds that it is."""
  place = job.workdir / 'data' / 'vocabulary'
  new = processes.is_first() and not place.exists()
  if new:
    vocabulary.save(place)
  processes.share()
  try:
    own = job.vocabulary
  except UserError:  # of the data: with it the workdir would belong to this configuration
    if new:
      shutil.rmtree(place)
    raise
  if own != vocabulary:
    raise UserError(f'{place} is {own!r}, that of the model is {vocabulary!r}: import '
                    'into a workdir whose data are not prepared yet; it takes over the vocabulary')


def export_reference(job: Job, *, model: str, output: str, prefix: bool = False) -> None:
  """Writes a trained model under the reference's names. A group of processes calls it together."""
  import jax
  from safetensors.numpy import save

  from fairjax.train.sharding import to_host
  path = pathlib.Path(output)
  for suffix in (path.suffix, '.json', '.words.txt'):
    refuse_existing(path.with_suffix(suffix))
  params = jax.tree.map(to_host, job.params(job.find_model(model, trained=True)))
  tensors, arguments = params_to_reference(params, job.model_config, prefix=prefix)
  if processes.is_first():
    write_file(path, save(tensors))
    write_json(path.with_suffix('.json'), arguments)
    if isinstance(job.vocabulary, WordVocabulary):
      write_file(path.with_suffix('.words.txt'), '\n'.join([*job.vocabulary.words, '']))
    job.log(f'[export] {model}: {len(tensors)} tensors in {path}, arguments in '
            f'{path.with_suffix(".json")}')
  processes.share()


def order_words(
  words: Sequence[str], model: ModelConfig, *, where: str
) -> tuple[WordVocabulary, np.ndarray]:
  """The checkpoint's words as a vocabulary, and its id of every new id (-1: there is none)."""
  number = {word: i for i, word in enumerate(words)}
  if len(words) != model.vocab_size or len(number) != len(words):
    raise UserError(f'{where} has {len(words)} lines ({len(number)} different), the checkpoint '
                    f'{model.vocab_size} ids: one word a line, in the order of the ids')
  head = model.cutoffs[0] if model.cutoffs else model.vocab_size
  for word in ('<eos>', '<unk>'):
    if number.get(word, head) >= head:
      raise UserError(f'{where} must hold {word} among its first {head} words')
  order = [number.get(word, -1) for word in _SPECIAL]
  order += [i for i, word in enumerate(words) if word not in _SPECIAL]
  content = [*_SPECIAL, *(words[i] for i in order[len(_SPECIAL):]), '']
  info = {'words_of': pathlib.Path(where).name}
  return WordVocabulary('\n'.join(content).encode('utf-8'), info), np.array(order)


def reorder(
  model: ModelConfig, params: Mapping[str, Any], order: np.ndarray
) -> tuple[ModelConfig, dict[str, Any]]:
  """Moves the words of the head; a new id without an old one gets a row of zeros and no chance."""
  added = len(order) - model.vocab_size
  suffix = '_0' if model.cutoffs else ''
  head = (model.cutoffs[0] if model.cutoffs else model.vocab_size) + added
  old, known = order[:head], order[:head, None] >= 0
  table, bias = (params[f'{kind}{suffix}'] for kind in ('embedding', 'softmax_bias'))
  return dataclasses.replace(
    model, vocab_size=len(order), cutoffs=tuple(c + added for c in model.cutoffs)), {
    **params, f'embedding{suffix}': np.where(known, table[old], 0).astype(table.dtype),
    f'softmax_bias{suffix}': np.where(known[:, 0], bias[old], _PAD_BIAS).astype(bias.dtype)}


def pad_vocabulary(params: Mapping[str, Any], multiple: int) -> dict[str, Any]:
  """Pads the vocabulary's tables to a multiple of rows."""
  def pad(rows):
    return np.pad(rows, [(0, -len(rows) % multiple)] + [(0, 0)] * (rows.ndim - 1))

  return {name: pad(value) if name.startswith(('embedding', 'softmax_bias')) else value
          for name, value in params.items()}


def check_fields(
  wanted: ModelConfig, found: ModelConfig, more: Sequence[str] = ()
) -> None:
  """Compares what weights depend on, and further fields."""
  def value(config, field):
    if field == 'tie_projections' and config.div_val == 1:
      return ()
    if field == 'tie_projections':
      return config.tie_projections or (False,) + (True,) * len(config.cutoffs)
    return getattr(config, field)

  wrong = [f'model.{f}={value(wanted, f)!r} but the checkpoint has {value(found, f)!r}'
           for f in (*_FIELDS, *more) if value(wanted, f) != value(found, f)]
  if wanted.vocab_size not in (0, found.vocab_size):
    wrong.append(f'model.vocab_size={wanted.vocab_size} but the checkpoint has {found.vocab_size}')
  if wrong:
    raise UserError(f'the configured model is another: {"; ".join(wrong)}: set these fields')


# The origin and measures of a model, for the model card of an export.

# Language and published name of corpora that fairjax brings or knows.
_LANGUAGES = dict.fromkeys(('planted', 'planted_gender', 'wikitext103', 'wikitext2'), ['en'])
_DATASETS = dict.fromkeys(('wikitext103', 'wikitext2'), ['wikitext'])
METHODS = {
  'baseline': 'the language model of step 1 of the curriculum: next-token loss on the whole corpus',
  'extended_baseline': 'the control: the model of step 1, trained on for as many steps as the '
  'debiased models, without a fairness term',
  'embedding': 'debiased by embedding regularisation: hidden states at a sensitive token are drawn '
  'to those of its counterfactual',
  'sentiment': 'debiased by sentiment regularisation: what a sentiment network reads in the hidden '
  'states at a sensitive token is drawn to what it reads in those of its counterfactual',
  'random_projection': 'the control of sentiment regularisation: debiased alike, but with a '
  'sentiment network that was never trained',
  'dropout': 'the model of step 1, trained on for as many steps as the control, with more dropout '
  'of attention weights and hidden states (Webster et al. 2020)',
  'control': 'the control: the model of step 1, trained on the same rows as the debiased models, '
  'without a fairness term',
  'cda': 'the model of step 1, trained on for as many steps as the control, on text with '
  'counterfactual sentences of the other gender (Webster et al. 2020)'}
"""What the methods are, for a reader of one model."""


def measured_rows(job: Job, model: Model) -> list[ModelRow]:
  """What was measured of a model of a `Job`, its baseline before it; [] if the model was not."""
  # The baseline of a published model is the control; the published model is before both.
  from fairjax.train import read_done
  if not job.measures_file(model).exists():
    return []
  before = [job.models[0], *(one for one in job.models if one.method == 'control')]
  rows = []
  for one in (*(one for one in before if one != model), model):
    if job.measures_file(one).exists():
      done = read_done(one.directory)
      if done is None or job.read_measures(one)['identity']['digest'] != done['digest']:
        raise UserError(f'{job.measures_file(one)} was measured with other parameters than '
                        f'{one.directory} holds: remove it, or run fairjax measure again')
      rows.append(job.row(one))
  return rows


def origin_rows(job: Job, model: Model, done: Mapping[str, Any]) -> list[tuple[str, str]]:
  """(what, value): stage, method, data and settings of a model of a `Job`; `done` is its DONE."""
  config, identity = job.config, done['identity']
  stage = getattr(config, identity['stage'])
  found = [('stage', identity['stage']), ('method', model.method)]
  if model.weight is not None:
    found += [('fairness weight (lambda)', f'{model.weight:g}'),
              ('sensitive attribute', job.attribute.name)]
  imported = done['summary'].get('imported')
  if imported:
    found.append(('imported', 'trained elsewhere: ' + ', '.join(
      f'{k} {v}' for k, v in sorted(imported.items()) if isinstance(v, str))))
  else:
    found += [('steps', str(done['step'])), ('rows in a batch', str(stage.batch_size)),
              ('segment and memory', f'{config.model.segment_len} and '
               f'{job.model_config.memory_len} tokens'),
              ('learning rate', f'{stage.learning_rate:g}, {stage.schedule}'),
              ('seed', str(config.seed))]
  if identity['parent']:
    found.append(('started from parameters', identity['parent']))
  names = ', '.join(pathlib.PurePath(name).name for name in config.data.train)
  found += [('training text', config.data.source + (f': {names}' if names else '')),
            ('configuration', f'{identity["config"]} (fingerprint)'),
            ('versions at the export', ', '.join(
              f'{k} {v}' for k, v in installed_versions().items()
              if k in ('fairjax', 'jax', 'flax', 'optax')))]
  return found


# The model card of an exported model: README.md with YAML front matter, as model hubs read it.

# What hubs accept: a language code, an identifier, the (owner and) name of a dataset.
_KINDS = {'language': (r'[a-z]{2,3}(-[A-Za-z0-9]{2,8})*', 'a code such as en or de'),
          'license': (r'[a-z0-9][a-z0-9.+-]*', 'an identifier such as apache-2.0'),
          'dataset': (r'[\w.-]+(/[\w.-]+)?', 'the name of a dataset, or OWNER/NAME')}


def front_matter(
  rows: Sequence[ModelRow], *, languages: Sequence[str], license: str | None,
  datasets: Sequence[str], tags: Sequence[str] = (), library: str = 'fairjax',
  base: str | None = None,
) -> dict[str, Any]:
  """The keys of the front matter that have a value."""
  given = {'language': languages, 'license': [] if license is None else [license],
           'dataset': datasets}
  for kind, words in given.items():
    pattern, example = _KINDS[kind]
    for word in words:
      if not re.fullmatch(pattern, word):
        raise UserError(f'--{kind}={word} is not {example}')
  found = {'language': list(languages), 'license': license, 'base_model': base,
           'library_name': library, 'pipeline_tag': 'text-generation',
           'tags': ['fairjax', *tags, 'fairness', 'counterfactual-sentiment-bias'],
           'datasets': list(datasets),
           'metrics': ['perplexity', *['individual-fairness', 'group-fairness'] * bool(rows)]}
  return {key: value for key, value in found.items() if value}


def model_card(
  front: Mapping[str, Any], done: Mapping[str, Any], *, title: str, what: str, usage: str,
  origin: Sequence[tuple[str, str]], files: Sequence[tuple[str, str]], rows: Sequence[ModelRow],
  language: str = 'bash', notes: Sequence[str] = (),
) -> str:
  """The card as Markdown; `done` is the model's DONE."""
  import yaml
  head = yaml.safe_dump(dict(front), sort_keys=False, allow_unicode=True)
  parts = [f'---\n{head}---', f'# {escape(title)}', escape(what), Code(usage, language).markdown(),
           '## Training', Table(['what', 'value'], origin, text_columns=2).markdown(),
           '## What was measured']
  if validation := [f'{name} {float(value):.4g} by token' for name, value in done['summary'].items()
                    if name in ('loss', 'perplexity')]:
    parts.append(escape('At the end of the training, on its validation split: '
                        f"{', '.join(validation)}."))
  if rows:
    parts += [sections.main_table(rows).markdown(), escape(sections.legend(rows)),
              *map(escape, sections.absent_lines(rows)),
              *(escape(f'By scorer {scorer}: ' + ' '.join(verdicts(rows, scorer)[-1]['sentences']))
                for scorer in scorer_names(rows))]
    if count_scorers(rows) == 1:
      parts.append(escape(f"One scorer only ({', '.join(scorer_names(rows))}): its own bias cannot "
                          "be distinguished from the model's."))
  else:
    parts.append('The bias of what this model writes was not measured.')
  parts += map(escape, notes)
  parts += ['## Limits', '\n'.join(f'- {escape(x)}' for x in (
    *sections.LIMITS, 'The model writes text that may be wrong or offensive.'))]
  if 'license' not in front:
    parts += ['## License', 'None was stated when the model was exported.']
  parts += ['## Files', Table(['file', 'what'], files, text_columns=2).markdown()]
  return '\n\n'.join(parts) + '\n'


WEIGHTS, CONFIG, VOCABULARY, CARD = 'model.safetensors', 'config.json', 'vocabulary', 'README.md'
_FORMAT = 1  # of the folder


@dataclasses.dataclass(frozen=True)
class ModelFolder:
  """What such a folder holds, checked."""

  config: Config  # of the run that trained it, with the size of its vocabulary
  metadata: Mapping[str, Any]  # the entry `export` of config.json
  vocabulary: Vocabulary  # of the model
  params: Any  # NumPy parameters


def export_folder(
  job: Job, *, model: str, output: str, languages: Sequence[str] = (), license: str | None = None,
  datasets: Sequence[str] = (),
) -> None:
  """Writes a trained model as a folder. A group of processes calls it together."""
  from safetensors.numpy import save_file

  from fairjax.model import format_parameters, parameter_counts
  from fairjax.train import read_done
  refuse_existing(output)
  found, corpus = job.find_model(model, trained=True), job.config.data.source
  params, rows = job.params(found), measured_rows(job, found)
  front = front_matter(
    rows, license=license, tags=('jax', 'transformer-xl'),
    languages=languages or _LANGUAGES.get(corpus, []),
    datasets=datasets or _DATASETS.get(corpus, []))
  done = read_done(found.directory)
  assert done is not None  # else there are no parameters
  counts, vocabulary = parameter_counts(job.model_config), job.vocabulary
  tensors = to_tensors(params)  # a collective in a group
  if processes.is_first():
    metadata = {
      'format': _FORMAT, 'model': model, 'identity': done['identity'], 'digest': done['digest'],
      'step': done['step'], 'summary': done['summary'], 'parameters': counts,
      'vocabulary': {'kind': vocabulary.kind, 'size': vocabulary.size,
                     'fingerprint': vocabulary.fingerprint}}
    with atomic_folder(output) as folder:
      save_file(tensors, folder / WEIGHTS)
      vocabulary.save(folder / VOCABULARY)
      own = dataclasses.replace(job.config, step1_from='')  # it holds all of its model
      write_json(folder / CONFIG, {'config': to_dict(own), 'versions': installed_versions(),
                                   'export': metadata})
      text = model_card(
        front, done, title=f'{job.config.name}: {model}',
        what=f'Transformer-XL with {format_parameters(counts)}; {METHODS[found.method]}. Trained '
        'with fairjax, which implements Huang et al. 2020 (arXiv:1911.03064).',
        usage=f'fairjax models import --config={CONFIG} --workdir=DIR --from=.   # then: sample, '
        'measure',
        origin=origin_rows(job, found, done), rows=rows,
        files=[(WEIGHTS, f'{len(tensors)} tensors, digest {done["digest"]}'),
               (CONFIG, 'configuration, versions, identity; JSON, not executed'),
               (f'{VOCABULARY}/{vocabulary.filename}',
                f'{vocabulary.kind}, {vocabulary.size} ids, SHA-256 {vocabulary.fingerprint}')])
      (folder / CARD).write_text(text, encoding='utf-8')
    job.log(f'[export] {model}: {len(tensors)} tensors, configuration, vocabulary and model card '
            f'in {output}')
  processes.share()


# A trained decoder in the form in which its published model came.

_USAGE = """from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained('FOLDER')
tokenizer = AutoTokenizer.from_pretrained('FOLDER')"""

_PEFT_USAGE = """from peft import AutoPeftModelForCausalLM
model = AutoPeftModelForCausalLM.from_pretrained('FOLDER')"""


def export_published(
  job: Job, *, model: str, output: str, dtype: str | None = None, adapter: bool = False,
  languages: Sequence[str] = (), license: str | None = None, datasets: Sequence[str] = (),
) -> None:
  """Writes a trained decoder as its published model came, or its adapter alone."""
  # A group of processes calls it together. `dtype` is that of the weights; None: each tensor's as
  # it came.
  from fairjax.train import read_done
  from fairjax.train.sharding import to_host
  refuse_existing(output)
  found = job.find_model(model, trained=True)
  if adapter and (not job.config.pretrained.lora or found.name == BASELINE):
    raise UserError(f'--adapter: {model} is no adapter: name a model that was trained with '
                    'pretrained.lora')
  assert job.published is not None
  source, done = job.published.source, read_done(found.directory)
  files, rows = open_model(source), measured_rows(job, found)
  assert done is not None
  if adapter and (dtype or files.gguf or files.adapter or 'text_config' in files.config):
    raise UserError('--adapter writes float32 for a base in safetensors that reads text alone: '
                    'leave out --dtype; the whole model is written without --adapter')
  front = front_matter(
    rows, languages=languages, license=license, datasets=datasets,
    library='peft' if adapter else 'transformers', base=_hub_name(source))
  if processes.share(processes.is_first() and files_digest(files, {}) != job.published.digest):
    raise UserError(f'{source} is not the model that {job.workdir} began with: its config.json or '
                    'weights have changed; put the old ones back')
  if files.vocabulary(chat=job.config.pretrained.chat).fingerprint != job.vocabulary.fingerprint:
    raise UserError(f'{source} has another tokenizer than {job.workdir} was trained with: put the '
                    'old one back')
  params = job.adapters(found) if adapter else job.params(found)
  with atomic_folder(output) if processes.is_first() else contextlib.nullcontext() as folder:
    if adapter:
      tensors, dtypes = adapter_tensors(params, files.decoder, to_host=to_host), ['float32']
      written = [('adapter_config.json', 'what peft needs to know'),
                 ('adapter_model.safetensors', f'{len(tensors)} tensors')]
      if folder is not None:
        write_adapter(folder, tensors, rank=job.config.pretrained.lora, base=source,
                      base_digest=files.weights_digest())
    else:
      written, dtypes = files.write(params, folder, dtype=dtype, to_host=to_host)
    if folder is not None:
      (folder / CARD).write_text(_published_card(
        job, found, done, front, rows, dtypes=dtypes, files=written, adapter=adapter),
        encoding='utf-8')
      job.log(f'[export] {model}: {"an adapter of " * adapter}{source} '
              f'{"" if adapter else "with its weights "}({", ".join(dtypes)}) in {output}')
  processes.share()


def _hub_name(source: str) -> str | None:
  """ORG/NAME of a model of the Hub."""
  return source.removeprefix('hf:').partition('@')[0] if is_hub_name(source) else None


def _published_card(
  job: Job, model: Model, done: Mapping[str, Any], front: Mapping[str, Any],
  rows: Sequence[ModelRow], *, dtypes: Sequence[str], files: Sequence[tuple[str, str]],
  adapter: bool,
) -> str:
  """The card of a trained decoder."""
  assert job.published is not None
  source, rank = job.published.source, job.config.pretrained.lora
  trained = model.name != BASELINE
  name = _hub_name(source) or folder_name(source)
  method = METHODS[model.method].replace('the model of step 1', 'the published model')
  rounded = [dtype for dtype in dtypes if dtype in ('bfloat16', 'float16')]
  return model_card(
    front, done, title=f'{name}: {model.name}', usage=_PEFT_USAGE if adapter else _USAGE,
    language='python',
    what=f'{name}; {method if trained else "the published model itself"}. Trained with fairjax, '
    'which implements Huang et al. 2020 (arXiv:1911.03064).',
    origin=[('base model', name),
            ('SHA-256 of its configuration and weights', job.published.digest),
            *([('adapters', f'LoRA of rank {rank}' + ', added to the weights' * (not adapter))]
              if rank and trained else []), *origin_rows(job, model, done)],
    files=files, rows=rows,
    notes=[f'The trained parameters were measured in float32; the weights in this folder are '
           f'rounded to {", ".join(rounded)}.'] * bool(rounded and trained))


def import_folder(job: Job, found: ModelFolder, source: str) -> dict[str, float]:
  """Imports the model of a folder as step 1, with its vocabulary."""
  from fairjax.train import params_digest
  _take_over(job, found.vocabulary)
  metadata = found.metadata
  made = job.curriculum(processes.StopSignal()).import_lm(found.params, source={
    'form': 'fairjax', 'model': metadata['model'], 'digest': metadata['digest'],
    'identity': metadata['identity']})
  digest = params_digest(job.params(job.models[0]))
  if digest != metadata['digest']:
    raise Damaged(f'{job.workdir / "lm"} holds parameters with digest {digest[:12]}, not '
                  f'{metadata["digest"][:12]} as {source}: remove it and import again')
  job.log(f'[lm] imported from {source} ({metadata["model"]}, digest {digest[:12]}): validation '
          f'perplexity {made["perplexity"]:.4g} by token')
  return made


def read_folder(directory: str | os.PathLike) -> ModelFolder:
  """Reads and checks a folder that `export_folder` wrote; nothing in it is executed."""
  from fairjax.train import params_digest
  directory = pathlib.Path(directory)
  path, weights = directory / CONFIG, directory / WEIGHTS
  if not path.is_file():
    raise UserError(f'{directory} holds no exported model: {CONFIG} is missing (fairjax models '
                    'export --form=fairjax writes such a folder)')
  try:
    metadata = read_saved(path)['export']
    config = from_dict(read_config_json(path))
    format, digest = metadata['format'], metadata['digest']
    saved = metadata['vocabulary']['fingerprint']
    metadata['model'], metadata['identity']
  except (KeyError, TypeError) as e:
    raise UserError(f'{path} is no configuration of an exported model ({e} is missing): export it '
                    'again') from None
  except UserError as e:
    raise UserError(f'{path}: {e}') from None
  if format != _FORMAT:
    raise UserError(f'{path} has format {format!r}, this version reads {_FORMAT}: read it with the '
                    'version that it names')
  vocabulary = load_vocabulary(directory / VOCABULARY)
  if vocabulary.fingerprint != saved:
    raise Damaged(f'{directory / VOCABULARY} has fingerprint {vocabulary.fingerprint[:12]}, {path} '
                  f'names {str(saved)[:12]}: copy the folder again')
  config = dataclasses.replace(
    config, model=dataclasses.replace(config.model, vocab_size=vocabulary.size))
  tensors = read_tensors(weights, cure='copy the folder again')
  params = to_params(tensors, config.model, where=str(weights))
  if (found := params_digest(params)) != digest:
    raise Damaged(f'{weights} is damaged: its parameters have digest {found[:12]}, exported were '
                  f'{str(digest)[:12]}: copy the folder again')
  return ModelFolder(config, metadata, vocabulary, params)


def to_tensors(params: Params) -> dict[str, np.ndarray]:
  """Parameters by name, e.g. `layers.query`; of a group of processes all call it together."""
  import jax

  from fairjax.train.sharding import to_host

  # In C order: safetensors writes the memory of an array without a look at its strides.
  return {_name(path): np.ascontiguousarray(to_host(leaf)).reshape(leaf.shape)
          for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def to_params(tensors: Mapping[str, np.ndarray], model: ModelConfig, *, where: str) -> Params:
  """The inverse of `to_tensors`."""
  import jax

  from fairjax.config import MeshConfig
  from fairjax.train import make_mesh, params_template
  template = params_template(language_model(model), make_mesh(MeshConfig()))
  wanted = {_name(path): (leaf.dtype.name, leaf.shape)
            for path, leaf in jax.tree_util.tree_leaves_with_path(template)}
  saved = {name: (tensor.dtype.name, tensor.shape) for name, tensor in tensors.items()}

  def describe(found):
    return 'nothing' if found is None else f'{found[0]} {found[1]}'

  wrong = [f'{name} is {describe(saved.get(name))} instead of {describe(wanted.get(name))}'
           for name in sorted(saved.keys() | wanted.keys()) if saved.get(name) != wanted.get(name)]
  if wrong:
    more = f' and {len(wrong) - 4} more' if len(wrong) > 4 else ''
    raise UserError(f'{where} does not fit its configuration: {"; ".join(wrong[:4])}{more}')
  return jax.tree_util.tree_map_with_path(lambda path, _: tensors[_name(path)], template)


def read_tensors(path: str | os.PathLike, *, cure: str) -> dict[str, np.ndarray]:
  """Reads a safetensors file; `cure` is what helps where that fails."""
  from safetensors import SafetensorError
  from safetensors.numpy import load_file
  try:
    refuse_pointer(path)
    return load_file(path)
  except (OSError, SafetensorError, KeyError, TypeError) as e:
    raise UserError(f'{path} cannot be read as safetensors ({e}): {cure}') from None


def _name(path: tuple[Any, ...]) -> str:
  import jax
  return jax.tree_util.keystr(path, simple=True, separator='.')
