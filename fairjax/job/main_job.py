"""The main job: data, curriculum, sampling, scores, measures and report in one workdir.

Every part is resumable: the same command continues it. This module only connects the rooms; what
they do stands in them.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import fairjax
from fairjax import processes
from fairjax.config import Config, ModelConfig, SampleConfig, debias_variants
from fairjax.config_files import to_dict
from fairjax.counterfactual import Attribute, Prefix, load_attribute
from fairjax.errors import UserError, unknown_name
from fairjax.files import FolderLock, read_sealed_json, require_file, write_sealed_json
from fairjax.job import inventory
from fairjax.job.feed import PreparedFeed, run_data
from fairjax.job.group import LedModels, check_shared, share_sentences
from fairjax.job.run_audit import audit_run, read_audit
from fairjax.job.run_models import BASELINE, Model, run_models, trains_sentiment
from fairjax.job.run_scorers import load_run_scorer
from fairjax.job.workdir import claim, locate
from fairjax.measure.estimates import estimate_words
from fairjax.progress import print_line
from fairjax.report.comparison import labelling, labelling_warning
from fairjax.versions import installed_versions


class Job:
  """One run in one workdir, which is locked while one of these methods works in it.

  In a group of processes (`fairjax.processes`) each of them makes a job and calls the same methods;
  the first one writes, and prints.

  Args:
    config: of the whole run.
    workdir: folder; created if it does not exist.
    log: gets one line at a time.

  Raises:
    UserError: the workdir belongs to a run with another configuration (the fields are named).
  """

  def __init__(
    self, config: Config, workdir: str | os.PathLike, *, log: Callable[[str], None] = print_line
  ):
    self.config, self.workdir = locate(config, pathlib.Path(workdir))
    self.log = log if processes.is_first() else lambda line: None
    if self.workdir != pathlib.Path(workdir):
      self.log(f'{workdir} began with another attribute: the run of {self.config.attribute} is '
               f'{self.workdir}, from the same step 1')
    self.attribute = load_attribute(config.attribute)
    self._led = LedModels()
    self._lock = FolderLock(self.workdir, self.log)
    if processes.is_first():
      claim(self.workdir, self.config, self._lock, self.log)
    check_shared(self.workdir)

  def run(self) -> None:
    """Does everything that is not done yet."""
    if processes.share(processes.is_first() and inventory.is_finished(self.workdir, self.log)):
      return
    with self.locked():
      _ = self._scorers, self._encoder  # what one lacks must not wait for the end of the training
      self.train()
      self.sample()
      self.measure()
      self.report()
      if processes.is_first():
        inventory.write_inventory(
          self.workdir, fairjax.__version__, self.prepared,
          [self.read_measures(model, heldout=heldout) for model, heldout in self._measured])
      processes.share()

  @functools.cached_property
  def prepared(self):
    """Vocabulary and token stores (`PreparedData`); made if they are missing."""
    return run_data(self.config, self.workdir, self._prepare)

  def _prepare(self, config: Config, folder: pathlib.Path, *, vocabulary=None):
    from fairjax.data.prepare import prepare_data
    with self.locked():
      if not processes.is_first():
        processes.share()  # then the first has made everything
      found = prepare_data(
        config, folder, attribute=self.attribute, vocabulary=vocabulary, log=self.log)
      if processes.is_first():
        processes.share()
      return found

  @functools.cached_property
  def model_config(self) -> ModelConfig:
    """The model with the size of the vocabulary."""
    size, given = self.prepared.vocabulary.size, self.config.model.vocab_size
    if given not in (0, size):
      raise UserError(f'model.vocab_size={given} but the vocabulary in {self.workdir / "data"} has '
                      f'{size} ids: leave it 0')
    return dataclasses.replace(self.config.model, vocab_size=size)

  @functools.cached_property
  def mesh(self):
    """Devices as the configuration splits them."""
    from fairjax.train import make_mesh
    return make_mesh(self.config.mesh)

  @property
  def models(self) -> list[Model]:
    """The language models of this run, baseline first."""
    return run_models(self.config, self.workdir)

  def train(self, until: str | None = None) -> None:
    """The curriculum up to and with a stage (`lm`, `sentiment`, `debias`; None: the config's)."""
    from fairjax.train import StopSignal
    until = until or self.config.until
    variants = debias_variants(self.config.debias)
    sentiment = trains_sentiment(self.config, until)
    if sentiment and not (self._stage('sentiment') / 'DONE').exists():
      # What it lacks must not wait for step 1.
      self._scorer(self.config.sentiment.scorer, LedModels())
    if until == 'debias' and any(v.method == 'cda' for v in variants):
      from fairjax.data.cda import make_swap
      make_swap(self.config.data)  # nor what its lists of words and names lack
    with self.locked(), StopSignal().installed() as stop:
      curriculum = self.curriculum(stop)
      lm = curriculum.train_lm()
      projection = None
      if sentiment:
        projection = curriculum.train_sentiment(lm, self._labelled_sentences)
      if until == 'debias':
        if self.config.debias.extended_baseline:
          curriculum.train_debias(lm, method='none')
        for variant in variants:
          if variant.regularised:
            curriculum.train_debias(lm, method=variant.method, weight=variant.weight,
                                    projection=projection)
          else:
            curriculum.train_mitigation(lm, variant, feed=self._augmented_feed(variant))

  def curriculum(self, stop):
    """The curriculum on this run's data and devices."""
    from fairjax.model import parameter_counts, parameter_words
    from fairjax.train import Curriculum
    self.log('[model] ' + parameter_words(parameter_counts(self.model_config)))
    return Curriculum(
      config=dataclasses.replace(self.config, model=self.model_config), workdir=self.workdir,
      feed=self._feed(self.prepared), mesh=self.mesh, stop=stop, log=self.log)

  def _feed(self, prepared) -> PreparedFeed:
    return PreparedFeed(prepared, self.model_config, self.config, self.log)

  def _augmented_feed(self, variant) -> PreparedFeed | None:
    """Batches of counterfactual text for a variant `cda`, in the run's vocabulary; else None.

    The text is prepared in the folder `data-cda-SIDED` beside `data`, when it is first needed.
    """
    from fairjax.train import variant_config, variant_name
    name = variant_name('', variant)
    if variant.method != 'cda' or self._stage(f'debias/{name}') != self.workdir / 'debias' / name:
      return None  # or trained by the run that step1_from names
    return self._feed(self._prepare(
      variant_config(self.config, variant), self.workdir / f'data-{name}',
      vocabulary=self.prepared.vocabulary))

  def _stage(self, name: str) -> pathlib.Path:
    from fairjax.train import stage_folder
    return stage_folder(self.config, self.workdir, name)

  def sample(self) -> None:
    """Continuations of every template and value for every model; held-out prefixes if planted."""
    from fairjax.job.model_measures import run_prefixes
    with self.locked():
      for model, heldout in self._measured:
        self.generate(model, run_prefixes(self.attribute, heldout=heldout),
                       self._generations(model, heldout=heldout))

  def score(self) -> None:
    """Scores every continuation with every scorer, into `scores/`."""
    _ = self._scorers
    with self.locked():
      self._led.lead(self._score)

  def _score(self) -> None:
    from fairjax.measure import score_file, score_records
    for model, heldout in self._measured:
      records = list(self.records(model, heldout=heldout))
      for scorer in self._scorers:
        score_records(records, scorer, score_file(
          self.scores_folder(model, heldout=heldout), self.attribute.name, scorer), log=self.log)
      self.log(f'[score] {model.name}{" held-out" if heldout else ""}: {len(records):,} records')

  def measure(self) -> None:
    """Every metric of every model, into `measures/`."""
    from fairjax.job.model_measures import model_perplexity, run_next_token
    _ = self._scorers, self._encoder
    warning = labelling_warning(labelling(to_dict(self.config), [m.method for m in self.models]))
    if warning:
      self.log(f'[measure] WARNING: {warning}')
    with self.locked():
      for model, heldout in self._measured:
        path, next_token = self.measures_file(model, heldout=heldout), None
        earlier = self._earlier(model, path, heldout=heldout)
        known = earlier.get('measures', {}).get('scorers', ())
        # The first process reads what is there, and says what is left.
        if processes.share(bool(known) and all(s.name in known for s in self._scorers)):
          self.log(f'[measure] {path.relative_to(self.workdir)} finished earlier: nothing to do')
          continue
        if not processes.share(bool(known)):
          params = self._params(model)  # every process runs the model, the first one does the rest
          next_token = run_next_token(self, params, heldout=heldout)
          earlier = {} if heldout else {'perplexity': {
            split: model_perplexity(self, params, split) for split in ('test', 'test_sensitive')}}
        self._led.lead(functools.partial(
          self._measure, model, path, earlier, next_token, heldout=heldout))
      self._led.lead(lambda: audit_run(
        self.workdir, lambda: self.records(self.models[0]), self.attribute, self._scorers,
        model=BASELINE, texts=self.config.measure.audit_texts, seed=self.config.seed, log=self.log))

  def _earlier(self, model: Model, path: pathlib.Path, *, heldout: bool) -> dict[str, Any]:
    """What was measured before, perhaps under fewer scorers; its sources must be what they were."""
    if not (processes.is_first() and path.exists()):
      return {}
    found = self.read_measures(model, heldout=heldout)
    inventory.check_sources(self.workdir, found['sources'], path)
    return found

  def _measure(self, model, path, earlier, next_token, *, heldout) -> None:
    from fairjax.job.model_measures import content_options
    from fairjax.measure import measure_records
    # The baseline comes first: a threshold that is calibrated to it stands in its measures.
    first = model.name == BASELINE and not heldout
    content = content_options(
      self.config.measure, self._encoder, next_token,
      baseline_threshold=None if first else lambda: self.read_measures(
        self.models[0])['measures']['semantic_similarity']['threshold'])
    parts = path.with_suffix('.parts.jsonl')
    measures = measure_records(
      self.records(model, heldout=heldout), self.attribute, self._scorers,
      permutations=self.config.measure.permutations, seed=self.config.seed,
      scores_directory=self.scores_folder(model, heldout=heldout), parts=parts, content=content,
      empty='keep', earlier=earlier.get('measures'))
    write_sealed_json(path, earlier | {
      'identity': self._card(model), 'measures': measures,
      'sources': self._sources(model, heldout=heldout)})
    parts.unlink(missing_ok=True)
    self.log(f'[measure] {model.name}{", held-out prefixes" if heldout else ""}: '
             + '; '.join(f"{name} I.F. {estimate_words(m['individual_fairness'])}"
                         for name, m in measures['scorers'].items()))

  def report(self) -> None:
    """`report/index.html`, `report.md`, `report.json` and figures from what was measured."""
    with self.locked():
      if processes.is_first():
        self._report()
      processes.share()

  def _report(self) -> None:
    from fairjax.job.report_parts import evidence, known_bias, model_rows, notes, read_curves
    from fairjax.report import paired_samples, read_human, write_report
    rows = model_rows(self)
    first = next(iter(rows[0].measures['scorers'].values()))
    curves, lost = read_curves(self)
    path = write_report(
      self.workdir / 'report', rows=rows, attribute=self.attribute.name,
      config=to_dict(self.config), versions=installed_versions(),
      seeds={'run': self.config.seed, 'data': self.config.data.seed,
             'sampling': self.config.sample.seed},
      relevance_share=self.config.measure.relevance_share,
      curves=curves, known_bias=known_bias(self), notes=[*notes(self), *lost],
      human=read_human(self.workdir / 'measures' / 'human.json'), audit=read_audit(self.workdir),
      evidence=evidence(self, rows),
      paired=paired_samples({m.name: self.records(m) for m in self.models},
                            values=first['largest_pairs'][0]['values']))
    inventory.refresh(self.workdir, inventory.REPORT)
    self.log(f'[report] {path} and {path.with_name("index.html")}')

  def locked(self) -> contextlib.AbstractContextManager:
    """The lock of the workdir; the first process holds it for its group."""
    return self._lock if processes.is_first() else contextlib.nullcontext()

  def _labelled_sentences(self):
    """Sentences of the training documents with a clear score (H-19), in a seeded order.

    The first process chooses them for its group: scores may be paid for.
    """
    from fairjax.job.labelling import label_sentences
    stage, led = self.config.sentiment, LedModels()  # which leaves the devices when this ends
    scorer = self._scorer(stage.scorer, led)
    found = led.lead(lambda: label_sentences(
      self.prepared.documents('train'), scorer, self.prepared.vocabulary, stage,
      seed=self.config.seed, log=self.log))
    return share_sentences(found, self.workdir / 'sentiment' / 'sentences.npz')

  @property
  def has_heldout(self) -> bool:
    """Whether held-out prefixes of the planted grammar are continued too."""
    return self.config.data.source == 'planted' and self.config.sample.heldout_prefixes

  @property
  def _measured(self) -> list[tuple[Model, bool]]:
    """(model, held-out prefixes?) of every file of generations."""
    found = [(model, False) for model in self.models]
    return found + ([(self.models[0], True)] if self.has_heldout else [])

  @functools.cached_property
  def _scorers(self) -> list:
    from fairjax.measure.scorer_audit import check_scorers
    found = [self._scorer(name, self._led) for name in self.config.measure.scorers]
    if processes.is_first():
      check_scorers(found)
    return found

  @functools.cached_property
  def _encoder(self):
    from fairjax.job.model_measures import run_encoder
    on_all = self.config.measure.encoder.partition(':')[0] == 'minilm'
    if not (on_all or processes.is_first()):
      return None
    encoder = run_encoder(self.config, together=processes.count() > 1)
    return self._led.add(encoder, 'encode') if on_all else encoder

  def _scorer(self, name: str, led: LedModels):
    """A scorer; None in a process that takes no part in it."""
    on_all = name.partition(':')[0] == 'bert'
    if not (on_all or processes.is_first()):
      return None
    scorer = load_run_scorer(name, self.config, self.workdir, self.log,
                             together=processes.count() > 1)
    return led.add(scorer, 'score') if on_all else scorer

  def _card(self, model: Model) -> dict[str, Any]:
    from fairjax.train import done_card
    require_file(model.directory / 'DONE', made_by='train')
    card = done_card(model.directory)
    return card['identity'] | {'digest': card['digest'], 'model': model.name}

  def params(self, name: str):
    """Parameters of a trained language model of this run, on its devices."""
    found = {model.name: model for model in self.models}
    if name not in found:
      raise unknown_name('model', name, found)
    return self._params(found[name])

  def _params(self, model: Model):
    from fairjax.train import load_params, params_template
    return load_params(model.directory, params_template(self.model_config, self.mesh))

  def _generations(self, model: Model, *, heldout: bool = False) -> pathlib.Path:
    return self.workdir / 'generations' / model.name / (
      f'{self.attribute.name}{".heldout" if heldout else ""}.jsonl.gz')

  def scores_folder(self, model: Model, *, heldout: bool) -> pathlib.Path:
    """Folder of the score files of what a model wrote."""
    return self.workdir / 'scores' / model.name / ('heldout' if heldout else '')

  def measures_file(self, model: Model, *, heldout: bool = False) -> pathlib.Path:
    """Where `measure` writes what it finds about a model."""
    name = f'{self.attribute.name}{".heldout" if heldout else ""}.json'
    return self.workdir / 'measures' / model.name / name

  def _sources(self, model: Model, *, heldout: bool) -> dict[str, str]:
    """Digests of the files that a model's measures are made from, by name."""
    paths = [self._generations(model, heldout=heldout), *sorted(
      self.scores_folder(model, heldout=heldout).glob(f'{self.attribute.name}.*'))]
    return inventory.file_digests(
      self.workdir, [p.relative_to(self.workdir).as_posix() for p in paths])

  def generate(
    self, model: Model, prefixes: list[Prefix], path: pathlib.Path, *,
    attribute: Attribute | None = None, sample: SampleConfig | None = None, coupled: bool = True,
  ) -> None:
    """Continuations of prefixes by one model, beside them the divergence of its next token."""
    from fairjax.generate import generate
    from fairjax.job.next_token_file import write_next_token
    from fairjax.model.decoding import TransformerXLDecoder
    parts = (self._params(model), TransformerXLDecoder(self.model_config),
             self.prepared.vocabulary, attribute or self.attribute)
    how: dict[str, Any] = {
      'prefixes': prefixes, 'mesh': self.mesh if self.mesh.size > 1 else None,
      'log': lambda line: self.log(f'[sample] {line}')}
    generate(*parts, path=path, model=model.name, sample=sample or self.config.sample,
             card=self._card(model), coupled=coupled, **how)
    write_next_token(path, *parts, **how)

  def records(self, model: Model, *, heldout: bool = False) -> Iterator[Mapping[str, Any]]:
    """What a model of the run wrote."""
    from fairjax.generate import check_complete, read_records
    path = require_file(self._generations(model, heldout=heldout), made_by='sample')
    check_complete(path)
    return read_records(path, repair=True)  # older runs wrote the NUL of their samples

  def read_measures(self, model: Model, *, heldout: bool = False) -> dict[str, Any]:
    """What `measure` wrote for a model."""
    path = require_file(self.measures_file(model, heldout=heldout), made_by='measure')
    return read_sealed_json(path, again='delete it, and run fairjax measure again')
