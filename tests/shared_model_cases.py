"""One of several processes that score together: `ADDRESS,COUNT,INDEX FOLDER OUTPUT`.

The first one decides what is scored; what it got is in the output. Then it fails.
"""

import pathlib
import sys

import numpy as np

from fairjax import processes
from fairjax.errors import UserError
from fairjax.measure import load_scorer, score_texts
from fairjax.measure.similarity import load_encoder
from fairjax.run.workdir import SharedModels

# Enough to fill batches of all six devices, 2,048 tokens each: less would leave them to the first.
TEXTS = [f'{"the film " * (i % 9)}was {word} {i}' for i in range(300)
         for word in ('good', 'sad', '\ud800 half', 'a man and a woman')]


def run(
  models: SharedModels, golden: pathlib.Path, output: pathlib.Path, *, together=False
) -> None:
  """Scores and vectors of the texts, chunk by chunk, and what was cut."""
  scorer = models.add(load_scorer(
    f'bert:{golden / "bert_classifier"}', together=together), 'score')
  encoder = models.add(load_encoder(
    f'minilm:{golden / "bert_mlm"}', together=together), 'encode')

  def work():
    scores = score_texts(TEXTS, scorer, output.with_suffix('.jsonl'), chunk=1000)
    again = score_texts(TEXTS, scorer, output.with_suffix('.jsonl'), chunk=1000)
    np.testing.assert_array_equal(scores, again)
    np.savez(output, scores=scores, vectors=encoder.encode(TEXTS[:1000]), none=encoder.encode([]),
             cut=[scorer.count_truncated(TEXTS), encoder.count_truncated(TEXTS)])
    return len(scores)

  print('shared', models.lead(work), flush=True)
  if processes.count() > 1 and processes.is_first():
    try:
      scorer.score(TEXTS)
    except RuntimeError as e:
      print(e, flush=True)


def main() -> int:
  processes.start(sys.argv[1])
  models = SharedModels()
  run(models, pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), together=True)
  processes.agree(True)  # all have printed

  def fails():
    raise UserError('a score file is damaged')

  try:
    models.lead(fails)
  except UserError as e:
    print(e, flush=True)
    return processes.leave(2)
  return processes.leave(0)


if __name__ == '__main__':
  sys.exit(main())
