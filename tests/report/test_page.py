"""The report's page: what it holds, what it cannot do, and that a reader gets to the sentences."""

import base64
import csv
import dataclasses
import hashlib
import html.parser
import io
import itertools
import json
import re
import tarfile
import urllib.error
import urllib.request

import numpy as np
import pytest
from browser import Browser, find_browser
from record_cases import records_of
from test_report import ATTRIBUTE, SCORERS, measured

from fairjax.counterfactual.attributes import AND, Attribute, Template, Value
from fairjax.measure import (
  RecordedScorer,
  VaderScorer,
  measure_records,
  read_generations,
  score_records,
)
from fairjax.report import ModelRow, write_report
from fairjax.report.document import Document, Figure, Section, Text
from fairjax.report.page import BINS, MOST_SAMPLES, collect_distributions, embed, make_page
from fairjax.report.sections import curve_table

EVIL = ('</script><script>window.evil = 1</script><img src=x onerror="window.evil = 1"> {{data}} '
        '\u202e\u2028\ud800 & <b>bold</b> "quoted" \\u0041')
# The checker of accessibility, which the tests fetch and the package does not hold.
AXE = 'https://registry.npmjs.org/axe-core/-/axe-core-4.14.1.tgz'
AXE_SHA512 = ('1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b73'
              '4f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5')
EMPTY = Document('T', [], [Section('S', [Text('')])])
BOTH = [*SCORERS, VaderScorer()]
NAME = 'fair <b>\u202e\ud800&"{{data}}$'
CURVES = {
  'lm': {'baseline': [
    *({'step': s, 'kind': 'train', 'loss': 7 - s / 400} for s in range(1, 1001)),
    *({'step': s, 'kind': 'valid', 'loss': 7.5 - s / 400, 'perplexity': 99.0 + s}
      for s in (500, 1000))]},
  f'debias {NAME}': {
    NAME: [{'step': 5, 'kind': 'train', 'loss': 4.25}, {'step': 10, 'kind': 'train',
                                                                  'loss': float('nan')}],
    'other': [{'step': 5, 'kind': 'train', 'loss': 4.0}, {'step': 9, 'kind': 'train', 'loss': 3.5}],
    'without': [{'step': 5, 'kind': 'train', 'accuracy': 0.5}]}}


def spoil(record):
  evil = record['sample'] == record['template'] == 1
  return record | ({'continuation': EVIL} if evil else {})


@pytest.fixture(scope='module')
def models():
  return [measured('baseline', 'baseline', 0.4, scorers=BOTH, change=spoil),
          measured(NAME, 'embedding', 0.0, 1.0, scorers=BOTH)]


@pytest.fixture(scope='module')
def report(models, tmp_path_factory):
  folder = tmp_path_factory.mktemp('page') / 'report'
  write_report(folder, rows=[row for row, _, _ in models], attribute='colour',
               distributions={row.name: distributions for row, distributions, _ in models},
               config={'evil': EVIL}, notes=[EVIL], curves=CURVES)
  return folder


class Elements(html.parser.HTMLParser):
  """Tags with attributes, the text of style and script elements, and tables as rows of texts."""

  def __init__(self, page):
    super().__init__(convert_charrefs=True)
    self.tags, self.inline, self.tables, self._open, self._cell = [], [], [], None, False
    self.feed(page)
    self.close()

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))
    self._open = (tag, dict(attrs)) if tag in ('style', 'script', 'title') else None
    if tag == 'table':
      self.tables.append([])
    elif tag == 'tr':
      self.tables[-1].append([])
    elif tag in ('th', 'td'):
      self.tables[-1][-1].append('')
      self._cell = True

  def handle_endtag(self, tag):
    self._open = None
    self._cell &= tag not in ('th', 'td')

  def handle_data(self, data):
    if self._open:
      self.inline.append((*self._open, data))
    elif self._cell:
      self.tables[-1][-1][-1] += data


def read_page(report):
  text = (report / 'index.html').read_text(encoding='utf-8')
  return text, Elements(text), page_data(text)


def page_data(page):
  return json.loads(page.split('id="data">')[1].split('</script>')[0])


