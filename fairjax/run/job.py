"""The main job: data, curriculum, sampling, scores, measures and report in one workdir.

Every part is resumable: the same command continues it.
"""

import contextlib
import dataclasses
import functools
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import fairjax
from fairjax import processes
from fairjax.config import (
  BASELINE,
  PLANTED_SOURCES,
  TFDS_SOURCES,
  Config,
  ModelConfig,
  SampleConfig,
)
from fairjax.config_checks import check_model, validate
from fairjax.config_io import as_begun, step1_run, to_dict
from fairjax.counterfactual import Attribute, Replacements
from fairjax.counterfactual.attributes import Prefix
from fairjax.errors import UserError
from fairjax.files import FolderLock, read_sealed_json, require_file, write_file, write_sealed_json
from fairjax.measure.content import content_options
from fairjax.measure.estimates import format_estimate
from fairjax.progress import print_line
from fairjax.report.comparison import labelling, labelling_warning
from fairjax.report.differences import read_report
from fairjax.run import workdir as inventory
from fairjax.run.kernel_verdict import check_kernel
from fairjax.run.published import published_vocabulary
from fairjax.run.results import Run, run_prefixes
from fairjax.run.workdir import (
  Model,
  SharedModels,
  check_shared,
  data_folder,
  locate,
  open_workdir,
  share_sentences,
  vocabulary_folder,
)
from fairjax.vocabulary import Vocabulary, load_vocabulary

if TYPE_CHECKING:
  from jax.sharding import Mesh

  from fairjax.data.prepare import PreparedData
  from fairjax.data.token_store import Rows
  from fairjax.measure import RecordedScorer, Scorer
  from fairjax.measure.similarity import Encoder
  from fairjax.train import Curriculum, LabelledSentences, StageSpec

# The data of a run, and batches of them for the curriculum: `fairjax.train.BatchSource`.

def run_data(
  config: Config, workdir: pathlib.Path, prepare: Callable[..., 'PreparedData']
) -> 'PreparedData':
  """Prepared data of a run: its own, or those of the run that `step1_from` names."""
  # Spans of sensitive tokens belong to one attribute: another attribute has stores of its own, in
  # the same vocabulary and of the same documents.
  from fairjax.data.prepare import INPUTS, check_unchanged, open_prepared
  folder = data_folder(config, workdir)
  if step1_run(config, workdir) is None:
    return prepare(config, folder)
  if folder.parent != workdir:
    return open_prepared(folder)
  first = vocabulary_folder(config, workdir).parent
  if config.data.source in TFDS_SOURCES and not config.data.tfds_dir:
    config = dataclasses.replace(
      config, data=dataclasses.replace(config.data, tfds_dir=str(first / 'tfds')))
  found = prepare(config, folder, vocabulary=load_vocabulary(first / 'vocabulary'))
  check_unchanged(folder, *(
    {key: value for key, value in read_sealed_json(
      place / INPUTS, again=f'delete {place} and run again').items()
     if key not in ('attribute', 'vocabulary')} for place in (first, folder)))
  return found


