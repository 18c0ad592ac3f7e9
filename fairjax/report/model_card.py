"""The model card of an exported model: README.md with YAML front matter, as model hubs read it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.errors import UserError
from fairjax.report import sections
from fairjax.report.comparison import ModelRow, count_scorers, scorer_names
from fairjax.report.content import LEGEND, absent_lines, measured
from fairjax.report.markdown import Table, code_block, escape

# What hubs accept: a language code, an identifier, the (owner and) name of a dataset.
_KINDS = {'language': (r'[a-z]{2,3}(-[A-Za-z0-9]{2,8})*', 'a code such as en or de'),
          'license': (r'[a-z0-9][a-z0-9.+-]*', 'an identifier such as apache-2.0'),
          'dataset': (r'[\w.-]+(/[\w.-]+)?', 'the name of a dataset, or OWNER/NAME')}


def front_matter(
  *, languages: Sequence[str], license: str | None, datasets: Sequence[str], tags: Sequence[str],
  metrics: Sequence[str],
) -> dict[str, Any]:
  """The keys of the front matter, without those that nobody has said anything about.

  Args:
    languages: of the training text.
    license: identifier; None: the card states none, since only its owner can give one.
    datasets: names under which the training text is published.
    tags: words to find the model by.
    metrics: names of what was measured.

  Raises:
    UserError: a language, license or dataset that no hub would accept.
  """
  given = {'language': languages, 'license': [] if license is None else [license],
           'dataset': datasets}
  for kind, words in given.items():
    pattern, example = _KINDS[kind]
    for word in words:
      if not re.fullmatch(pattern, word):
        raise UserError(f'--{kind}={word} is not {example}')
  found = {'language': list(languages), 'license': license, 'library_name': 'fairjax',
           'pipeline_tag': 'text-generation', 'tags': list(tags), 'datasets': list(datasets),
           'metrics': list(metrics)}
  return {key: value for key, value in found.items() if value}


def model_card(
  front: Mapping[str, Any], *, title: str, what: str, usage: str,
  origin: Sequence[tuple[str, str]], files: Sequence[tuple[str, str]], rows: Sequence[ModelRow],
  validation: Mapping[str, float],
) -> str:
  """The card as Markdown.

  Args:
    front: of `front_matter`.
    title: heading, plain text.
    what: sentences on what the model is, plain text.
    usage: commands.
    origin: (name, value) of stage, method, data and settings.
    files: (name, what it is).
    rows: what was measured: the model last, before it the baseline it is compared with; empty if
      nothing was.
    validation: metrics of the training's end on its validation split.
  """
  import yaml
  head = yaml.safe_dump(dict(front), sort_keys=False, allow_unicode=True)
  parts = [f'---\n{head}---', f'# {escape(title)}', escape(what), code_block(usage, 'bash'),
           '## Training', Table(['what', 'value'], origin, text_columns=2).markdown(),
           '## What was measured']
  if validation:
    parts.append(escape('At the end of the training, on its validation split: ' + ', '.join(
      f'{name} {value:.4g} by token' for name, value in validation.items()) + '.'))
  if rows:
    legend = ' '.join(' '.join([sections.LEGEND, *(LEGEND[n] for n in measured(rows))]).split())
    parts += [sections.main_table(rows).markdown(), escape(legend),
              *map(escape, absent_lines(rows))]
    if count_scorers(rows) == 1:
      parts.append(escape(f"One scorer only ({', '.join(scorer_names(rows))}): its own bias cannot "
                          "be told from the model's."))
  else:
    parts.append('The bias of what this model writes was not measured.')
  parts += ['## Limits', '\n'.join(f'- {escape(x)}' for x in (
    *sections.LIMITS, 'The model writes text that may be wrong or offensive.'))]
  if 'license' not in front:
    parts += ['## License', 'None was stated when the model was exported.']
  parts += ['## Files', Table(['file', 'what'], files, text_columns=2).markdown()]
  return '\n\n'.join(parts) + '\n'