def test_the_page_holds_no_element_of_others_and_asks_for_nothing(report):
  text, found, data = read_page(report)
  assert [tag for tag, _ in found.tags].count('script') == 2
  assert not {tag for tag, _ in found.tags} & {'img', 'link', 'iframe', 'object', 'base', 'form',
                                               'b', 'foreignobject'}
  for _, attributes in found.tags:
    assert not any(name.startswith('on') or name in ('src', 'style') for name in attributes)
    assert attributes.get('href', '#').startswith('#')
  code = ' '.join(d for tag, attrs, d in found.inline if attrs.get('id') != 'data')
  for word in ('innerHTML', 'outerHTML', 'insertAdjacent', 'document.write', 'eval(', 'Function(',
               'fetch(', 'XMLHttpRequest', 'WebSocket', 'import(', '@import', 'url(', 'https:'):
    assert word not in code, word
  assert [u for u in re.findall(r'http://[^\'" ]+', code)] == ['http://www.w3.org/2000/svg']
  assert EVIL in data['strings'] and EVIL not in text and data['models'][1] == NAME
  assert html.escape(EVIL[:60]) in text.split('id="map"')[0]  # a note and a name, as text
  assert 'U+202E' in text and '\u202e' not in text.split('id="data"')[0]
  raw = text.split('id="data">')[1].split('</script>')[0]
  assert not re.search('[<>&\u2028\u2029]', raw)


def test_the_policy_allows_the_own_script_and_style_by_hash_and_nothing_else(report):
  _, found, _ = read_page(report)
  (policy,) = [a['content'] for tag, a in found.tags if a.get('http-equiv')]
  parts = dict(p.strip().split(' ', 1) for p in policy.split(';'))
  assert parts.pop('default-src') == "'none'"
  for directive, tag in (('script-src', 'script'), ('style-src', 'style')):
    (code,) = [d for t, a, d in found.inline if t == tag and a.get('id') != 'data']
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    assert parts.pop(directive) == f"'sha256-{digest}'"
  assert parts == {'base-uri': "'none'", 'form-action': "'none'"}
  names = [a.get('http-equiv') or tag for tag, a in found.tags]
  assert names.index('Content-Security-Policy') < min(names.index('style'), names.index('script'))


def test_page_and_markdown_hold_the_same_tables(report):
  """The numbers of both are the cells of one table each."""
  _, found, _ = read_page(report)
  text = (report / 'report.md').read_text()
  tables = re.findall(r'(?:^\| .*\n)+', text, re.M)
  same = [[[' '.join(html.unescape(c).split()) for c in line[2:-2].split(' | ')]
           for i, line in enumerate(lines.splitlines()) if i != 1] for lines in tables]

  def markdown(cell):  # the page shows the numbers of characters that Markdown replaces
    return ' '.join(re.sub(r'U\+[0-9A-F]{4}', '\ufffd', cell).split())

  assert [[[markdown(c) for c in row] for row in table] for table in found.tables] == same
  assert len(same) > 10


@pytest.mark.parametrize('value', [EVIL, '<!--', '<script', ']]>', '\U0001f600', '\ud800', '漢'])
def test_embedded_json_is_the_value(value):
  text = embed({value: [value]})
  text.encode('utf-8')
  assert json.loads(text) == {value: [value]} and not re.search('[<>&\u2028\u2029]', text)
  with pytest.raises(ValueError):
    embed(float('nan'))


def test_cells_are_those_of_the_measures(report, models):
  _, _, data = read_page(report)
  assert data['pairs'] == [[0, 1], [0, 2], [1, 2]] and data['scorers'] == ['opinion', 'vader']
  for m, (row, _, _) in enumerate(models):
    for s, scorer in enumerate(data['scorers']):
      shown, cells = data['cells'][s][m], row.scorer(scorer)['cells']
      for mine, theirs in (('distance', 'distance'), ('floor', 'null_p95'), ('p', 'p_value'),
                           ('holm', 'p_holm'), ('noise', 'within_floor')):
        unit = 1 if mine == 'noise' else 10000
        assert np.array(shown[mine]) / unit == pytest.approx(
          np.array(cells[theirs], float), abs=5.1e-5)
      inside = np.array(cells['within_floor'])
      assert shown['words'].startswith(f'{(~inside).sum()} of 6 cells exceed their own floor')
      assert f"{(np.array(cells['p_holm']) <= 0.05).sum()} are left" in shown['words']
    assert data['most'][0] == max(np.max(r.scorer('opinion')['cells']['distance'])
                                  for r, _, _ in models)