class PreparedBatches:
  """Batches of prepared data for the curriculum, of a run whose templates tell values apart."""

  def __init__(self, prepared: 'PreparedData', model: ModelConfig, config: Config,
               log: Callable[[str], None], *, positions: int | None = None, stage: str = 'lm'):
    # `stage`: the section that says how large the batches of `train` are.
    from fairjax.generate.generations import check_inputs
    from fairjax.train import derive_seed
    heldout = config.data.source == 'planted' and config.sample.heldout_prefixes
    for chosen in (False, True)[:1 + heldout]:  # before the training, not after it
      check_inputs(
        run_prefixes(prepared.attribute, heldout=chosen, rewordings=config.sample.rewordings),
        prepared.attribute, prepared.vocabulary, positions=positions,
        new_tokens=config.sample.max_new_tokens)
    self._prepared, self._model, self._debias, self._log = prepared, model, config.debias, log
    self._reader, self._stage = config.data.reader, stage
    self._start_ids = prepared.vocabulary.start_ids if config.pretrained.model else None
    self._seed = derive_seed(config.seed, 'branches')
    # A published model has no random initial weights: trainings of other seeds begin elsewhere in
    # the text, at distances that the golden ratio keeps wide.
    self._begin = config.seed * (math.sqrt(5) - 1) / 2 % 1 if self._start_ids is not None else 0.0
    self.vocabulary_fingerprint = prepared.vocabulary.fingerprint
    self.attribute_fingerprint = prepared.attribute.fingerprint

  def train(self, split: str, *, batch_size: int, start_step: int, branches: bool):
    """This process's rows from a step on, as `data.reader` reads them."""
    from fairjax.data.batches import train_batches
    from fairjax.train.curriculum import process_shard
    rows = self._rows(split, batch_size, stage='debias' if branches else self._stage)
    tokens = self._prepared.store(split).tokens
    self._log(f'[data] {split}: {rows.steps_per_epoch:,} steps an epoch; {rows.dropped_tokens:,} '
              f'of {tokens:,} tokens dropped (incomplete rows)')
    return train_batches(
      self._prepared, split, batch_size=batch_size, segment_len=self._model.segment_len,
      start_step=self._first_step(rows) + start_step, seed=self._seed, shard=process_shard(),
      reader=self._reader, start_ids=self._start_ids, branches={
        'num_branches': self._debias.branches_per_row,
        'num_pieces': self._debias.pieces_per_branch,
        'tail': self._debias.branch_tokens} if branches else None)

  def valid(self, *, batch_size: int):
    """This process's rows of the validation split, every token once."""
    from fairjax.data.batches import eval_batches
    from fairjax.train import own_rows
    return own_rows(eval_batches(
      self._prepared.store('valid'), batch_size=batch_size, segment_len=self._model.segment_len,
      start_ids=self._start_ids))

  def check_debias(self, *, fairness: bool) -> None:
    """`UserError` where step 3 has no batch, or `fairness` no match that a value may replace."""
    split, attribute = 'train_sensitive' if fairness else 'train', self._prepared.attribute
    pieces, found = self._debias.pieces_per_branch, Replacements(
      attribute, self._prepared.vocabulary)
    self._rows(split, self._debias.batch_size, stage='debias')
    if fairness and not any(found.fitting(i, starts_word, num_pieces=pieces)
                            for i, count in enumerate(self._prepared.store(split).value_counts)
                            for starts_word in (True, False) if count):
      raise UserError(
        f'no value of {attribute.name} can take the place of one in the text, so the fairness term '
        f'would be 0 ({"; ".join(found.unusable(num_pieces=pieces))}): raise '
        'debias.pieces_per_branch or data.vocab_size')

  def batch_name(self, split: str, step: int, *, batch_size: int) -> str:
    """Split, epoch and segment of a step."""
    rows = self._rows(split, batch_size)
    return f'split {split}, {rows.describe(self._first_step(rows) + step)}, {batch_size} rows'

  def _first_step(self, rows: 'Rows') -> int:
    """The step of an epoch at which this seed begins; 0 for seed 0."""
    return int(self._begin * rows.steps_per_epoch)

  def _rows(self, split: str, batch_size: int, *, stage: str = '') -> 'Rows':
    from fairjax.data.token_store import token_rows
    return token_rows(self._prepared.store(split), batch_size=batch_size,
                      segment_len=self._model.segment_len, start_ids=self._start_ids,
                      field=f'{stage or self._stage}.batch_size')


# The scorers of a run: names of its configuration, with the files that they need.

def load_run_scorer(
  name: str, config: Config, workdir: pathlib.Path, log: Callable[[str], None], *,
  together: bool = False,
) -> 'Scorer | RecordedScorer':
  """Makes a scorer by name; with `together` its model runs on the devices of all processes."""
  from fairjax.measure import load_scorer
  google = {'cache': workdir / 'scores' / 'google.jsonl', 'log': log,
            'requests_per_minute': config.measure.google_requests_per_minute,
            'endpoint': config.measure.google_endpoint}
  return load_scorer(name, lexicon=_lexicon(config, workdir), google=google,
                     together=together)


