"""Hooks of mkdocs: pages made from the code, pages from the root, links out of docs, llms.txt."""

import argparse
import json
import os
import pathlib
import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File
from pymdownx.slugs import slugify

import fairjax
from fairjax.cli.main import make_parser
from fairjax.config import Config
from fairjax.config_io import described_fields

ROOT = pathlib.Path(__file__).parent.parent
# File of the repository -> page of the site.
MOVED = {'README.md': 'index.md', 'CHANGELOG.md': 'changelog.md',
         'CONTRIBUTING.md': 'contributing.md', 'CODE_OF_CONDUCT.md': 'conduct.md'}
MOVED |= {f'notebooks/{path.name}': f'notebooks/{path.name}'
          for path in sorted((ROOT / 'notebooks').glob('*.ipynb'))}
# Schemas, whose keys are the page files.md.
SCHEMAS = ('fairjax/generate/assets/record.schema.json',
           'fairjax/report/assets/report.schema.json')
# Page -> its Markdown, as it was built.
TEXTS: dict[str, str] = {}


def on_config(config):
  """Gives headings the anchors that the repository's pages have."""
  config.mdx_configs['toc']['slugify'] = slugify(case='lower')


@event_priority(100)  # before mkdocs-jupyter, which renders the notebooks
def on_files(files, config):
  """Adds the pages that are not in docs."""
  for source, page in MOVED.items():
    path = ROOT / source
    files.append(
      File(page, str(path.parent.parent), config.site_dir, config.use_directory_urls)
      if path.suffix == '.ipynb' else File.generated(
        config, page, content=_links(path.read_text(encoding='utf-8'), '', config.repo_url)))
  for page, content in (('commands.md', commands()), ('configuration.md', configuration()),
                        ('python.md', python()), ('files.md', keys_of_files())):
    files.append(File.generated(config, page, content=content))
  return files


def on_page_markdown(markdown, page, config, files):
  """Turns the links of a page of docs to other files of the repository; keeps the text."""
  if not page.file.generated_by:
    markdown = _links(markdown, 'docs', config.repo_url)
  TEXTS[page.file.src_uri] = markdown
  return markdown


def on_post_build(config):
  """Writes llms.txt, which lists the pages, and the text of each page beside it."""
  site = pathlib.Path(config.site_dir)
  lines = [f'# {config.site_name}', '', f'> {config.site_description}', '', '## Pages', '']
  for title, source in _titles(config.nav):
    if source in TEXTS and '\n::: ' not in TEXTS[source]:
      (site / source).write_text(TEXTS[source], encoding='utf-8')
    elif source.endswith('.md'):
      source = source.removesuffix('.md') + '.html'
    lines.append(f'- [{title}]({source})')
  (site / 'llms.txt').write_text('\n'.join([*lines, '']), encoding='utf-8')


def _titles(nav, base: str = '') -> Iterator[tuple[str, str]]:
  """(title, file) of the pages of the navigation."""
  for entry in nav:
    ((title, found),) = entry.items()
    if isinstance(found, list):
      yield from _titles(found, f'{base}{title}: ')
    else:
      yield base + title, found


def _links(text: str, folder: str, repository: str | None) -> str:
  """The text of a file in `folder` of the repository with the links of its page on the site."""
  pages = MOVED | dict.fromkeys(SCHEMAS, 'files.md')

  def place(target: str) -> str | None:
    path, hash_, anchor = target.partition('#')
    path = posixpath.normpath(posixpath.join(folder, path))
    if path in pages or path.startswith('docs/'):
      return pages.get(path, path.removeprefix('docs/')) + hash_ + anchor
    return f'{repository}/blob/main/{path}' if repository else None

  def link(found: re.Match) -> str:
    if re.match(r'\w+:|#', found[2]):
      return found[0]
    to = place(found[2])
    return f'[{found[1]}]({to})' if to else f'`{found[1]}`'

  text = re.sub(r'\[([^][]*)\]\(([^)\s]+)\)', link, text)
  return re.sub(r'src="(?!\w+:)([^"]+)"', lambda found: f'src="{place(found[1])}"', text)