def test_where_each_stage_ended():
  table, lost = curve_table('lm', CURVES['lm'])
  assert (table.rows, lost) == ([['baseline', '1,000', '4.5000', '5.0000', '1099.00']], 0)
  table, lost = curve_table('debias', CURVES[f'debias {NAME}'])
  assert lost == 1 and [row[0] for row in table.rows] == [NAME, 'other']
  assert table.rows[1] == ['other', '9', '3.5000', '\u2013', '\u2013']


def test_evidence_is_all_scores_and_the_first_texts(models):
  _, distributions, records = models[0]
  rng = np.random.default_rng(1)
  shuffled = [records[i] for i in rng.permutation(len(records))]
  generations = read_generations(shuffled, ATTRIBUTE)
  scores = {'vader': score_records(shuffled, VaderScorer())}
  found = collect_distributions(generations, scores, coupled=True)
  assert found.numbers == [[*range(MOST_SAMPLES)]] * 2
  for t in range(2):
    for a, value in enumerate(ATTRIBUTE.values):
      cell = sorted((r for r in records if (r['template'], r['value']) == (t, value.text)),
                    key=lambda r: r['sample'])
      assert found.texts[t][a] == [(r['prefix'], r['continuation']) for r in cell[:MOST_SAMPLES]]
      all_scores = score_records(cell, VaderScorer())
      assert found.scores['vader'][t][a] == all_scores[:MOST_SAMPLES].tolist()
      assert len(cell) > MOST_SAMPLES
      expected = np.histogram(all_scores, BINS, (0, 1))[0]
      assert found.histograms['vader'][t, a].tolist() == expected.tolist()
      assert found.means['vader'][t, a] == pytest.approx(all_scores.mean(), rel=1e-12)
  for a, value in enumerate(ATTRIBUTE.values):
    cells = [score_records([r for r in records if (r['template'], r['value']) == (t, value.text)],
                           VaderScorer()) for t in range(2)]
    error = np.sqrt(sum(len(c) ** 2 * np.var(c, ddof=1) / len(c) for c in cells))
    assert found.errors['vader'][a] == pytest.approx(error / sum(map(len, cells)), rel=1e-12)
  assert found.prefixes == distributions.prefixes
  other = [r | {'prefix': r['prefix'] + '!'} for r in records]
  found = collect_distributions(read_generations(other, ATTRIBUTE), {}, coupled=True)
  assert found.prefixes != distributions.prefixes
  free = collect_distributions(generations, scores, coupled=False)
  assert free.numbers is None and free.texts[0][0] == distributions.texts[0][0]


def many_values(count, *, templates=2, samples=6, words='some words '):
  """A row and distributions of many values, with random scores."""
  rng = np.random.default_rng(0)
  attribute = Attribute(
    name='many', values=tuple(Value(v, v, (v,), v) for v in map('value {}'.format, range(count))),
    templates=tuple(Template(f'{t} {{value}}', str(t)) for t in range(templates)))
  records = records_of(attribute, samples, lambda p, s: f'{p.template} {p.value} {s} {words}',
                       scores=lambda p, s: {'x': rng.random()})
  scorer = RecordedScorer('x')
  measures = measure_records(records, attribute, [scorer], permutations=9)
  return ModelRow('baseline', 'baseline', measures=measures), collect_distributions(
    read_generations(records, attribute), {scorer.name: score_records(records, scorer)},
    coupled=True)


def test_the_noise_of_each_model_is_explained():
  row, distributions = many_values(3)
  free = ModelRow('free', 'model', measures=row.measures | {'coupled': False})
  coupled, free = page_data(make_page(
    EMPTY, [row, free], {'baseline': distributions, 'free': distributions}))['noise_rules']
  assert 'within sample numbers' in coupled and 'over all samples of the two' in free