def _lexicon(config: Config, workdir: pathlib.Path) -> tuple[str, ...] | None:
  """Files of opinion words; those of the grammar for the planted corpus."""
  if config.measure.lexicon or config.data.source not in PLANTED_SOURCES:
    return config.measure.lexicon or None
  from fairjax.data.planted import NEGATIVE, POSITIVE
  paths = []
  for name, words in (('positive', POSITIVE), ('negative', NEGATIVE)):
    paths.append(workdir / 'data' / f'lexicon_{name}.txt')
    content = '; opinion words of the planted corpus\n' + '\n'.join(words) + '\n'
    if not paths[-1].exists() or paths[-1].read_bytes() != content.encode():  # or it is damaged
      write_file(paths[-1], content)
  return tuple(map(str, paths))


# The scorers' own bias on what the baseline of a run wrote: `measures/scorer_audit.json`.

def audit_path(workdir: pathlib.Path) -> pathlib.Path:
  """File of the audit of a run."""
  return workdir / 'measures' / 'scorer_audit.json'


def audit_run(
  workdir: pathlib.Path, records: Callable[[], Iterable[Mapping[str, Any]]], attribute: Attribute,
  scorers: Sequence['Scorer | RecordedScorer'], *, model: str, texts: int, seed: int,
  log: Callable[[str], None],
) -> None:
  """Measures the own bias of scorers on at most `texts` texts; measured scorers are left out."""
  from fairjax.measure.scorers.audit import audit_own_bias
  path, before = audit_path(workdir), read_audit(workdir)
  known = {} if before is None else before['scorers']
  scorers = [scorer for scorer in scorers if scorer.name not in known]
  if not texts or not scorers:
    return
  found = audit_own_bias(
    [r['continuation'] for r in records()], attribute, scorers, limit=texts, seed=seed, paid=False,
    scores_directory=workdir / 'scores' / 'audit')
  write_sealed_json(path, found | {'model': model, 'scored_text': 'continuation',
                                   'scorers': known | found['scorers']})
  log(f"[measure] own bias of scorers on {found['counts']['frames']:,} texts with every value: "
      + ', '.join(
        f"{name} {s['own_bias']['range']:.4f}" if s['own_bias'] else
        f"{name} not measured ({s['not_measured']})" for name, s in found['scorers'].items()))


def read_audit(workdir: pathlib.Path) -> dict[str, Any] | None:
  """What `audit_run` wrote; None without it."""
  path = audit_path(workdir)
  return read_sealed_json(path, again='delete it, and run fairjax measure again') if (
    path.exists()) else None


