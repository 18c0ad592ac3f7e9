"""A report as sections of tables, figures and texts, and how they read in HTML and in Markdown.

All texts are plain: both forms escape them, so that a text cannot change the page around it.
"""

import csv
import dataclasses
import html
import io
import pathlib
import re
from collections.abc import Sequence
from typing import Protocol
from xml.etree import ElementTree

from fairjax.errors import printable
from fairjax.measure.human.sheets import neutralise

# Written as character references: Markdown, HTML and automatic links are never built from those.
_SPECIAL = re.compile(
  r'[^\w\s.,:;!?\'"%()+=\u2013\u00b1\u2264-]|_|(?<=www)\.|^\s*(?:[-+=]|\d+(?=[.)](?:\s|$)))',
  re.IGNORECASE)
# Characters that steer or hide text, and halves of characters.
_CONTROL = re.compile('[\x00-\x08\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff'
                      '\ufff9-\ufffb\ud800-\udfff]')
# What our own numbers are made of: no part of Markdown within a cell.
_NUMBERS = re.compile(r'(?:[^\W_]|[\s.,:;%()+=/\u2013\u00b1\u2264-])*')
WIDEST = 2000  # points; a wider figure scrolls on the page, where its words would be too small
# Colours of the figures that follow the light or dark page.
_PAGE_COLOURS = {'#000000': 'currentColor', '#ffffff': 'var(--panel)', '#e5e5e5': 'var(--line)',
                 '#555555': 'var(--muted)'}


def escape(text: str) -> str:
  """Text as one line that Markdown and HTML show as it is."""
  # Marks, brackets, pipes and link characters become character references, white space one space
  # (line breaks are shown as a sign), control and direction characters the replacement character.
  text = re.sub(r'\s*\n\s*', ' \u21b5 ', text.replace('\r\n', '\n').replace('\r', '\n'))
  text = replace_control(text.replace('\t', ' '))
  text = _SPECIAL.sub(lambda m: ''.join(
    c if c.isspace() or c == '\u21b5' or c == '\ufffd' else f'&#{ord(c)};' for c in m[0]), text)
  return re.sub(r'\s+', ' ', text).strip()


def escape_html(text: str) -> str:
  """Text as HTML; characters that steer or hide text are shown by their numbers."""
  return _CONTROL.sub(lambda m: f'<span class="control">U+{ord(m[0]):04X}</span>',
                      html.escape(text))


def attribute_html(text: str) -> str:
  """Text as the value of an HTML attribute, or as a title."""
  return html.escape(replace_control(text))


def replace_control(text: str) -> str:
  """Text with the replacement character for those that steer or hide it, or are half a one."""
  return _CONTROL.sub('\ufffd', text)


class Part(Protocol):
  """A piece of a section."""

  def markdown(self) -> str:
    """The piece in the Markdown of GitHub."""

  def html(self, label: str) -> str:
    """The piece in HTML; `label` is the heading above it."""


@dataclasses.dataclass(frozen=True)
class Text:
  """A paragraph; `kind` is '', 'lead', 'note' (a warning), 'small' or 'muted'."""

  text: str
  kind: str = ''

  def markdown(self) -> str:
    """The part as Markdown."""
    return ('> **Note.** ' if self.kind == 'note' else '') + escape(self.text)

  def html(self, label: str = '') -> str:
    """The part as HTML."""
    kind = f' class="{self.kind}"' if self.kind else ''
    return f'<p{kind}>{escape_html(self.text)}</p>'