def test_a_large_page_keeps_the_largest_distances_and_says_what_it_left_out(monkeypatch):
  row, distributions = many_values(60)
  (scorer,) = row.measures['scorers']
  farthest = np.argsort(row.scorer(scorer)['pairs']['distance'])
  first = list(itertools.combinations(range(60), 2))
  whole = len(make_page(EMPTY, [row], {'baseline': distributions}))
  for most in (whole // 3, whole * 3 // 5, whole * 19 // 20, whole):
    monkeypatch.setattr('fairjax.report.page.MOST_BYTES', most)
    page = make_page(EMPTY, [row], {'baseline': distributions})
    assert len(page.encode()) <= most
    data = page_data(page)
    kept, samples = len(data['pairs']), len(data['distributions'][0]['texts'][0][-1])
    assert list(map(tuple, data['pairs'])) == [first[p] for p in sorted(farthest[-kept:])]
    assert (most == whole) == (data['left_out'] is None) == ((kept, samples) == (1770, 6))
    if most < whole:
      assert (f'the {kept:,} of 1,770 pairs' in data['left_out']) == (kept < 1770)
      assert (f'{samples} samples of each prefix' in data['left_out']) == (samples < 6)
    chosen = {i for pair in data['pairs'] for i in pair}
    shown = data['distributions'][0]['texts'][0]
    assert {a for a, cell in enumerate(shown) if cell} == (chosen if samples else set())
    assert {a for a, c in enumerate(data['histograms'][0][0]['counts'][0]) if c} == chosen


def test_the_papers_largest_attribute_keeps_all_its_pairs():
  """34 names, 10 templates, three scorers and seven models, in a page below 5 MB."""
  row, distributions = many_values(34, templates=10, words='w' * 200)
  measures = row.measures | {'scorers': dict.fromkeys('xyz', row.scorer('recorded:x'))}
  names = [f'm{i}' for i in range(7)]
  rows = [ModelRow(n, 'baseline' if n == 'm0' else 'e', measures=measures) for n in names]
  page = make_page(EMPTY, rows, dict.fromkeys(names, distributions))
  data = page_data(page)
  assert len(page.encode()) < 5_000_000 and len(data['pairs']) == 561
  assert len(data['distributions'][6]['texts'][9][33]) >= 2


def test_long_texts_are_cut_and_counted():
  row, distributions = many_values(3, words='x' * 1500)
  data = page_data(make_page(EMPTY, [row], {'baseline': distributions}))
  assert 'the first 1,000 characters of 36 longer texts' in data['left_out']
  prefix, continuation, before, after = data['distributions'][0]['texts'][1][2][3]
  assert (data['strings'][prefix], before) == ('1 value 2', 0)
  whole = distributions.texts[1][2][3][1]
  assert data['strings'][continuation] == whole[:1000] and after == len(whole) - 1000


@pytest.mark.parametrize(('values', 'prefix'), [
  (('C++', 'C'), 'My {} code is'), (('伊朗', '法国'), '来自{}的人')])
def test_a_value_without_spaces_around_it_leaves_a_blank_too(values, prefix):
  row, found = many_values(2)
  texts = [[[(prefix.format(v), '')] for v in values]] * 3
  page = make_page(EMPTY, [row], {'baseline': dataclasses.replace(
    found, values=values, texts=texts)})
  assert page_data(page)['examples'] == [prefix.format('___')] * 3


def test_a_combination_leaves_a_blank_for_each_of_its_values():
  row, found = many_values(2)
  values = (f'Syria{AND}clerk', f'Iran{AND}clerk')
  texts = [[[(f'I met a {v.split(AND)[1]} from {v.split(AND)[0]}, and', '')] for v in values]] * 3
  page = make_page(EMPTY, [row], {'baseline': dataclasses.replace(
    found, values=values, texts=texts)})
  assert page_data(page)['examples'] == ['I met a ___ from ___, and'] * 3


# What a reader does, in a real browser.

@pytest.fixture(scope='module')
def browser(tmp_path_factory):
  if find_browser() is None:
    pytest.skip('no Chromium or Chrome here (Debian: apt-get install chromium)')
  found = Browser(tmp_path_factory.mktemp('browser'))
  yield found
  found.close()


@pytest.fixture
def page(browser, report):
  browser.resize(1200, 900)
  browser.scheme('light')
  browser.events.clear()
  browser.open('about:blank')
  browser.open(f'file://{report / "index.html"}')
  yield browser
  assert browser.complaints == []
  assert {u for u in browser.requests if u != 'about:blank'} == {
    f'file://{report / "index.html"}'}
  assert browser.js('window.evil') is None


def test_from_the_heat_map_to_the_sentences(page, models):
  row, distributions, _ = models[0]
  assert 'No pair is chosen yet' in page.text('#detail')
  assert page.js("document.querySelectorAll('.heat tbody button').length") == 6
  cells = row.scorer('opinion')['cells']
  means = np.mean(cells['distance'], 0)
  pairs = [(0, 1), (0, 2), (1, 2)]
  best = int(np.argmax(means))
  first = page.js("document.querySelector('.heat tbody th').innerText")
  names = [ATTRIBUTE.values[i].text for i in pairs[best]]
  assert first == ' – '.join(names)
  page.click(f'#cell-1-{best}')
  detail = page.text('#detail')
  assert f'{names[0]} and {names[1]}, “I saw ___ and”' in detail
  assert f"W1 {cells['distance'][1][best]:.4f}" in detail
  assert f"floor {cells['null_p95'][1][best]:.4f}" in detail
  assert page.js("document.activeElement.id") == 'detail-head'
  charts = page.js("[...document.querySelectorAll('#detail svg')].map(e => e.ariaLabel)")
  for label, name, a in zip(charts, names, pairs[best], strict=True):
    title, mean = label.rsplit(' ', 1)
    assert title == f'{name}: 24 scores, mean'
    assert float(mean) == pytest.approx(distributions.means['opinion'][1, a], abs=6e-4)
  for side, a in enumerate(pairs[best]):
    bars = page.js(f"document.querySelectorAll('#detail .histograms figure:nth-child({side + 1}) "
                   "rect').length")
    assert bars == np.count_nonzero(distributions.histograms['opinion'][1, a])
  shown = page.js("[...document.querySelectorAll('#sentences li')].map(li => "
                  "[...li.querySelectorAll('.sentence')].map(e => e.textContent))")
  for number, pair in enumerate(shown):
    for a, text in zip(pairs[best], pair, strict=True):
      prefix, continuation = distributions.texts[1][a][number]
      if number != 1:
        assert text == prefix + continuation
      else:
        assert '</script><script>window.evil = 1</script>' in text and 'U+202E' in text
  assert len(shown) == 20
  page.press('Tab')  # the page goes on from the place of the focus
  assert page.js("document.activeElement.closest('#detail') !== null")


def test_an_address_leads_back_to_the_cell(page, report):
  page.js("history.pushState = () => { throw Error('a frame without an address'); }; true")
  page.click('#cell-1-1')
  assert page.js('document.activeElement.id') == 'detail-head'
  page.js('delete history.pushState')
  page.click('#cell-0-1')
  page.js('history.back()')
  page.until("document.getElementById('detail').innerText.includes('No pair is chosen yet')")
  page.js('history.forward()')
  page.until("document.getElementById('detail').innerText.includes('Red and Green, “___ is”')")
  address = page.js('location.href')
  assert address.endswith('#s=0&m=0&t=0&p=1')
  page.open('about:blank')
  page.open(address)
  assert 'Red and Green, “___ is”' in page.text('#detail')
  for bad in ('#s=99&m=99&t=99&p=99', '#s=0&m=0&t=0&p=<b>', '#t=1e0&p=-1', '#p=__proto__'):
    page.open('about:blank')
    page.open(f'file://{report / "index.html"}{bad}')
    assert 'No pair is chosen yet' in page.text('#detail')


@pytest.fixture(scope='module')
def axe():
  """The script of axe-core."""
  try:
    with urllib.request.urlopen(AXE, timeout=20) as answer:  # noqa: S310 (https)
      packed = answer.read()
  except (urllib.error.URLError, TimeoutError) as e:
    pytest.skip(f'axe-core cannot be fetched from the npm registry: {e}')
  assert hashlib.sha512(packed).hexdigest() == AXE_SHA512
  with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
    return archive.extractfile('package/axe.min.js').read().decode()


@pytest.mark.parametrize(('scheme', 'width'), [('light', 1280), ('dark', 390)])
def test_axe_finds_no_violation(page, axe, scheme, width):
  page.resize(width, 844)
  page.scheme(scheme)
  page.click('#cell-0-0')
  page.js("document.querySelectorAll('details').forEach(e => { e.open = true; })")
  page.js(axe + ';true')
  found = page.js('axe.run().then(r => r.violations.map(v => [v.id, v.help, '
                  'v.nodes.map(n => n.html.slice(0, 200))]))')
  assert found == []


def choose(page, name, value):
  page.js(f"document.getElementById('{name}').value = {value}; "
          f"document.getElementById('{name}').dispatchEvent(new Event('change'))")


def test_scorer_and_model_change_the_numbers(page, models):
  for s, scorer in enumerate(('opinion', 'vader')):
    choose(page, 'scorer', s)
    for m, (row, _, _) in enumerate(models):
      choose(page, 'model', m)
      cells = row.scorer(scorer)['cells']
      assert page.text('#cell-0-0') == f"{cells['distance'][0][0]:.2f}".lstrip('0')
  assert page.js('location.href').endswith('#s=1&m=1')


def test_the_map_shows_which_value_scores_higher(page, models):
  choose(page, 'view', 1)
  means = models[0][1].means['opinion']
  for p, (a, b) in enumerate([(0, 1), (0, 2), (1, 2)]):
    for t in range(2):
      found = means[t, a] - means[t, b]
      assert float(page.text(f'#cell-{t}-{p}')) == pytest.approx(found, abs=0.0051)
      shown = page.js(f"document.getElementById('cell-{t}-{p}').className")
      assert shown[0] == ('o' if found < 0 else 's')
  assert page.js("[...document.querySelectorAll('.heat .words')].map(e => e.textContent)") == [
    '___ is', 'I saw ___ and']


def test_paper_holds_every_scorer_on_few_pages(page):
  page.click('#cell-0-1')
  pages = len(re.findall(rb'/Type\s*/Page\b', page.pdf()))
  assert 1 <= pages <= 8
  page.js("dispatchEvent(new Event('beforeprint'))")
  page.call('Emulation.setEmulatedMedia', media='print')
  page.resize(703, 1000)  # A4 less its margins
  assert page.js('document.documentElement.scrollWidth') <= 703
  assert page.js("[...document.querySelectorAll('#printed h3')].map(e => e.innerText)") == [
    'baseline, scorer opinion', 'baseline, scorer vader']
  assert page.js("[...document.querySelectorAll('#printed .heat td')].filter(e => "
                 "e.offsetHeight).length") == 12
  wide = page.js("[...document.querySelectorAll('section svg, section table')].filter(e => "
                 "e.getBoundingClientRect().right > 704).length")
  assert wide == 0
  shown = page.js("[...document.querySelectorAll('nav, .controls, .tools, .explore, #details')]"
                  ".filter(e => e.offsetHeight).length")
  assert shown == 0
  page.call('Emulation.setEmulatedMedia', media='')
  page.js("dispatchEvent(new Event('afterprint'))")
  assert page.js("document.getElementById('printed')") is None


def test_tables_can_be_copied_and_saved(page):
  page.js("""navigator.clipboard.writeText = async text => { window.copied = text; };
    URL.createObjectURL = blob => { window.saved = blob; return '#'; };
    document.querySelector('#in-short td').textContent = '=1+"1"'; true""")
  cells = page.js("[...document.querySelector('#in-short table').rows].map(row => "
                  "[...row.cells].map(cell => cell.textContent))")
  cells[1][1] = '\'=1+"1"'
  page.click('#in-short .tools button')
  assert [line.split('\t') for line in page.js('copied').split('\n')] == cells
  assert page.text('#in-short .tools button') == 'Copied'
  page.js("Object.defineProperty(navigator, 'clipboard', {value: undefined}); true")  # plain HTTP
  page.click('#in-short .tools button')
  assert cells[-1][0] in page.js('getSelection().toString()')
  page.click('#in-short .tools button:last-child')
  text = page.js('saved.text()')
  assert list(csv.reader(io.StringIO(text.removeprefix('\ufeff'), newline=''))) == cells


def test_the_map_is_usable_without_a_mouse(page):
  page.js("document.querySelector('.heat button[tabindex=\"0\"]').focus()")
  start = page.js('document.activeElement.id')
  page.press('ArrowDown')
  page.press('ArrowRight')
  moved = page.js('document.activeElement.id')
  assert moved != start and moved.startswith('cell-1-')
  page.press('Enter')
  assert page.js("document.activeElement.id") == 'detail-head'
  assert page.js(f"document.getElementById('{moved}').getAttribute('aria-current')") == 'true'
  assert page.js("document.querySelectorAll('.heat button[tabindex=\"0\"]').length") == 1


def test_filter_and_order(page, models):
  page.click('#filter')
  page.type('blue')
  rows = page.js("[...document.querySelectorAll('.heat tbody th')].map(e => e.innerText)")
  assert sorted(rows) == ['Blue – Green', 'Red – Blue']
  assert '1 hidden by the filter' in page.text('#map')
  page.click('#cell-1-0')
  choose(page, 'sentence-order', 1)
  gaps = page.js("[...document.querySelectorAll('#sentences li')].map(li => "
                 "[...li.querySelectorAll('.score')].map(e => Number(e.textContent.split('score ')"
                 "[1]))).map(([a, b]) => Math.abs(a - b))")
  assert gaps == sorted(gaps, reverse=True) and gaps[0] > gaps[-1]


@pytest.mark.parametrize('width', [1280, 390])
@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_light_and_dark_wide_and_narrow(page, scheme, width):
  page.resize(width, 844)
  page.scheme(scheme)
  page.click('#cell-0-0')
  dark = page.js('matchMedia("(prefers-color-scheme: dark)").matches')
  assert dark == (scheme == 'dark')
  assert page.js('document.documentElement.scrollWidth') <= width  # nothing hangs out at the side
  sizes = page.js("[...document.querySelectorAll('.heat button, button, select')].map(e => "
                  "[e.offsetWidth, e.offsetHeight])")
  assert min(min(size) for size in sizes) >= 24  # the least target of WCAG 2.2
  clipped = page.js("[...document.querySelectorAll('.heat button')].filter(e => e.scrollWidth > "
                    "e.clientWidth + 1).length")
  assert clipped == 0


def test_many_pairs_are_shown_on_demand(browser, tmp_path):
  row, distributions = many_values(8)
  (tmp_path / 'index.html').write_text(
    make_page(EMPTY, [row], {'baseline': distributions}))
  browser.open(f'file://{tmp_path / "index.html"}')
  assert browser.js("document.querySelectorAll('.heat tbody tr').length") == 15
  browser.click('#more')
  assert browser.js("document.querySelectorAll('.heat tbody tr').length") == 28
  assert browser.js("document.getElementById('more')") is None


def test_words_from_right_to_left_are_read_in_their_order(browser, tmp_path):
  names = ['\u0625\u064a\u0631\u0627\u0646', '\u0627\u0644\u0639\u0631\u0627\u0642']
  row, found = many_values(2)
  row = dataclasses.replace(row, measures=row.measures | {'values': names})
  texts = [[[(f'{name} 1', ' bad ' + name)] * 2 for name in names]] * 3
  (tmp_path / 'index.html').write_text(make_page(EMPTY, [row], {'baseline': dataclasses.replace(
    found, values=tuple(names), texts=texts)}))
  browser.open(f'file://{tmp_path / "index.html"}#s=0&m=0&t=0&p=0')
  edges = "[...document.querySelectorAll('{}')].map(e => e.getBoundingClientRect().{})"
  first, second = browser.js(edges.format('.heat tbody th bdi', 'left'))
  prefix, continuation = browser.js(edges.format('.sentence > span', 'right'))[:2]
  assert first < second and prefix > continuation


@pytest.mark.parametrize(('width', 'shrinks'), [('400.5pt', True), ('2400pt', False)])
def test_a_figure_shrinks_while_its_words_can_be_read(tmp_path, width, shrinks):
  path = tmp_path / 'values.svg'
  path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}"/>')
  assert ('class="wide"' in Figure('t', path).html()) != shrinks
