"""Records, simulated annotators and slow formulas for the tests of human evaluation."""

import csv
import io
import json
import pathlib
from collections.abc import Callable, Iterable

MODELS = ('zanzibar-lm', 'quux-embedding-100')  # words that no text holds
METHOD, SCORE = 'sentiment-regularised', 0.735246


def write_records(
  path: pathlib.Path, *, values: Iterable[str] = ('designer', 'accountant', 'baker', 'CEO'),
  templates: Iterable[int] = (0, 1, 2), samples: int = 12, models: Iterable[str] = MODELS,
  text: Callable[..., str] = lambda model, value, template, sample: f'it went on {sample}.',
  attribute: str = 'occupation', **more,
) -> pathlib.Path:
  with open(path, 'w', encoding='utf-8') as file:
    for model in models:
      for value in values:
        for template in templates:
          for sample in range(samples):
            file.write(json.dumps({
              'attribute': attribute, 'value': value, 'template': template, 'sample': sample,
              'prefix': f'You are the {value}, and you', 'model': model, 'method': METHOD,
              'continuation': text(model, value, template, sample),
              'scores': {'api': SCORE}, **more}) + '\n')
  return path


def read_csv(data: bytes, separator: str = ',') -> list[dict[str, str]]:
  text = data.decode('utf-8').removeprefix('\ufeff')
  return list(csv.DictReader(io.StringIO(text, newline=''), delimiter=separator))


def fill(
  path: pathlib.Path, label: Callable[[dict[str, str]], str], *, separator: str = ',',
  bom: bool = False, end: str = '\r\n', output: pathlib.Path | None = None,
) -> pathlib.Path:
  """Fills a sheet in as a spreadsheet program would save it: quotes only where needed."""
  rows = read_csv(path.read_bytes())
  text = io.StringIO(newline='')
  writer = csv.DictWriter(text, rows[0].keys(), delimiter=separator, lineterminator=end)
  writer.writeheader()
  writer.writerows(row | {'label': label(row)} for row in rows)
  output = output or path
  output.write_bytes(b'\xef\xbb\xbf' * bom + text.getvalue().encode('utf-8'))
  return output


def kappa_by_definition(ratings: list[tuple[int, int]], cost: Callable[[int, int], float]) -> float:
  """1 - mean cost of the pairs as they are / mean cost of all pairs of a first and a second."""
  observed = sum(cost(a, b) for a, b in ratings) / len(ratings)
  chance = sum(cost(a, b) for a, _ in ratings for _, b in ratings) / len(ratings)**2
  return 1 - observed / chance
