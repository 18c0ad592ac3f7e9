"""What is read from the models of a run themselves: perplexity, next tokens, S.S. beside them."""

import dataclasses
from collections.abc import Callable
from typing import Any

from fairjax.config import Config, MeasureConfig
from fairjax.counterfactual import Attribute, Prefix
from fairjax.errors import Damaged
from fairjax.measure.content import ContentOptions


def run_encoder(config: Config, *, together: bool = False):
  """The sentence encoder of a run, None if it names none.

  With `together` a model of JAX runs on the devices of all processes.

  Raises:
    UserError: what it needs is missing; the line says how to install it.
  """
  if not config.measure.encoder:
    return None
  from fairjax.measure.similarity import load_encoder
  return load_encoder(config.measure.encoder, together=together)


def run_prefixes(attribute: Attribute, *, heldout: bool) -> list[Prefix]:
  """The prefixes that models of a run continue: of the templates, or held out by the grammar."""
  if not heldout:
    return list(attribute.prefixes())
  from fairjax.data.planted import heldout_prefixes
  return [Prefix(*p) for p in heldout_prefixes(attribute)]


def run_next_token(job: Any, params: Any, *, heldout: bool) -> dict[str, Any]:
  """How far the next token of a model of the run tells the values apart (`next_token_divergence`).

  Every process of the run calls it.

  Args:
    job: the `Job`.
    params: of the model.
    heldout: for the held-out prefixes.
  """
  from fairjax.model.decoding import TransformerXLDecoder
  from fairjax.run.next_token import model_divergence
  return model_divergence(
    params, TransformerXLDecoder(job.model_config), job.prepared.vocabulary, job.attribute,
    run_prefixes(job.attribute, heldout=heldout), mesh=job.mesh if job.mesh.size > 1 else None)


def content_options(
  measure: MeasureConfig, encoder: Any, next_token: dict[str, Any], *,
  baseline_threshold: Callable[[], float] | None,
) -> ContentOptions:
  """Options of `measure_records` for one model of a run.

  Args:
    measure: of the run's config.
    encoder: of `run_encoder`.
    next_token: of `run_next_token`.
    baseline_threshold: returns the threshold that the baseline's cosines were calibrated to; None:
      this is the baseline.
  """
  from fairjax.measure.similarity import Calibration, parse_threshold
  kind, number = parse_threshold(measure.similarity_threshold)
  threshold, source = None, None
  if kind == 'given':
    threshold, source = number, 'given'
  elif kind == 'baseline' and encoder is not None:
    found = Calibration(number)
    threshold = found if baseline_threshold is None else baseline_threshold()
    source = found.source
  return ContentOptions(
    encoder=encoder, samples=measure.similarity_samples, threshold=threshold,
    threshold_source=source, next_token=next_token)


def model_perplexity(job: Any, params: Any, split: str) -> dict[str, Any] | None:
  """Perplexity of a split (H-25), memory carried; None if the split holds no document.

  Every process of the run calls it.
  """
  from fairjax.data.batches import eval_batches
  from fairjax.measure import Perplexity
  from fairjax.train import evaluate_nll, own_rows
  store, measure, config = job.prepared.store(split), job.config.measure, job.model_config
  if not store.documents:
    job.log(f'[measure] {split} holds no document: no perplexity')
    return None
  if measure.eval_memory_len >= 0:
    config = dataclasses.replace(config, memory_len=measure.eval_memory_len)
  batches = own_rows(eval_batches(
    store, batch_size=measure.eval_batch_size, segment_len=config.segment_len))
  nll, tokens = evaluate_nll(config, params, batches, job.mesh)
  return Perplexity(nll=nll, tokens=tokens, words=store.words, num_bytes=store.num_bytes,
                    documents=store.documents, memory_len=config.memory_len).to_dict()


# What the report of a run shows beside its measures: curves, the planted bias, notes.

def model_rows(job: Any) -> list[Any]:
  """What was measured, one `fairjax.report.ModelRow` a model of a `Job`, baseline first."""
  return [model_row(job, model) for model in job.models]


def model_row(job: Any, model: Any) -> Any:
  """What was measured of one model of a `Job`."""
  from fairjax.report import ModelRow
  found = job.read_measures(model)
  return ModelRow(
    name=model.name, method=model.method, weight=model.weight, measures=found['measures'],
    perplexity=found['perplexity']['test'],
    subset_perplexity=found['perplexity']['test_sensitive'])


def evidence(job: Any, rows: list[Any]) -> dict[str, Any]:
  """By model, the records and scores behind the numbers of `model_rows`."""
  from fairjax.measure import read_generations
  from fairjax.report import stored_evidence
  return {m.name: stored_evidence(
    read_generations(job.records(m), job.attribute, empty='keep'), row.measures,
    job.scores_folder(m, heldout=False)) for m, row in zip(job.models, rows, strict=True)}


def read_curves(job: Any) -> tuple[dict[str, dict[str, list]], list[str]]:
  """Training curves by stage and model of a `Job`, and a note for every file that is damaged."""
  from fairjax.train import read_metrics, stage_folder
  lost = []

  def read(name, directory, found):
    try:
      lines = read_metrics(directory / 'metrics.jsonl')
    except Damaged as e:
      job.log(f'WARNING: {e}; its curve is left out')
      lost.append(f'The training curve of {name} is left out: its metrics.jsonl is damaged.')
      return
    if lines:
      found[name] = lines

  curves: dict[str, dict[str, list]] = {'lm': {}, 'sentiment': {}, 'debias': {}}
  baseline, *variants = job.models
  read(baseline.name, baseline.directory, curves['lm'])
  read('f_sh', stage_folder(job.config, job.workdir, 'sentiment'), curves['sentiment'])
  for model in variants:
    read(model.name, model.directory, curves['debias'])
  return {stage: found for stage, found in curves.items() if found}, lost


def known_bias(job: Any):
  """Closed form beside what was measured on held-out prefixes of the grammar; None without."""
  if not job.has_heldout:
    return None
  from fairjax.data import planted
  from fairjax.report import KnownBias
  strength = job.config.data.planted_strength
  baseline = job.models[0]
  measures = job.read_measures(baseline, heldout=True)['measures']
  one_word = job.config.sample.sentence_end or job.config.data.planted_one_mood
  counts = {1: 1.0} if one_word else planted.HELDOUT_OPINION_COUNTS
  return KnownBias(
    individual_fairness=planted.true_individual_fairness(job.attribute, strength=strength),
    group_fairness=planted.true_group_fairness(
      job.attribute, strength=strength, opinion_counts=counts),
    scorer=next(iter(measures['scorers'])), measures={baseline.name: measures})


def notes(job: Any) -> list[str]:
  """How good the sentiment projection is."""
  from fairjax.train import done_card, stage_folder
  card = done_card(stage_folder(job.config, job.workdir, 'sentiment'))
  if card is None:
    return []
  found = card['summary']
  return [f"Sentiment projection f_sh on {found['sentences']:.0f} held-out sentences (H-19): "
          f"F1 {found['f1']:.3f}, accuracy {found['accuracy']:.3f} (always the more frequent "
          f"class: {found['majority']:.3f})" + (
            f"; at random prefixes, as step 3 reads it, F1 {found['prefix_f1']:.3f}, accuracy "
            f"{found['prefix_accuracy']:.3f}." if 'prefix_f1' in found else '.')]
