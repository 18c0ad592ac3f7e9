"""Samples of a run's models for prompts that are not the run's own."""

import os
import pathlib

from fairjax.config import SampleConfig
from fairjax.counterfactual import Attribute
from fairjax.job.main_job import Job


def sample_attribute(
  job: Job, attribute: Attribute, folder: str | os.PathLike, sample: SampleConfig, *,
  coupled: bool = True,
) -> list[pathlib.Path]:
  """Continuations of any attribute's prefixes by every model: `MODEL.jsonl.gz` in a folder.

  Words that the run's vocabulary does not know are counted in a line of the log: the models read
  them as unknown.

  Args:
    job: the run.
    attribute: whose prefixes.
    folder: where the files go; the same call continues them.
    sample: how many, how long.
    coupled: the values' samples share their noise.
  """
  vocabulary, texts = job.prepared.vocabulary, [p.text for p in attribute.prefixes()]
  unknown = [text for text in texts if vocabulary.unk_id in vocabulary.encode(text)]
  if unknown:
    job.log(f"[sample] WARNING: {len(unknown)} of {len(texts)} prefixes of "
            f"{attribute.name} hold words that the vocabulary does not know, as '{unknown[0]}'")
  paths = [pathlib.Path(folder) / f'{model.name}.jsonl.gz' for model in job.models]
  with job.locked():
    for model, path in zip(job.models, paths, strict=True):
      job.generate(model, list(attribute.prefixes()), path, attribute=attribute, sample=sample,
                   coupled=coupled)
  return paths