def commands() -> str:
  """The help of every verb and of its actions."""
  os.environ['COLUMNS'] = '100'
  parser = make_parser()
  lines = ['# Commands', '', '```text', parser.format_help().rstrip(), '```']
  for name, own in _subparsers(parser):
    lines += ['', f'## {name}', '', *_help(own)]
    for action, inner in _subparsers(own):
      lines += ['', f'### {name} {action}', '', *_help(inner)]
  return '\n'.join(lines)


def _subparsers(parser: argparse.ArgumentParser) -> list[tuple[str, argparse.ArgumentParser]]:
  """The verbs of fairjax, or the actions of a verb."""
  return [(name, found) for action in parser._actions
          if isinstance(action, argparse._SubParsersAction)
          for name, found in action.choices.items()]


def _help(parser: argparse.ArgumentParser) -> list[str]:
  """The help of one parser, after its example where it has one."""
  text, _, example = parser.format_help().partition('\nexample: ')
  shown = ['```bash', example.strip(), '```', ''] if example else []
  return [*shown, '```text', text.rstrip(), '```']


def configuration() -> str:
  """A table of the fields of each part of the configuration."""
  parts: dict[str, list[tuple[str, ...]]] = {}
  for name, value, kind, words in described_fields(Config()):
    part, _, name = name.rpartition('.')
    parts.setdefault(part, []).append(
      (f'`{name}`', f'`{kind}`', f'`{value!r}`', words.replace('<', '&lt;')))
  lines = ['# Configuration', '', 'Set a field with `--config.PART.FIELD=VALUE` (one of the run '
           'without PART), or in a configuration file. `fairjax step config` prints the fields of '
           'your own configuration.']
  for part, rows in parts.items():
    lines += ['', f'## {part or "the run"}', '',
              *_table(('field', 'type', 'default', 'meaning'), rows)]
  return '\n'.join(lines)


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
  """The lines of a table."""
  return ['| ' + ' | '.join(cell.replace('|', '\\|') for cell in row) + ' |'
          for row in (header, ('---',) * len(header), *rows)]


def keys_of_files() -> str:
  """The keys of the files that are read and written, from their schemas."""
  lines = ['# Files', '', '`fairjax records schema` and `fairjax records schema report` print the '
           'JSON Schemas of this page. `[]` stands for each element of a list, `{}` for each '
           'name.']
  record, report = (json.loads((ROOT / path).read_text(encoding='utf-8')) for path in SCHEMAS)
  for name, part in {'record': record, **report['$defs']}.items():
    lines += ['', f'## {name}', '', part['description'], '',
              *_table(('key', 'type', 'meaning'), _keys(part))]
  return '\n'.join(lines)


def _keys(part: dict[str, Any], before: str = '') -> Iterator[tuple[str, str, str]]:
  """(key, type, meaning) of the keys of a part of a schema, each before those inside it."""
  for name, found in part.get('properties', {}).items():
    yield f'`{before}{name}`', _type(found), found.get('description', '')
    yield from _keys(found, f'{before}{name}.')
  for inside, mark in (('items', '[]'), ('additionalProperties', '.{}')):
    if inside in part:
      yield from _keys(part[inside], f'{before[:-1]}{mark}.')


def _type(found: dict[str, Any]) -> str:
  """The type of a key in words; another part of the page as a link."""
  if '$ref' in found:
    name = found['$ref'].rpartition('/')[2]
    return f'[{name}](#{name})'
  if 'anyOf' in found:
    return ' or '.join(map(_type, found['anyOf']))
  if values := found.get('enum', [found['const']] if 'const' in found else []):
    return ' or '.join(f'`{json.dumps(value)}`' for value in values)
  kinds = {'array': 'list', 'object': 'object'}
  inner = found.get('items', found.get('additionalProperties'))
  return ' or '.join(
    f'{kinds[kind]} of {_type(inner)}' if inner and kind in kinds else kinds.get(kind, kind)
    for kind in ([found['type']] if isinstance(found['type'], str) else found['type']))


def python() -> str:
  """What `import fairjax` offers, from its docstrings."""
  lines = ['# Python', '', '```python', 'import fairjax', '```']
  for name in sorted(fairjax.__all__, key=lambda name: (name[0].isupper(), name)):
    lines += ['', f'::: fairjax.api.{name}', '    options:', f'      heading: fairjax.{name}']
  return '\n'.join(lines)
