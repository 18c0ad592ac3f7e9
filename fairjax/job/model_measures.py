"""What is read from the models of a run themselves: perplexity, next tokens, S.S. beside them."""

import dataclasses
from collections.abc import Callable
from typing import Any

from fairjax.config import Config, MeasureConfig
from fairjax.counterfactual import Attribute, Prefix
from fairjax.measure.content import ContentOptions


def run_encoder(config: Config, *, together: bool = False):
  """The sentence encoder of a run, None if it names none.

  With `together` a model of JAX runs on the devices of all processes.

  Raises:
    UserError: what it needs is missing; the line says how to install it.
  """
  if not config.measure.encoder:
    return None
  from fairjax.measure.encoders import load_encoder
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
  from fairjax.job.next_token_file import model_divergence
  from fairjax.model.decoding import TransformerXLDecoder
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
  from fairjax.data.streams import eval_batches
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