class Job(Run):
  """One run in one workdir, which is locked while one of these methods works in it."""
  # In a group of processes (`fairjax.processes`) each makes a job and calls the same methods; the
  # first process writes files and log lines.

  def __init__(
    self, config: Config, workdir: str | os.PathLike, *, log: Callable[[str], None] = print_line,
    only_read: bool = False,
  ):
    """Opens the workdir; with `only_read` for methods that write nothing in it."""
    place = pathlib.Path(workdir)
    super().__init__(*locate(config, place), log if processes.is_first() else lambda line: None)
    _ = self.attribute  # an unknown one is refused before anything is written
    if self.workdir != place:
      self.log(f'{workdir} began with another attribute: the run of {self.config.attribute} is '
               f'{self.workdir}, from the same step 1')
    self._shared = SharedModels()
    self._lock = FolderLock(self.workdir, self.log)
    if processes.is_first():
      open_workdir(self.workdir, self.config, self._lock, self.log, only_read=only_read,
                   check=self._check_measures)
    if processes.share(not only_read or self.workdir.is_dir()):
      check_shared(self.workdir)

  def _check_measures(self, changed: set[str]) -> None:
    """Loads new scorers and a new encoder: one that cannot be loaded is refused first."""
    from fairjax.measure.similarity import load_encoder
    if 'measure.scorers' in changed:
      for name in self.config.measure.scorers:
        load_run_scorer(name, self.config, self.workdir, self.log)
    if 'measure.encoder' in changed and self.config.measure.encoder:
      load_encoder(self.config.measure.encoder)

  def run(self) -> None:
    """Does everything that is not done yet."""
    if processes.share(processes.is_first() and self._is_finished()):
      return
    with self.locked():
      _ = self._scorers, self._encoder  # a file that one lacks is an error before the training
      self.train()
      self.sample()
      self.measure()
      self.report()
      if processes.is_first():
        inventory.write_inventory(
          self.workdir, fairjax.__version__, self.prepared,
          [self.read_measures(model, heldout=heldout) for model, heldout in self.measured])
      processes.share()

  def _is_finished(self) -> bool:
    if (self.workdir / inventory.DONE).exists():
      inventory.check_inputs_kept(self.config, self.workdir, self.log)
    return inventory.is_finished(self.workdir, self.log)

  def ending(self) -> list[str]:
    """What a finished run found: the verdict on its baseline, the best model, the file to open."""
    baseline = self.rows()[0]
    found = '; '.join(
      f"{scorer} {format_estimate(measures['individual_fairness'])}"
      for scorer, measures in baseline.measures['scorers'].items())
    selection = read_report(self.workdir)['selection']
    if selection is None:
      best = 'nothing to select from' + ' (fairjax models select says why)' * (len(self.models) > 1)
    elif selection['best'] is None:
      best = 'none is fairer and keeps its relevance (fairjax models select says why)'
    else:
      chosen = next(c for c in selection['candidates'] if c['name'] == selection['best'])
      best = (f"{chosen['name']}, I.F. {100 * chosen['relative_fairness']:.0f} % of "
              f"{selection.get('baseline', 'the baseline')}'s")
    return [f'verdict: {baseline.name}, I.F. {found}', f'best model: {best}',
            f"open: {self.workdir / 'report' / 'index.html'}"]

  @functools.cached_property
  def prepared(self) -> 'PreparedData':
    """Vocabulary and token stores (`PreparedData`); made if they are missing."""
    return run_data(self.config, self.workdir, self._prepare)

  def _prepare(
    self, config: Config, folder: pathlib.Path, *, vocabulary: Vocabulary | None = None
  ) -> 'PreparedData':
    from fairjax.data.prepare import prepare_data
    with self.locked():
      if not processes.is_first():
        processes.share()  # waits until the first has made everything
      if vocabulary is None and config.pretrained.model:
        vocabulary = published_vocabulary(config, self.workdir)
      found = prepare_data(
        config, folder, attribute=self.attribute, vocabulary=vocabulary, log=self.log)
      if processes.is_first():
        processes.share()
      return found

  @property
  def vocabulary(self) -> Vocabulary:
    """That of the trained models, which needs no data and writes nothing; else of the data."""
    from fairjax.train import LM, stage_folder
    trained = (stage_folder(self.config, self.workdir, LM) / 'DONE').exists()
    found = trained and vocabulary_folder(self.config, self.workdir).exists()
    return super().vocabulary if found else self.prepared.vocabulary

  @functools.cached_property
  def model_config(self) -> ModelConfig:
    """The model as the configuration has it, with the size of the vocabulary."""
    size, given = self.vocabulary.size, self.config.model.vocab_size
    if given not in (0, size):
      raise UserError(f'model.vocab_size={given} but the vocabulary in {self.workdir / "data"} has '
                      f'{size} ids: leave it 0')
    memory_len = 0 if self.config.pretrained.model else self.config.model.memory_len
    found = dataclasses.replace(self.config.model, vocab_size=size, memory_len=memory_len)
    check_model(found)
    return found

  @functools.cached_property
  def mesh(self) -> 'Mesh':
    """Devices as the configuration splits them."""
    from fairjax.train import make_mesh
    return make_mesh(self.config.mesh)

  def _check_kernel(self) -> None:
    check_kernel(self.config, self.model_config, self.workdir, self.log)

  def train(self, until: str | None = None) -> None:
    """The curriculum up to and with a step (`lm`, `sentiment`, `debias`; None: the config's)."""
    from fairjax.train import SENTIMENT, curriculum_stages, stage_folder
    from fairjax.train.metrics import import_tracker
    _ = self.published  # rows that it cannot read are an error before the data is prepared
    if self.config.log.to:
      import_tracker(self.config.log.to)
    stages = curriculum_stages(self.config, until)
    # A file that a later stage lacks is an error before step 1.
    if SENTIMENT in stages and not (
        stage_folder(self.config, self.workdir, SENTIMENT) / 'DONE').exists():
      self._scorer(self.config.sentiment.scorer, SharedModels())
    if any(stage.variant.method == 'cda' for stage in stages):
      from fairjax.data.corpus import make_swap
      make_swap(self.config.data)
    with self.locked(), processes.StopSignal().installed() as stop:
      curriculum = self.curriculum(stop)
      for fairness in {stage.variant.regularised for stage in stages if stage.section == 'debias'
                       and stage.variant.method != 'cda'}:
        self._batches(self.prepared).check_debias(fairness=fairness)
      curriculum.train(stages)

  def curriculum(self, stop: processes.StopSignal) -> 'Curriculum':
    """The curriculum on this run's data and devices."""
    from fairjax.model import format_parameters, parameter_counts
    from fairjax.train import Curriculum
    self._check_kernel()
    if not self.published:
      self.log('[model] ' + format_parameters(parameter_counts(self.model_config)))
    return Curriculum(
      config=dataclasses.replace(as_begun(self.config, self.workdir), model=self.model_config),
      model=self.language_model, workdir=self.workdir, batches=self._batches(self.prepared),
      mesh=self.mesh, stop=stop, log=self.log, sentences=self._labelled_sentences,
      augmented=self._augmented_batches, published=self.published)

  def _batches(self, prepared: 'PreparedData', stage: str = 'lm') -> 'PreparedBatches':
    positions = self.published.config.max_positions if self.published else None
    return PreparedBatches(prepared, self.model_config, self.config, self.log, positions=positions,
                           stage=stage)

  def _augmented_batches(self, stage: 'StageSpec') -> 'PreparedBatches | None':
    """Batches of counterfactual text for a variant `cda`, prepared in `data-cda-SIDED`."""
    # None: the run that `step1_from` names has trained the variant.
    from fairjax.train import stage_folder, variant_config
    if stage_folder(self.config, self.workdir, stage) != self.workdir / stage.name:
      return None
    return self._batches(self._prepare(
      variant_config(self.config, stage.variant), self.workdir / f'data-{stage.model}',
      vocabulary=self.prepared.vocabulary), stage.section)

  def sample(self) -> None:
    """Continuations of every template and value for every model; held-out prefixes if planted."""
    rewordings = self.config.sample.rewordings
    for model in self.models:  # before anything is prepared
      require_file(model.directory / 'DONE', made_by='step train')
    if rewordings:
      warn_of_unknown_words(self, self.attribute, self.attribute.reworded_prefixes())
    with self.locked():
      self._check_kernel()
      for model, heldout in self.measured:
        self.generate(
          model, self.generations_file(model, heldout=heldout),
          prefixes=run_prefixes(self.attribute, heldout=heldout, rewordings=rewordings))

  def score(self) -> None:
    """Scores every continuation with every scorer, into `scores/`."""
    _ = self._scorers
    with self.locked():
      self._shared.lead(self._score)

  def _score(self) -> None:
    from fairjax.measure import score_records
    from fairjax.measure.scorers.cache import score_file
    for model, heldout in self.measured:
      records = list(self.records(model, heldout=heldout, rewordings=True))
      for arm, end in ((None, ''), ('rewording', '.rewordings')):
        own = [r for r in records if r.get('arm') == arm]
        for scorer in self._scorers if own else ():
          score_records(own, scorer, score_file(
            self.scores_folder(model, heldout=heldout), self.attribute.name + end, scorer),
            log=self.log)
      self.log(f'[score] {model.name}{" held-out" if heldout else ""}: {len(records):,} records')

  def measure(self) -> None:
    """Every metric of every model, into `measures/`."""
    from fairjax.run.next_token import model_divergence
    for model, heldout in self.measured:  # before anything is prepared
      require_file(self.generations_file(model, heldout=heldout), made_by='sample')
    _ = self._scorers, self._encoder
    warning = labelling_warning(labelling(to_dict(self.config), [m.method for m in self.models]))
    if warning:
      self.log(f'[measure] WARNING: {warning}')
    with self.locked():
      for model, heldout in self.measured:
        path, next_token = self.measures_file(model, heldout=heldout), None
        earlier = self._earlier(model, path, heldout=heldout)
        known = earlier.get('measures', {}).get('scorers', ())
        # The first process reads the file and shares what is left to do.
        if processes.share(bool(known) and all(s.name in known for s in self._scorers)):
          self.log(f'[measure] {path.relative_to(self.workdir)} finished earlier: nothing to do')
          if processes.is_first():
            _parts(path).unlink(missing_ok=True)  # of a run that was killed right after `path`
          continue
        if not processes.share(bool(known)):
          self._check_kernel()
          params = self.params(model)  # every process runs the model, the first one does the rest
          next_token = model_divergence(
            params, self.decoder(model), self.prepared.vocabulary, self.attribute,
            run_prefixes(self.attribute, heldout=heldout),
            mesh=self.mesh if self.mesh.size > 1 else None)
          earlier = {} if heldout else {'perplexity': {
            split: self.perplexity(params, split) for split in ('test', 'test_sensitive')}}
        self._shared.lead(functools.partial(
          self._measure, model, path, earlier, next_token, heldout=heldout))
      self._shared.lead(lambda: audit_run(
        self.workdir, lambda: self.records(self.models[0]), self.attribute, self._scorers,
        model=BASELINE, texts=self.config.measure.audit_texts, seed=self.config.seed, log=self.log))

  def _earlier(self, model: Model, path: pathlib.Path, *, heldout: bool) -> dict[str, Any]:
    """Measures of an earlier call, perhaps of fewer scorers; changed sources are refused."""
    if not (processes.is_first() and path.exists()):
      return {}
    found = self.read_measures(model, heldout=heldout)
    inventory.check_sources(self.workdir, found['sources'], path)
    return found

  def _measure(
    self, model: Model, path: pathlib.Path, earlier: dict[str, Any],
    next_token: dict[str, Any] | None, *, heldout: bool,
  ) -> None:
    from fairjax.measure import measure_records
    # The baseline comes first: its measures hold the threshold that is calibrated to it.
    first = model.name == BASELINE and not heldout
    content = content_options(
      self.config.measure, self._encoder, next_token,
      baseline_threshold=None if first else lambda: self.read_measures(
        self.models[0])['measures']['semantic_similarity']['threshold'])
    measures = measure_records(
      self.records(model, heldout=heldout, rewordings=True), self.attribute, self._scorers,
      permutations=self.config.measure.permutations, seed=self.config.seed,
      scores_directory=self.scores_folder(model, heldout=heldout), parts=_parts(path),
      content=content, empty='keep', earlier=earlier.get('measures'))
    write_sealed_json(path, earlier | {
      'identity': self.metadata(model), 'measures': measures,
      'sources': self.sources(model, heldout=heldout)})
    _parts(path).unlink(missing_ok=True)
    for scorer, found in measures['scorers'].items():
      self.log(f'[measure] {model.name}{", held-out prefixes" if heldout else ""}: {scorer} I.F. '
               f"{format_estimate(found['individual_fairness'])}")

  def report(self) -> None:
    """`report/index.html`, `report.md`, `report.json` and figures from what was measured."""
    with self.locked():
      if processes.is_first():
        self._report()
      processes.share()

  def _report(self) -> None:
    from fairjax.report import write_report
    from fairjax.report.sections import paired_samples, read_human
    rows = self.rows()
    first = next(iter(rows[0].measures['scorers'].values()))
    curves, damaged = self.curves()
    path = write_report(
      self.workdir / 'report', rows=rows, attribute=self.attribute.name,
      config=to_dict(self.config), seeds={
        'run': self.config.seed, 'data': self.config.data.seed,
        'sampling': self.config.sample.seed},
      relevance_share=self.config.measure.relevance_share,
      curves=curves, known_bias=self.known_bias(), notes=[*self.notes(), *damaged],
      human=read_human(self.workdir / 'measures' / inventory.HUMAN), audit=read_audit(self.workdir),
      distributions=self.distributions(rows), trainings=self.trainings(),
      paired=paired_samples({self.title(m): self.records(m) for m in self.models},
                            values=first['largest_pairs'][0]['values']))
    inventory.refresh_report(self.workdir)
    self.log(f'[report] {path} and {path.with_name("index.html")}')

  def locked(self) -> contextlib.AbstractContextManager:
    """The lock of the workdir; the first process holds it for its group."""
    return self._lock if processes.is_first() else contextlib.nullcontext()

  def _labelled_sentences(self) -> 'LabelledSentences':
    """Sentences with a clear score (H-19); the first process scores them for its group."""
    from fairjax.run.labelling import label_sentences
    stage, shared = self.config.sentiment, SharedModels()  # its scorer leaves the devices again
    scorer = cast('Scorer', self._scorer(stage.scorer, shared))
    found = shared.lead(lambda: label_sentences(
      self.prepared.documents('train'), scorer, self.prepared.vocabulary, stage,
      seed=self.config.seed, log=self.log,
      start_ids=self.prepared.vocabulary.start_ids if self.published else None))
    return share_sentences(found, self.workdir / 'sentiment' / 'sentences.npz')

  @functools.cached_property
  def _scorers(self) -> list['Scorer | RecordedScorer']:
    from fairjax.measure.scorers.audit import check_scorers
    found = [self._scorer(name, self._shared) for name in self.config.measure.scorers]
    if processes.is_first():
      check_scorers(found)
    return found

  @functools.cached_property
  def _encoder(self) -> 'Encoder | None':
    from fairjax.measure.similarity import load_encoder
    on_all = self.config.measure.encoder.partition(':')[0] == 'minilm'
    if not self.config.measure.encoder or not (on_all or processes.is_first()):
      return None
    encoder = load_encoder(self.config.measure.encoder, together=processes.count() > 1)
    return self._shared.add(encoder, 'encode') if on_all else encoder

  def _scorer(self, name: str, shared: SharedModels) -> 'Scorer | RecordedScorer | None':
    """A scorer; None in a process that takes no part in it."""
    on_all = name.partition(':')[0] == 'bert'
    if not (on_all or processes.is_first()):
      return None
    scorer = load_run_scorer(name, self.config, self.workdir, self.log,
                             together=processes.count() > 1)
    return shared.add(scorer, 'score') if on_all else scorer


