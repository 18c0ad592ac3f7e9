"""What the report of a run shows beside its measures: curves, the planted bias, notes."""

from typing import Any

from fairjax.errors import Damaged


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