@dataclasses.dataclass(frozen=True)
class Bullets:
  """A list of lines."""

  lines: Sequence[str]

  def markdown(self) -> str:
    """The part as Markdown."""
    return '\n'.join(f'- {escape(line)}' for line in self.lines)

  def html(self, label: str = '') -> str:
    """The part as HTML."""
    lines = ''.join(f'<li>{escape_html(line)}</li>' for line in self.lines)
    return f'<ul>{lines}</ul>' if lines else ''


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of plain texts."""

  header: Sequence[str]  # [C] names of the columns
  rows: Sequence[Sequence[str]]  # [R][C] cells
  text_columns: int = 1  # how many of the first columns are words; the others align right
  title: str = ''  # above it; empty where the heading says it

  def markdown(self) -> str:
    """The table as Markdown; words are escaped, numbers stay readable."""
    def cell(i, text):
      return text if i >= self.text_columns and _NUMBERS.fullmatch(text) else escape(text)

    rule = [':--' if i < self.text_columns else '--:' for i in range(len(self.header))]
    body = [[cell(i, text) for i, text in enumerate(row)] for row in self.rows]
    lines = ['| ' + ' | '.join(row) + ' |' for row in (map(escape, self.header), rule, *body)]
    return '\n'.join([f'{escape(self.title)}:\n'] * bool(self.title) + lines)

  def html(self, label: str = '') -> str:
    """The table in a region that scrolls; the first column heads its row."""
    def cell(tag, i, text, scope=''):
      kind = ' class="number"' if i >= self.text_columns else ''
      return f'<{tag}{scope}{kind}>{escape_html(text)}</{tag}>'

    head = ''.join(cell('th', i, text, ' scope="col"') for i, text in enumerate(self.header))
    rows = ''.join('<tr>' + ''.join(
      cell('td', i, text) if i else cell('th', i, text, ' scope="row"')
      for i, text in enumerate(row)) + '</tr>\n' for row in self.rows)
    caption = f'<caption>{escape_html(self.title)}</caption>' if self.title else ''
    return _scroll(f'<table class="data">{caption}<thead><tr>{head}</tr></thead>\n'
                   f'<tbody>{rows}</tbody></table>', self.title or label)

  def text(self) -> str:
    """The table in columns of equal width, as it is on a terminal."""
    lines = [[printable(' '.join(cell.split())) for cell in row]
             for row in (self.header, *self.rows)]
    width = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return '\n'.join('  '.join(
      cell.ljust(w) if i < self.text_columns else cell.rjust(w)
      for i, (cell, w) in enumerate(zip(row, width, strict=True))).rstrip() for row in lines)

  def csv(self) -> str:
    """The table as CSV (RFC 4180, with line feeds); no cell is a formula of a spreadsheet."""
    file = io.StringIO()
    csv.writer(file, lineterminator='\n').writerows(
      map(neutralise, row) for row in (self.header, *self.rows))
    return file.getvalue().removesuffix('\n')


@dataclasses.dataclass(frozen=True)
class Figure:
  """A figure in the folder `figures`: its SVG file, with a PNG file beside it."""

  title: str
  path: pathlib.Path

  def markdown(self) -> str:
    """The part as Markdown."""
    return f"![{escape(self.title)}](figures/{self.path.with_suffix('.png').name})"

  def html(self, label: str = '') -> str:
    """The SVG inline: no style attributes, which the page's policy forbids, and unique ids."""
    root, name = ElementTree.parse(self.path).getroot(), self.path.stem  # noqa: S314
    for element in [e for e in root if e.tag.endswith(('}metadata', '}title'))
                    or e.find('{*}style') is not None]:
      root.remove(element)
    for element in root.iter():
      element.tag = element.tag.rpartition('}')[2]
      given = element.attrib.copy()
      style = dict(re.findall(r'([\w-]+):\s*([^;]+)', given.pop('style', '')))
      element.attrib.clear()
      for key, value in (given | style).items():
        key, value = key.rpartition('}')[2], value.strip()
        if key in ('id', 'href') or value.startswith('url(#'):
          value = re.sub(r'^(url\(#|#|)', rf'\g<1>{name}-', value)
        element.set(key, _PAGE_COLOURS.get(value.lower(), value))
    if float(root.attrib['width'].removesuffix('pt')) > WIDEST:
      root.set('class', 'wide')
    root.attrib |= {'role': 'img', 'fill': 'currentColor', 'stroke-linejoin': 'round'}
    title = ElementTree.Element('title')
    title.text = replace_control(self.title)
    root.insert(0, title)
    svg = ElementTree.tostring(root, encoding='unicode')
    return (f'<figure>{_scroll(svg, self.title)}'
            f'<figcaption>{escape_html(self.title)}</figcaption></figure>')


