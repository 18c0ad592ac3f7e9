"""The main job: data, curriculum, sampling, scores, measures and report in one workdir.

Every part is resumable: the same command continues it. This module only connects the rooms; what
they do stands in them.
"""

import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import fairjax
from fairjax.config import MACHINE_FIELDS, Config, ModelConfig, parse_variant
from fairjax.config_files import config_differences, to_dict
from fairjax.counterfactual import Prefix, load_attribute
from fairjax.errors import UserError, unknown_name
from fairjax.feed import PreparedFeed
from fairjax.files import write_json
from fairjax.run_scorers import load_run_scorer
from fairjax.verbs import require_file, versions

BASELINE = 'baseline'
# Fields on which nothing that is already in a workdir depends.
_EXTENDS = ('until', 'debias.variants', 'debias.extended_baseline')


def print_line(line: str) -> None:
  """Prints at once, also into a pipe."""
  print(line, flush=True)


@dataclasses.dataclass(frozen=True)
class Model:
  """One language model of the run."""

  name: str
  directory: pathlib.Path  # of its stage
  method: str  # baseline | extended_baseline | embedding | sentiment
  weight: float | None = None  # lambda


class Job:
  """One run in one workdir.

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
    self.config, self.workdir, self.log = config, pathlib.Path(workdir), log
    self.attribute = load_attribute(config.attribute)
    self._open()

  def run(self) -> None:
    """Does everything that is not done yet."""
    done, report = self.workdir / 'DONE', self.workdir / 'report' / 'report.md'
    if done.exists():
      self.log(f'{self.workdir} is finished: nothing to do. Report: {report}')
      return
    _ = self._scorers  # what a scorer lacks must not wait for the end of the training
    self.train()
    self.sample()
    self.measure()
    self.report()
    write_json(done, {'fairjax': fairjax.__version__})

  @functools.cached_property
  def prepared(self):
    """Vocabulary and token stores (`PreparedData`); made if they are missing."""
    from fairjax.data.prepare import prepare_data
    return prepare_data(
      self.config, self.workdir / 'data', attribute=self.attribute, log=self.log)

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
    from fairjax.train import debias_name
    found = [Model(BASELINE, self.workdir / 'lm', BASELINE)]
    if self.config.until != 'debias':
      return found
    if self.config.debias.extended_baseline:
      name = debias_name(self.attribute.name, 'none', 0.0)
      found.append(Model(name, self.workdir / 'debias' / name, 'extended_baseline'))
    for method, weight in map(parse_variant, self.config.debias.variants):
      name = debias_name(self.attribute.name, method, weight)
      found.append(Model(name, self.workdir / 'debias' / name, method, weight))
    return found

  def train(self, until: str | None = None) -> None:
    """The curriculum up to and with a stage (`lm`, `sentiment`, `debias`; None: the config's)."""
    from fairjax.train import StopSignal
    until = until or self.config.until
    variants = [parse_variant(v) for v in self.config.debias.variants]
    sentiment = until == 'sentiment' or (
      until == 'debias' and any(method == 'sentiment' for method, _ in variants))
    if sentiment and not (self.workdir / 'sentiment' / 'DONE').exists():
      self._scorer(self.config.sentiment.scorer)  # what it lacks must not wait for step 1
    with StopSignal().installed() as stop:
      curriculum = self.curriculum(stop)
      lm = curriculum.train_lm()
      projection = None
      if sentiment:
        projection = curriculum.train_sentiment(lm, self._labelled_sentences)
      if until == 'debias':
        if self.config.debias.extended_baseline:
          curriculum.train_debias(lm, method='none')
        for method, weight in variants:
          curriculum.train_debias(lm, method=method, weight=weight, projection=projection)

  def curriculum(self, stop):
    """The curriculum on this run's data and devices."""
    from fairjax.model import parameter_counts
    from fairjax.train import Curriculum
    self.log('[model] ' + parameter_words(parameter_counts(self.model_config)))
    feed = PreparedFeed(self.prepared, self.model_config, self.config, self.log)
    return Curriculum(
      config=dataclasses.replace(self.config, model=self.model_config), workdir=self.workdir,
      feed=feed, mesh=self.mesh, stop=stop, log=self.log)

  def sample(self) -> None:
    """Continuations of every template and value for every model; held-out prefixes if planted."""
    for model in self.models:
      self._generate(model, self.attribute.prefixes(), self._generations(model))
      if self._has_heldout and model.name == BASELINE:
        from fairjax.data.planted import heldout_prefixes
        prefixes = [Prefix(*p) for p in heldout_prefixes(self.attribute)]
        self._generate(model, prefixes, self._generations(model, heldout=True))

  def score(self) -> None:
    """Scores every continuation with every scorer, into `scores/`."""
    from fairjax.measure import score_file, score_records
    for model, heldout in self._measured:
      records = list(self._records(model, heldout=heldout))
      for scorer in self._scorers:
        score_records(records, scorer, score_file(
          self._scores(model, heldout=heldout), self.attribute.name, scorer), log=self.log)
      self.log(f'[score] {model.name}{" held-out" if heldout else ""}: {len(records):,} records')

  def measure(self) -> None:
    """Every metric of every model, into `measures/`."""
    from fairjax.measure import measure_records
    for model, heldout in self._measured:
      path = self._measures(model, heldout=heldout)
      if path.exists():
        self.log(f'[measure] {path.relative_to(self.workdir)} finished earlier: nothing to do')
        continue
      measures = measure_records(
        self._records(model, heldout=heldout), self.attribute, self._scorers,
        permutations=self.config.measure.permutations, seed=self.config.seed,
        scores_directory=self._scores(model, heldout=heldout))
      result = {'identity': self._card(model), 'measures': measures}
      if not heldout:
        result['perplexity'] = {s: self._perplexity(model, s) for s in ('test', 'test_sensitive')}
      write_json(path, result)
      self.log(f'[measure] {model.name}{", held-out prefixes" if heldout else ""}: '
               + '; '.join(_fairness_words(name, m) for name, m in measures['scorers'].items()))

  def report(self) -> None:
    """`report/report.md`, `report.json` and figures from what was measured."""
    from fairjax.report import ModelRow, paired_samples, read_human, write_report
    rows = []
    for model in self.models:
      saved = self._read_measures(model)
      rows.append(ModelRow(
        name=model.name, method=model.method, weight=model.weight, measures=saved['measures'],
        perplexity=saved['perplexity']['test'],
        subset_perplexity=saved['perplexity']['test_sensitive']))
    first = next(iter(rows[0].measures['scorers'].values()))
    path = write_report(
      self.workdir / 'report', rows=rows, attribute=self.attribute.name,
      config=to_dict(self.config), versions=versions(),
      seeds={'run': self.config.seed, 'data': self.config.data.seed,
             'sampling': self.config.sample.seed},
      curves=self._curves(), known_bias=self._known_bias(), notes=self._notes(),
      human=read_human(self.workdir / 'measures' / 'human.json'),
      paired=paired_samples({m.name: self._records(m) for m in self.models},
                            values=first['largest_pairs'][0]['values']))
    self.log(f'[report] {path}')

  def _open(self) -> None:
    """Writes `config.json` at the first start; later compares it."""
    path, current = self.workdir / 'config.json', to_dict(self.config)
    if self.workdir.exists() and not self.workdir.is_dir():
      raise UserError(f'--workdir={self.workdir} is a file: name a folder')
    if path.exists():
      saved = json.loads(path.read_text(encoding='utf-8'))['config']
      changed = config_differences(saved, json.loads(json.dumps(current)))
      fields = [c.partition(':')[0] for c in changed]
      refused = [c for c, field in zip(changed, fields, strict=True)
                 if field not in MACHINE_FIELDS + _EXTENDS]
      if refused:
        raise UserError(f'{self.workdir} belongs to a run with another configuration: '
                        f'{"; ".join(refused)}. Use another --workdir, or the saved values')
      if not changed:
        return
      self.log(f'{self.workdir} goes on with {"; ".join(changed)}')
      if not set(fields) <= set(MACHINE_FIELDS):
        (self.workdir / 'DONE').unlink(missing_ok=True)
    write_json(path, {'config': current, 'versions': versions()})

  def _labelled_sentences(self):
    """Sentences of the training documents with a clear score (H-19), in a seeded order."""
    from fairjax.labelling import label_sentences
    stage = self.config.sentiment
    return label_sentences(
      self.prepared.documents('train'), self._scorer(stage.scorer),
      self.prepared.vocabulary, stage, seed=self.config.seed, log=self.log)

  @property
  def _has_heldout(self) -> bool:
    return self.config.data.source == 'planted' and self.config.sample.heldout_prefixes

  @property
  def _measured(self) -> list[tuple[Model, bool]]:
    """(model, held-out prefixes?) of every file of generations."""
    found = [(model, False) for model in self.models]
    return found + ([(self.models[0], True)] if self._has_heldout else [])

  @functools.cached_property
  def _scorers(self) -> list:
    from fairjax.measure.scorer_audit import check_names
    found = [self._scorer(name) for name in self.config.measure.scorers]
    check_names([scorer.name for scorer in found])
    return found

  def _scorer(self, name: str):
    return load_run_scorer(name, self.config, self.workdir, self.log)

  def _card(self, model: Model) -> dict[str, Any]:
    """Identity and digest of a trained model."""
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
    name = f'{self.attribute.name}{".heldout" if heldout else ""}.jsonl.gz'
    return self.workdir / 'generations' / model.name / name

  def _scores(self, model: Model, *, heldout: bool) -> pathlib.Path:
    return self.workdir / 'scores' / model.name / ('heldout' if heldout else '')

  def _measures(self, model: Model, *, heldout: bool = False) -> pathlib.Path:
    name = f'{self.attribute.name}{".heldout" if heldout else ""}.json'
    return self.workdir / 'measures' / model.name / name

  def _generate(self, model: Model, prefixes: list[Prefix], path: pathlib.Path) -> None:
    from fairjax.generate import generate
    from fairjax.model.decoding import TransformerXLDecoder
    generate(
      self._params(model), TransformerXLDecoder(self.model_config), self.prepared.vocabulary,
      self.attribute,
      prefixes=prefixes, path=path, model=model.name, sample=self.config.sample,
      card=self._card(model), mesh=self.mesh if self.mesh.size > 1 else None,
      log=lambda line: self.log(f'[sample] {line}'))

  def _records(self, model: Model, *, heldout: bool = False) -> Iterator[Mapping[str, Any]]:
    from fairjax.generate import read_records
    return read_records(
      require_file(self._generations(model, heldout=heldout), made_by='sample'))

  def _perplexity(self, model: Model, split: str) -> dict[str, Any] | None:
    """Perplexity of a split (H-25); None if the split holds no document."""
    from fairjax.data.streams import eval_batches
    from fairjax.measure import Perplexity
    from fairjax.train import evaluate_nll
    store = self.prepared.store(split)
    if not store.documents:
      self.log(f'[measure] {split} holds no document: no perplexity')
      return None
    batches = eval_batches(store, batch_size=self.config.measure.eval_batch_size,
                           segment_len=self.model_config.segment_len)
    nll, tokens = evaluate_nll(self.model_config, self._params(model), batches, self.mesh)
    return Perplexity(nll=nll, tokens=tokens, words=store.words, num_bytes=store.num_bytes,
                      documents=store.documents).to_dict()

  def _read_measures(self, model: Model, *, heldout: bool = False) -> dict[str, Any]:
    path = require_file(self._measures(model, heldout=heldout), made_by='measure')
    return json.loads(path.read_text(encoding='utf-8'))

  def _curves(self) -> dict[str, dict[str, list]]:
    from fairjax.train import read_metrics
    curves = {'lm': {BASELINE: read_metrics(self.workdir / 'lm' / 'metrics.jsonl')}}
    sentiment = read_metrics(self.workdir / 'sentiment' / 'metrics.jsonl')
    if sentiment:
      curves['sentiment'] = {'f_sh': sentiment}
    debias = {m.name: read_metrics(m.directory / 'metrics.jsonl') for m in self.models[1:]}
    return curves | ({'debias': debias} if debias else {})

  def _known_bias(self):
    """Closed form beside what was measured on held-out prefixes of the grammar."""
    if not self._has_heldout:
      return None
    from fairjax.data import planted
    from fairjax.report import KnownBias
    strength = self.config.data.planted_strength
    measures = self._read_measures(self.models[0], heldout=True)['measures']
    counts = {1: 1.0} if self.config.sample.sentence_end else planted.HELDOUT_OPINION_COUNTS
    return KnownBias(
      individual_fairness=planted.true_individual_fairness(self.attribute, strength=strength),
      group_fairness=planted.true_group_fairness(
        self.attribute, strength=strength, opinion_counts=counts),
      scorer=next(iter(measures['scorers'])), measures={BASELINE: measures})

  def _notes(self) -> list[str]:
    from fairjax.train import done_card
    card = done_card(self.workdir / 'sentiment')
    if card is None:
      return []
    found = card['summary']
    return [f"Sentiment projection f_sh on {found['sentences']:.0f} held-out sentences (H-19): "
            f"F1 {found['f1']:.3f}, accuracy {found['accuracy']:.3f} (always the more frequent "
            f"class: {found['majority']:.3f})" + (
              f"; at random prefixes, as step 3 reads it, F1 {found['prefix_f1']:.3f}, accuracy "
              f"{found['prefix_accuracy']:.3f}." if 'prefix_f1' in found else '.')]


def parameter_words(counts: Mapping[str, int]) -> str:
  """The size of a model in words.

  >>> parameter_words({'total': 1_500_000, 'layers': 1_000_000, 'embedding': 500_000})
  '1.5 M parameters: 1.0 M in the layers, 0.5 M in embedding and softmax'
  """
  total, layers, embedding = (counts[k] / 1e6 for k in ('total', 'layers', 'embedding'))
  return (f'{total:.1f} M parameters: {layers:.1f} M in the layers, {embedding:.1f} M in embedding '
          'and softmax')


def _fairness_words(scorer: str, measures: Mapping[str, Any]) -> str:
  found = measures['individual_fairness']
  return f'{scorer} I.F. {found["value"]:.4f} (null floor {found["null_mean"]:.4f})'
