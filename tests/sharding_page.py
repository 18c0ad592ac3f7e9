"""docs/sharding.md: its tables are what the tests found, and are compared with what they find.

After a change of where arrays live:

  FAIRJAX_UPDATE_DOCS=1 python -m pytest tests/train/test_sharding.py -k table
"""

import os
import pathlib
import re

PAGE = pathlib.Path(__file__).parent.parent / 'docs' / 'sharding.md'


def words(spec):
  """A `PartitionSpec`, or logical names of axes, as text; what is not split is a dot.

  >>> words(('model', None, ('data', 'fsdp'), None)), words(())
  ('model, ·, data x fsdp', 'whole')
  """
  axes = [' x '.join(axis) if isinstance(axis, tuple) else axis or '·' for axis in spec]
  while axes and axes[-1] == '·':
    axes.pop()
  return ', '.join(axes) or 'whole'


def table(*rows):
  """Lines of a Markdown table; the first row is its head."""
  head, *rest = ['| ' + ' | '.join(map(str, row)) + ' |' for row in rows]
  return '\n'.join([head, '|---' * len(rows[0]) + '|', *rest])


def check(section, text):
  """Compares a section of the page with the text, or writes it (`FAIRJAX_UPDATE_DOCS`)."""
  page = PAGE.read_text(encoding='utf-8')
  found = re.search(rf'(<!-- made: {section} -->\n)(.*?)\n(<!-- end -->)', page, re.S)
  assert found, f'docs/sharding.md has no section {section}'
  if os.environ.get('FAIRJAX_UPDATE_DOCS'):
    PAGE.write_text(page[:found.start(2)] + text + page[found.end(2):], encoding='utf-8')
  else:
    assert found[2] == text, 'docs/sharding.md is older than the code: see tests/sharding_page.py'