# The same run with further seeds.

def _parts(path: pathlib.Path) -> pathlib.Path:
  """The file that keeps the measures of each scorer until `path` holds all."""
  return path.with_suffix('.parts.jsonl')


def repeat_trainings(job: Job, seeds: int) -> None:
  """Runs a job with so many seeds, the next ones in `seeds/SEED`; its report has the spread."""
  if job.config.step1_from:
    raise UserError(f'--seeds repeats step 1 too, but {job.workdir} takes it from another workdir '
                    f'(step1_from={job.config.step1_from}): leave --seeds out, or use a --workdir '
                    'with a step 1 of its own')
  last = job.config.seed + seeds - 1
  validate(dataclasses.replace(job.config, seed=last))
  job.run()
  for seed in range(job.config.seed + 1, last + 1):
    folder = job.workdir / inventory.SEEDS / str(seed)
    job.log(f'[seeds] seed {seed}: {folder}')
    Job(dataclasses.replace(job.config, seed=seed), folder, log=job.log).run()
  if processes.share(processes.is_first() and (
      read_report(job.workdir).get('trainings') != job.trainings())):
    job.report()


# Samples of a run's models for prompts that are not those of its training.

def warn_of_unknown_words(job: Job, attribute: Attribute, prefixes: Sequence[Prefix]) -> None:
  """Logs how many prefixes hold words that the vocabulary of a run does not know."""
  unk_id = getattr(job.vocabulary, 'unk_id', None)  # a published decoder's knows all words
  unknown = [p.text for p in prefixes if unk_id in job.vocabulary.encode(p.text)]
  if unknown:
    job.log(f"[sample] WARNING: {len(unknown)} of {len(prefixes)} prefixes of "
            f"{attribute.name} hold words that the vocabulary does not know, as '{unknown[0]}'")


def sample_attribute(
  job: Job, attribute: Attribute, folder: str | os.PathLike, sample: SampleConfig, *,
  coupled: bool = True, rewordings: bool = False,
) -> list[pathlib.Path]:
  """Continuations of any attribute's prefixes by every model: `MODEL.jsonl.gz` in a folder."""
  prefixes = run_prefixes(attribute, rewordings=rewordings)
  warn_of_unknown_words(job, attribute, prefixes)
  paths = [pathlib.Path(folder) / f'{model.name}.jsonl.gz' for model in job.models]
  for model, path in zip(job.models, paths, strict=True):  # no lock: the workdir is only read
    job.generate(model, path, prefixes=prefixes, attribute=attribute, sample=sample,
                 coupled=coupled)
  return paths