@dataclasses.dataclass(frozen=True)
class Code:
  """Text with its lines, such as a configuration."""

  text: str
  language: str = ''

  def markdown(self) -> str:
    """A fenced block, with a fence longer than any in the text."""
    longest = max((len(run) for run in re.findall('`+', self.text)), default=0)
    fence = '`' * max(3, longest + 1)
    return f'{fence}{self.language}\n{self.text}\n{fence}'

  def html(self, label: str = '') -> str:
    """The part as HTML."""
    return f'<pre>{escape_html(self.text)}</pre>'


@dataclasses.dataclass(frozen=True)
class Details:
  """Parts that a reader opens."""

  summary: str
  parts: Sequence[Part]

  def markdown(self) -> str:
    """The part as Markdown."""
    body = '\n\n'.join(part.markdown() for part in self.parts)
    return f'<details>\n<summary>{escape(self.summary)}</summary>\n\n{body}\n\n</details>'

  def html(self, label: str = '') -> str:
    """The part as HTML."""
    body = '\n'.join(part.html(self.summary) for part in self.parts)
    return f'<details><summary>{escape_html(self.summary)}</summary>\n{body}</details>'


@dataclasses.dataclass(frozen=True)
class Section:
  """A heading and what is below it; a folded one is opened by the reader of the page."""

  heading: str
  parts: Sequence[Part]
  folded: bool = False

  @property
  def anchor(self) -> str:
    """Id of the section in HTML."""
    return re.sub(r'[^a-z0-9]+', '-', self.heading.lower()).strip('-')

  def body(self) -> str:
    """The section as Markdown, without its heading."""
    return '\n\n'.join(text for part in self.parts if (text := part.markdown()))

  def markdown(self) -> str:
    """The section as Markdown."""
    return f'## {escape(self.heading)}\n\n{self.body()}'

  def html(self) -> str:
    """The section as HTML."""
    if not self.folded:
      return html_section(self.anchor, self.heading,
                          '\n'.join(part.html(self.heading) for part in self.parts))
    inner = [part for part in self.parts if isinstance(part, Details)]
    parts = self.parts  # one fold in a fold would be a click for nothing
    if len(inner) == 1:
      parts = [*(p for p in parts if p is not inner[0]), Text(inner[0].summary, 'small'),
               *inner[0].parts]
    folded = Details(self.heading, parts).html()
    return folded.replace('<details', f'<details id="{self.anchor}"', 1) + '\n'


@dataclasses.dataclass(frozen=True)
class Document:
  """A report: what is at its head, and its sections; those without parts are left out."""

  title: str
  head: Sequence[Part]
  sections: Sequence[Section]

  def __post_init__(self):
    object.__setattr__(self, 'sections', [s for s in self.sections if s.parts])

  def markdown(self) -> str:
    """The report as Markdown."""
    parts = [f'# {escape(self.title)}', *(part.markdown() for part in self.head),
             *(section.markdown() for section in self.sections)]
    return '\n\n'.join(parts) + '\n'


def html_section(anchor: str, heading: str, body: str) -> str:
  """A section of the page, with a heading and an id."""
  return (f'<section id="{anchor}" aria-labelledby="{anchor}-head">'
          f'<h2 id="{anchor}-head">{escape_html(heading)}</h2>\n{body}</section>\n')


def _scroll(body: str, label: str) -> str:
  """A region that scrolls on its own where the page is too narrow for it."""
  return (f'<div class="scroll" tabindex="0" role="group" aria-label="{attribute_html(label)}">'
          f'{body}</div>')


def number(value: float | None, digits: int, *, sign: bool = False) -> str:
  """A number with fixed digits, with its sign if wanted; a dash for None."""
  if value is None:
    return '\u2013'
  text = f"{value:{'+' if sign else ''}.{digits}f}"
  return text.lstrip('+-') if not float(text) else text  # no zero has a sign


def percent_change(value: float | None) -> str:
  """A signed change in percent; a dash for None."""
  return number(value, 1, sign=True) + '%' * (value is not None)


def counted(number: int, noun: str) -> str:
  """A number and its noun, in the plural but for one."""
  return f"{number:,} {noun}{'s' * (number != 1)}"


def span(low: int, high: int, form: str = ',') -> str:
  """A count, or a range of counts."""
  return f'{low:{form}}' if low == high else f'{low:{form}}\u2013{high:{form}}'
