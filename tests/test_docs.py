"""What pages and docstrings say is so: commands, links, examples."""

import ast
import doctest
import importlib
import pathlib
import re
import shlex

import pytest
from test_architecture import MODULES, PACKAGE, ROOT, definitions, parse

import fairjax
from fairjax.cli import main as cli
from fairjax.measure import format_estimate

README = '\n'.join((ROOT / name).read_text(encoding='utf-8')
                   for name in ('README.md', 'docs/quickstart.md', 'docs/guide.md'))
PAGES = sorted(p for pattern in ('*.md', 'docs/**/*.md', 'fairjax/**/*.md')
               for p in ROOT.glob(pattern))


def shell_lines(text: str = README) -> list[str]:
  """Lines of a page's shell blocks, comments and empty ones left out."""
  blocks = re.findall(r'^```(?:bash|sh)\n(.*?)^```', text, re.M | re.S)
  lines = ''.join(blocks).replace('\\\n', ' ').splitlines()
  return [line for line in lines if line.partition('#')[0].strip()]


def is_fairjax(line: str) -> bool:
  return re.search(r'(^|/)fairjax [a-z]', line.partition('#')[0]) is not None


def fairjax_commands() -> list[str]:
  """Commands of the shell blocks, then those with options within the text."""
  text = re.sub(r'^```.*?^```', '', README, flags=re.M | re.S)
  return [line[line.index('fairjax '):] for line in shell_lines() if is_fairjax(line)] + [
    ' '.join(found.split()) for found in re.findall(r'`(fairjax [a-z][^`]* --[^`]+)`', text)]


@pytest.mark.parametrize('page', PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_of_a_page_parse(page):
  """Verbs and options are there; what cheap ones do is tested with the README's and the help's."""
  for line in shell_lines(page.read_text(encoding='utf-8')):
    if is_fairjax(line):
      line = re.sub(r'\$\w\b', '0.1', line[line.index('fairjax '):])  # of a loop of the shell
      assert cli.parse(shlex.split(line, comments=True)[1:]).verb, line


@pytest.mark.parametrize('page', PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_local_links_lead_somewhere(page):
  text = re.sub(r'^```.*?^```', '', page.read_text(encoding='utf-8'), flags=re.M | re.S)
  links = re.findall(r'\]\(([^)#]+)(?:#[^)]*)?\)', text) + re.findall(r'src="([^"]+)"', text)
  for link in links:
    if not re.match(r'https?:|mailto:', link):
      assert (page.parent / link).exists(), f'{page.name}: {link}'


def test_no_page_installs_by_a_name_that_no_index_has():
  for path in [*PAGES, *ROOT.glob('configs/*.py'), *MODULES]:
    assert "'fairjax[" not in path.read_text(encoding='utf-8'), path


def test_the_committed_records_give_what_the_readme_prints():
  from fairjax.generate import read_records
  from fairjax.measure import measure_records
  path = ROOT / 'docs' / 'records' / 'country-embedding-10.jsonl.xz'
  found = measure_records(read_records(path), 'country', ['recorded:opinion'], permutations=250)
  fairness = found['scorers']['recorded:opinion']['individual_fairness']
  mentions = found['semantic_similarity_c']['conditioned']['value']
  (row,) = re.findall(r'^\| country-embedding-10 \| 4.04 \| (.*) \|$', README, re.M)
  assert row == f"{format_estimate(fairness)} | {100 * mentions:.1f}%".replace('floor ', '')


def test_versions_agree():
  citation = (ROOT / 'CITATION.cff').read_text(encoding='utf-8')
  assert f'\nversion: {fairjax.__version__}\n' in citation


def docstring_examples() -> list[tuple[pathlib.Path, str, str]]:
  """(module's path, name, docstring) wherever a docstring holds an example."""
  return [(path, getattr(node, 'name', '(module)'), ast.get_docstring(node))
          for path in MODULES for node, _ in definitions(parse(path), public=True)
          if '>>> ' in (ast.get_docstring(node) or '')]


@pytest.mark.parametrize(('path', 'name', 'text'), [
  pytest.param(*example, id=f'{example[0].relative_to(PACKAGE)}:{example[1]}',
               marks=[pytest.mark.tf] if example[0].parent.name == 'data' else [])
  for example in docstring_examples()])
def test_docstring_examples(path, name, text, tmp_path, monkeypatch):
  module = importlib.import_module(
    '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__'))
  monkeypatch.chdir(tmp_path)
  example = doctest.DocTestParser().get_doctest(text, dict(vars(module)), name, str(path), 0)
  assert example.examples
  output: list[str] = []
  doctest.DocTestRunner().run(example, out=output.append)
  assert not output, ''.join(output)


def test_every_id_has_a_row_in_the_definitions():
  """An ID such as H-25 without a row would name nothing."""
  text = (ROOT / 'docs/definitions.md').read_text()
  rows = set(re.findall(r'^\| ([HNWY]-\d\d[a-z]?) \|', text, re.M))
  used = {found for folder in ('fairjax', 'configs', 'docs', 'notebooks', 'tests')
          for path in (ROOT / folder).rglob('*')
          if path.suffix in ('.py', '.md', '.ipynb', '.yaml', '.js') and path.is_file()
          for found in re.findall(r'\b[HNWY]-\d\d[a-z]?\b', path.read_text(encoding='utf-8'))}
  assert len(used) > 50 and used <= rows
