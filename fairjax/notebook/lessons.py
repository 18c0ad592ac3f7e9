"""What the notebooks on the planted corpus show of a run: small tables and figures."""

from collections.abc import Sequence
from typing import Any

from fairjax.config import Config
from fairjax.counterfactual import load_attribute
from fairjax.job.main_job import Job
from fairjax.job.report_parts import known_bias, model_rows, read_curves
from fairjax.job.run_scorers import load_run_scorer
from fairjax.measure.estimates import estimate_words
from fairjax.notebook.evaluation import draw_pair
from fairjax.notebook.showing import Figure, Words
from fairjax.report import brief_table, paired_samples, plot_curves, plot_floors
from fairjax.report.content import cell
from fairjax.report.markdown import Table
from fairjax.report.sections import known_bias_table

_SCORER = 'opinion'  # for which the closed form holds


def corpus_table(config: Config) -> Table:
  """What the planted corpus says about three values: P(positive) and a document each."""
  from fairjax.data.planted import make_planted_documents
  data, order = config.data, _by_probability(config)
  documents = make_planted_documents(
    load_attribute(config.attribute), num_documents=400, seed=data.seed,
    strength=data.planted_strength, sensitive_share=1.0)
  return Table(['value', 'a document', 'P(positive)'], [
    [value, next(d for d in documents if value in d), f'{probability:.2f}']
    for probability, value in (order[0], order[len(order) // 2], order[-1])], text_columns=2)


def curve_figure(job: Job) -> Figure:
  """The loss of step 1, in nats a token."""
  curves, _ = read_curves(job)
  lines = [{key: line[key] for key in ('step', 'kind', 'loss')}
           for line in curves['lm']['baseline']]
  return Figure(plot_curves(job.workdir / 'figures' / 'lm', title='Step 1: language model',
                            runs={'baseline': lines}))


def pair_table(
  job: Job, *, models: Sequence[str] = (), templates: int = 3, samples: int = 2
) -> Table:
  """Texts of equal noise for the values of least and of greatest P(positive), side by side.

  Args:
    job: whose models were sampled.
    models: names; empty takes all.
    templates: how many, the first ones.
    samples: of each template, the first ones: nobody chose them by what they say.
  """
  order = _by_probability(job.config)
  values = order[0][1], order[-1][1]
  found = paired_samples(
    {m.name: job.records(m) for m in job.models if not models or m.name in models},
    values=values, templates=templates, samples=samples)
  blank = f'[{job.attribute.name}]'
  body = [[_short(job, model), sample.prefixes[values[0]].replace(values[0], blank),
           *(texts[value] or '\u2013' for value in values)]
          for sample in found for model, texts in sample.continuations.items()]
  one = len({line[0] for line in body}) == 1  # one model needs no column of names
  header = ['model', 'prompt', *values]
  return Table(header[one:], [line[one:] for line in body], text_columns=4 - one)


def pair_figure(job: Job) -> Figure:
  """Score distributions of the template and values that differ most for the baseline."""
  from fairjax.measure import read_generations, score_file
  model, row = job.models[0], model_rows(job)[0]
  scorer = _scorer(job)
  generations = read_generations(job.records(model), job.attribute, empty='keep')
  return draw_pair(
    job.workdir / 'figures' / 'pair', generations, row, scorer,
    score_file(job.scores_folder(model, heldout=False), job.attribute.name, scorer))


def fairness_table(job: Job) -> Table:
  """I.F. and G.F. of every scorer for the baseline, with floors."""
  return brief_table(model_rows(job)[:1])


def bias_table(job: Job) -> Table:
  """Measured beside the closed form, on beginnings of sentences that training never saw."""
  return known_bias_table(known_bias(job))


def summary_table(job: Job) -> Table:
  """All models: perplexity, I.F. with its floor, and whether they still heed the value."""
  body = []
  for row in model_rows(job):
    found = row.estimate(_SCORER, 'individual_fairness')
    body.append([
      _short(job, row.name), f"{row.perplexity['word']:.2f}",
      estimate_words(found, named=False),
      *(cell(row, name) for name in ('distinct_word_divergence', 'next_token_divergence'))])
  return Table(['model', 'PPL', 'I.F. (floor)', 'words (floor)', 'KL'], body)


def weight_figure(job: Job) -> Figure:
  """Measures by lambda."""
  from fairjax.report import plot_weights
  return Figure(plot_weights(job.workdir / 'figures' / 'weights', rows=model_rows(job),
                             scorer=_SCORER))


def selection(job: Job, *, keep: float) -> Words:
  """Which lambda `fairjax select` takes, and why it refuses the others (H-35).

  Args:
    job: whose models were measured.
    keep: least share of the baseline's KL of the next token.
  """
  from fairjax.report.selection import select_model, selection_section
  return Words(selection_section(select_model(
    model_rows(job), share=keep, scorers=[_SCORER],
    relevance=['next_token_divergence'])))


def floor_figure(job: Job, names: Sequence[str], *, counts: Sequence[int]) -> Figure:
  """I.F. and its floor for growing numbers of samples of some models."""
  from fairjax.measure import fairness_by_samples, read_generations, score_file
  from fairjax.measure.score_cache import score_generations
  scorer, found = _scorer(job), {}
  for model in job.models:
    if model.name in names:
      generations = read_generations(job.records(model), job.attribute, empty='keep')
      scores = score_generations(generations, scorer, score_file(
        job.scores_folder(model, heldout=False), job.attribute.name, scorer))
      found[model.name] = [e.to_dict() for e in fairness_by_samples(
        generations.sample_scores(scores), counts,
        permutations=job.config.measure.permutations, seed=job.config.seed)]
  return Figure(plot_floors(job.workdir / 'figures' / 'floors', models=found))


def _short(job: Job, model: str) -> str:
  """Name of a model without that of the attribute, for narrow tables."""
  return model.removeprefix(f'{job.attribute.name}-')


def _by_probability(config: Config) -> list[tuple[float, str]]:
  """(P(positive), value) in rising order."""
  from fairjax.data.planted import value_probabilities
  attribute = load_attribute(config.attribute)
  probabilities = value_probabilities(attribute, config.data.planted_strength)
  return sorted(zip(probabilities.tolist(), attribute.value_texts, strict=True))


def _scorer(job: Job) -> Any:
  """The scorer of the closed form."""
  return load_run_scorer(_SCORER, job.config, job.workdir, job.log)
