"""What a run has made, read from its workdir: models, texts, scores, measures, training curves."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairjax.config import (
  BASELINE,
  DECODE_TIME_METHODS,
  MACHINE_FIELDS,
  Config,
  MeshConfig,
  ModelConfig,
  SampleConfig,
)
from fairjax.config_io import config_differences, load_config, to_dict
from fairjax.counterfactual import Attribute, Prefix, load_attribute
from fairjax.errors import Damaged, UserError, unknown_name
from fairjax.files import is_complete, read_sealed_json, require_file
from fairjax.report.comparison import ModelRow
from fairjax.run.kernel_verdict import read_verdicts
from fairjax.run.workdir import (
  EXTENDS,
  SEEDS,
  Model,
  data_folder,
  file_digests,
  run_models,
  vocabulary_folder,
)
from fairjax.vocabulary import Vocabulary, load_vocabulary

if TYPE_CHECKING:
  from jax.sharding import Mesh

  from fairjax.data.prepare import PreparedData
  from fairjax.model import CausalLM, Params
  from fairjax.model.decoding import Decoder
  from fairjax.report import KnownBias
  from fairjax.report.page import Distributions
  from fairjax.run.published import PublishedModel

Curves = dict[str, dict[str, list[dict[str, Any]]]]


class Run:
  """One run as its workdir holds it; nothing is written there."""
  # Its models are sampled and measured on all devices of this machine.

  def __init__(self, config: Config, workdir: pathlib.Path, log: Callable[[str], None]):
    self.config, self.workdir, self.log = config, workdir, log

  @functools.cached_property
  def attribute(self) -> Attribute:
    """The attribute of the run."""
    attribute = load_attribute(self.config.attribute)
    attribute.prefixes()  # refuses one without templates before anything is trained
    return attribute

  @functools.cached_property
  def prepared(self) -> 'PreparedData':
    """Vocabulary and token stores."""
    from fairjax.data.prepare import open_prepared
    return open_prepared(data_folder(self.config, self.workdir))

  @property
  def has_data(self) -> bool:
    """Whether the workdir holds the token stores, which perplexities need."""
    return is_complete(data_folder(self.config, self.workdir))

  @functools.cached_property
  def vocabulary(self) -> Vocabulary:
    """The vocabulary of the models, which a workdir without its token stores has too."""
    return load_vocabulary(vocabulary_folder(self.config, self.workdir))

  @functools.cached_property
  def model_config(self) -> ModelConfig:
    """Sizes of the models; `auto` replaces an attention kernel that these devices may lack."""
    model = self.config.model
    if self.config.pretrained.model:
      return dataclasses.replace(model, vocab_size=self.vocabulary.size, memory_len=0)
    return dataclasses.replace(
      model, vocab_size=self.vocabulary.size,
      attention='auto' if model.attention == 'kernel' else model.attention)

  @functools.cached_property
  def language_model(self) -> 'CausalLM':
    """The model whose parameters the stages hold."""
    from fairjax.model import language_model
    from fairjax.model.decoder import DecoderModel
    if self.published:
      return DecoderModel(self.published.config)
    return language_model(self.model_config)

  @functools.cached_property
  def published(self) -> 'PublishedModel | None':
    """The published model in the place of step 1."""
    from fairjax.run.published import published_model
    return published_model(self.config, self.workdir) if self.config.pretrained.model else None

  def decoder(self, model: Model | None = None) -> 'Decoder':
    """Cached decoding with a model; ids without a text are never drawn."""
    from fairjax.model.decode_time import DECODE_TIME
    from fairjax.model.decoder import CachedDecoder
    found = self.language_model.decoder()
    if self.published:
      assert isinstance(found, CachedDecoder)
      found = dataclasses.replace(found, unused=self.vocabulary.silent_ids)
    if model is None or model.method not in DECODE_TIME:
      return found
    return DECODE_TIME[model.method](found, model.weight)

  @functools.cached_property
  def mesh(self) -> 'Mesh':
    """All devices of this machine, for rows of the batch."""
    from fairjax.train import make_mesh
    return make_mesh(MeshConfig())

  def find_model(self, name: str, *, trained: bool = False) -> Model:
    """A model by its name, also of variants that the configuration had earlier."""
    if name == self.title(self.models[0]):  # of the report
      name = BASELINE
    found = {model.name: model for model in self.models}
    earlier = {folder.name: folder for folder in self.workdir.glob('debias/*')}
    if name not in found | earlier:
      raise unknown_name('model', name, found | earlier, where=str(self.workdir))
    model = found.get(name) or Model(name, earlier[name], '')
    if trained and model.method in DECODE_TIME_METHODS:
      raise UserError(f'model {name} is the baseline, sampled otherwise: it has no parameters of '
                      f'its own; name {BASELINE}')
    identity = self.metadata(model)
    if identity['vocabulary'] != self.vocabulary.fingerprint:
      raise UserError(f'{self.workdir}: model {name} was trained with another vocabulary than the '
                      'one in data/vocabulary: copy the one of its run')
    method = 'extended_baseline' if identity.get('method') == 'none' else identity.get('method')
    return model if name in found else dataclasses.replace(
      model, method=method, weight=identity['fairness_weight'] or None)

  def metadata(self, model: Model) -> dict[str, Any]:
    """Identity of a trained model, the digest of its parameters and its name."""
    from fairjax.train import read_done
    done = read_done(require_file(model.directory / 'DONE', made_by='step train').parent)
    assert done is not None
    decoding = {'decoding': [model.method, model.weight]} if (
      model.method in DECODE_TIME_METHODS) else {}
    return done['identity'] | {'digest': done['digest'], 'model': model.name} | decoding

  def params(self, model: Model) -> 'Params':
    """Parameters of a trained model on the devices; `Damaged` if they are not those saved."""
    from fairjax.model.decoder import merge_adapters, with_adapters
    from fairjax.train import load_params, params_template
    if (not self.config.pretrained.lora or model.name == BASELINE
        or model.method in DECODE_TIME_METHODS):
      return load_params(model.directory, params_template(self.language_model, self.mesh))
    base = self.params(self.find_model(BASELINE))
    return merge_adapters(with_adapters(base, self.adapters(model)))

  def adapters(self, model: Model) -> 'Params':
    """Adapters that a stage of a run with `pretrained.lora` trained."""
    from fairjax.model.decoder import LoraDecoder
    from fairjax.train import load_params, params_template
    lm = LoraDecoder(self.published.config, self.config.pretrained.lora)
    return load_params(model.directory, params_template(lm, self.mesh))

  def generate(
    self, model: Model, path: str | os.PathLike, *, prefixes: Sequence[Prefix] | None = None,
    attribute: Attribute | None = None, sample: SampleConfig | None = None, coupled: bool = True,
  ) -> None:
    """Samples a trained model; the same call continues an interrupted one."""
    self.generate_with(
      self.params(model), path, name=model.name, metadata=self.metadata(model), prefixes=prefixes,
      attribute=attribute, sample=sample, coupled=coupled, decoder=self.decoder(model),
      log=lambda line: self.log(f'[sample] {line}'.replace(f'{self.workdir}/', '')))

  def generate_with(
    self, params: 'Params', path: str | os.PathLike, *, name: str, metadata: Mapping[str, Any],
    log: Callable[[str], None], prefixes: Sequence[Prefix] | None = None,
    attribute: Attribute | None = None, sample: SampleConfig | None = None, coupled: bool = True,
    decoder: 'Decoder | None' = None,
  ) -> None:
    """Writes records of parameters of this run, beside them the divergence of the next token."""
    # None stands for the run's own attribute, the prefixes that `sample` asks for, and the run's
    # own sampling.
    from fairjax.generate.generations import generate
    from fairjax.run.next_token import write_next_token
    attribute, sample = attribute or self.attribute, sample or self.config.sample
    parts = params, decoder or self.decoder(), self.vocabulary, attribute
    if prefixes is None:
      prefixes = run_prefixes(attribute, rewordings=sample.rewordings)
    mesh = self.mesh if self.mesh.size > 1 else None
    generate(*parts, path=path, model=name, sample=sample, card=metadata,
             coupled=coupled, prefixes=prefixes, mesh=mesh, hang=self.config.log, log=log)
    write_next_token(path, *parts, prefixes=[p for p in prefixes if not p.rewording], mesh=mesh,
                     log=log)

  def perplexity(self, params: 'Params', split: str) -> dict[str, Any] | None:
    """Perplexity of a split (H-25), memory carried; None if it holds no document."""
    from fairjax.data.batches import eval_batches
    from fairjax.measure import perplexities
    from fairjax.train import evaluate_nll, own_rows
    store, measure = self.prepared.store(split), self.config.measure
    segment_len, memory_len = self.model_config.segment_len, self.model_config.memory_len
    if not store.documents:
      self.log(f'[measure] {split} holds no document: no perplexity')
      return None
    if measure.eval_memory_len >= 0 and not self.published:
      memory_len = measure.eval_memory_len
    batches = own_rows(eval_batches(
      store, batch_size=measure.eval_batch_size, segment_len=segment_len,
      start_ids=self.vocabulary.start_ids if self.published else None))
    model = self.language_model.reading(segment_len=segment_len, memory_len=memory_len)
    nll, tokens = evaluate_nll(model, params, batches, self.mesh)
    return perplexities(nll, tokens=tokens, words=store.words, num_bytes=store.num_bytes,
                        documents=store.documents, memory_len=memory_len)

  @property
  def models(self) -> list[Model]:
    """The language models of this run, baseline first."""
    return run_models(self.config, self.workdir)

  @property
  def has_heldout(self) -> bool:
    """Whether held-out prefixes of the planted grammar are continued too."""
    return self.config.data.source == 'planted' and self.config.sample.heldout_prefixes

  @property
  def measured(self) -> list[tuple[Model, bool]]:
    """(model, held-out prefixes?) of every file of generations."""
    found = [(model, False) for model in self.models]
    return found + ([(self.models[0], True)] if self.has_heldout else [])

  def generations_file(self, model: Model, *, heldout: bool = False) -> pathlib.Path:
    """Where `sample` writes a model's texts."""
    return self.workdir / 'generations' / model.name / (
      f'{self.attribute.name}{".heldout" if heldout else ""}.jsonl.gz')

  def scores_folder(self, model: Model, *, heldout: bool) -> pathlib.Path:
    """Folder of the score files of a model's texts."""
    return self.workdir / 'scores' / model.name / ('heldout' if heldout else '')

  def measures_file(self, model: Model, *, heldout: bool = False) -> pathlib.Path:
    """Where `measure` writes a model's measures."""
    name = f'{self.attribute.name}{".heldout" if heldout else ""}.json'
    return self.workdir / 'measures' / model.name / name

  def sources(self, model: Model, *, heldout: bool) -> dict[str, str]:
    """Digests of the files that a model's measures are made from, by name."""
    paths = [self.generations_file(model, heldout=heldout), *sorted(
      self.scores_folder(model, heldout=heldout).glob(f'{self.attribute.name}.*'))]
    return file_digests(self.workdir, [p.relative_to(self.workdir).as_posix() for p in paths])

  def records(self, model: Model, *, heldout: bool = False, rewordings: bool = False
              ) -> Iterator[Mapping[str, Any]]:
    """The records that a model of the run wrote, without or with those of the arm rewording."""
    from fairjax.generate import check_complete, read_records
    path = require_file(self.generations_file(model, heldout=heldout), made_by='sample')
    held, sample = check_complete(path), self.config.sample
    wanted = sample.samples * len(run_prefixes(
      self.attribute, heldout=heldout, rewordings=sample.rewordings))
    if held not in (None, wanted):
      raise UserError(f'{path} holds {held:,} of {wanted:,} records: run fairjax sample with the '
                      'same --config and --workdir first')
    found = read_records(path, repair=True)  # older runs wrote the NUL of their samples
    return found if rewordings else (r for r in found if r.get('arm') != 'rewording')

  def read_measures(self, model: Model, *, heldout: bool = False) -> dict[str, Any]:
    """What `measure` wrote for a model."""
    path = require_file(self.measures_file(model, heldout=heldout), made_by='measure')
    return read_sealed_json(path, again='delete it, and run fairjax measure again')

  def row(self, model: Model) -> ModelRow:
    """The measures of one model, for the report."""
    found, method = self.read_measures(model), model.method
    if self.config.pretrained.model:  # compared with the control, which saw the same rows
      method = {'baseline': 'published', 'control': 'baseline'}.get(method, method)
    return ModelRow(
      name=self.title(model), method=method, weight=model.weight, measures=found['measures'],
      perplexity=found['perplexity']['test'],
      subset_perplexity=found['perplexity']['test_sensitive'])

  def title(self, model: Model) -> str:
    """Name of a model in the report, whose baseline is the control of a published model."""
    return 'published' if self.config.pretrained.model and model.name == BASELINE else model.name

  def rows(self) -> list[ModelRow]:
    """The measures of all models, baseline first."""
    return [self.row(model) for model in self.models]

  def trainings(self) -> dict[str, Any] | None:
    """The spread over this run and those of `run --seeds` that have ended; None without any."""
    from fairjax.report.sections import spread_of_trainings
    runs = {int(done.parent.name): open_run(done.parent, log=self.log)
            for done in self.workdir.glob(f'{SEEDS}/*/DONE') if done.parent.name.isdecimal()}
    rows = {self.config.seed: self.rows()}
    for seed in sorted(runs):
      other = [line for line in config_differences(to_dict(runs[seed].config), to_dict(self.config))
               if line.partition(':')[0] not in ('seed', *MACHINE_FIELDS, *EXTENDS)]
      if other:  # its numbers are of other texts, or measured otherwise
        self.log(f'WARNING: {runs[seed].workdir} has another configuration and is left out of the '
                 f'spread over trainings: {"; ".join(other)}: fairjax run --seeds goes on with it')
      else:
        rows[seed] = runs[seed].rows()
    return spread_of_trainings(rows) if len(rows) > 1 else None

  def distributions(self, rows: list[ModelRow]) -> dict[str, 'Distributions']:
    """By model, the records and scores that `rows` are computed from."""
    from fairjax.measure import read_generations
    from fairjax.report.page import collect_distributions, stored_scores
    found = {}
    for model, row in zip(self.models, rows, strict=True):
      generations = read_generations(self.records(model), self.attribute, empty='keep')
      found[row.name] = collect_distributions(
        generations, stored_scores(generations, row.measures,
                                   self.scores_folder(model, heldout=False)),
        coupled=row.measures['coupled'])
    return found

  def curves(self) -> tuple[Curves, list[str]]:
    """Training curves by stage and model, and a note for every file that is damaged."""
    from fairjax.train import SENTIMENT, read_metrics, stage_folder
    baseline, *variants = (m for m in self.models if m.method not in DECODE_TIME_METHODS)
    places = [('lm', baseline.name, baseline.directory),
              ('sentiment', 'f_sh', stage_folder(self.config, self.workdir, SENTIMENT)),
              *(('debias', model.name, model.directory) for model in variants)]
    curves: Curves = {}
    damaged = []
    for stage, name, directory in places:
      try:
        lines = read_metrics(directory / 'metrics.jsonl')
      except Damaged as e:
        self.log(f'WARNING: {e}; its curve is left out')
        damaged.append(f'The training curve of {name} is left out: its metrics.jsonl is damaged.')
        continue
      if lines:
        curves.setdefault(stage, {})[name] = lines
    return curves, damaged

  def known_bias(self) -> 'KnownBias | None':
    """Closed form beside the measures on held-out prefixes of the grammar; None without these."""
    if not self.has_heldout:
      return None
    from fairjax.data import planted
    from fairjax.report import KnownBias
    strength, baseline = self.config.data.planted_strength, self.models[0]
    measures = self.read_measures(baseline, heldout=True)['measures']
    one_word = self.config.sample.sentence_end or self.config.data.planted_one_mood
    counts = {1: 1.0} if one_word else planted.HELDOUT_OPINION_COUNTS
    return KnownBias(
      individual_fairness=planted.true_individual_fairness(self.attribute, strength=strength),
      group_fairness=planted.true_group_fairness(
        self.attribute, strength=strength, opinion_counts=counts),
      scorer=next(iter(measures['scorers'])), measures={baseline.name: measures})

  def notes(self) -> list[str]:
    """What a published model is compared with, long branches, how good f_sh is, a bad kernel."""
    from fairjax.train import LM, SENTIMENT, read_done, stage_folder
    lines = [f'The attention kernel was not used on {key}: {fault}. Attention was computed by '
             'blocks, which gives the same values.'
             for key, fault in sorted(read_verdicts(self.workdir).items()) if fault]
    if self.config.pretrained.model:
      lm = read_done(stage_folder(self.config, self.workdir, LM))
      cosine = '' if lm is None else (
        ' h-bar of unrelated places of the published model has cosine '
        f'{lm["summary"]["unrelated_cosine"]:.3f} ({self.config.pretrained.h_bar} states).')
      lines.append('The baseline that models are compared with is control: the published model '
                   'after the same training on the same rows, without the fairness term. Such '
                   f'training alone changes perplexity and bias.{cosine}')
    if self.config.decoding:
      started = self.title(self.models[0])
      trained = '' if started == BASELINE else (
        f' Compare these methods with {started}: control was trained, and they were not.')
      lines.append(
        f'At decoding time ({", ".join(self.config.decoding)}): the parameters are those of '
        f'{started}, and only what follows a prompt changes. Perplexity is of text without a '
        f'prompt, and therefore not changed.{trained} average reads each continuation after the '
        f'prompts of all {len(self.attribute.values)} values.')
    if tokens := self.config.debias.branch_tokens:
      lines.append(f'Long branches: the fairness loss also compares h-bar at up to {tokens} tokens '
                   'after the value (debias.branch_tokens; not in the paper).')
    done = read_done(stage_folder(self.config, self.workdir, SENTIMENT))
    if done is None:
      return lines
    found = done['summary']
    return [*lines,
            f"Sentiment projection f_sh on {found['sentences']:.0f} held-out sentences (H-19): F1 "
            f"{found['f1']:.3f}, accuracy {found['accuracy']:.3f} (always the more frequent "
            f"class: {found['majority']:.3f})" + (
              f"; at random prefixes, as step 3 reads it, F1 {found['prefix_f1']:.3f}, accuracy "
              f"{found['prefix_accuracy']:.3f}." if 'prefix_f1' in found else '.')]


def open_run(workdir: str | os.PathLike, *, log: Callable[[str], None] = print) -> Run:
  """Opens the run of a workdir, also of a copy that holds its models and vocabulary only."""
  workdir, lacking = pathlib.Path(workdir), 'config.json'
  if (workdir / lacking).exists():
    config, lacking = load_config(str(workdir / lacking)), 'data/vocabulary'
    if vocabulary_folder(config, workdir).exists():
      return Run(config, workdir, log)
  raise UserError(f'{workdir} has no {lacking}: name the workdir of a run (what fairjax run was '
                  'given as --workdir), or copy it with this file')


def run_prefixes(attribute: Attribute, *, heldout: bool = False, rewordings: bool = False
                 ) -> list[Prefix]:
  """The prefixes of the templates (and rewordings), or those that the grammar holds out."""
  if not heldout:
    return attribute.prefixes() + (attribute.reworded_prefixes() if rewordings else [])
  from fairjax.data.planted import heldout_prefixes
  return [Prefix(*p) for p in heldout_prefixes(attribute)]
