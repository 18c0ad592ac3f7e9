'use strict';
// The heat map (pair of values by template), and for a chosen cell its two histograms and sentences;
// copies of the tables; what is printed.
const DATA = JSON.parse(document.getElementById('data').textContent);
for (const cells of DATA.cells.flat()) {
  if (cells) for (const key of ['distance', 'floor', 'p', 'holm']) cells[key] = cells[key].map(row => row.map(k => k / 10000));
}
const SVG = 'http://www.w3.org/2000/svg';
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/gu;

// Text as nodes; characters that steer or hide text are shown by their numbers.
function plain(text) {
  const nodes = [];
  let start = 0;
  for (const match of text.matchAll(CONTROL)) {
    const mark = document.createElement('span');
    mark.className = 'control';
    mark.textContent = 'U+' + match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, '0');
    nodes.push(text.slice(start, match.index), mark);
    start = match.index + match[0].length;
  }
  return [...nodes, text.slice(start)];
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'on') for (const [event, run] of Object.entries(value)) element.addEventListener(event, run);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value !== undefined) element.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null) continue;
    element.append(...(child instanceof Node ? [child] : plain(String(child))));
  }
  return element;
}
const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
const fixed = (value, digits = 4) => value.toFixed(digits);
const bdi = text => el('bdi', {}, text);
const short = value => value.toFixed(2).replace(/^(-?)0/, '$1').replace(/^-\.00$/, '.00');
const chance = p => p < 0.0001 ? '< 0.0001' : p.toFixed(4);
const count = value => value.toLocaleString('en');

// The state: indices only, so that an address can name nothing that is not in the data.
const STATE = {scorer: 0, model: 0, template: null, pair: null, view: 0, sort: 0, filter: '', rows: 15, order: 0};

function readAddress() {
  const query = new URLSearchParams(location.hash.slice(1));
  const index = (name, size) => {
    const text = query.get(name);
    return text !== null && /^\d+$/.test(text) && Number(text) < size ? Number(text) : null;
  };
  if (!location.hash) STATE.template = STATE.pair = null;
  if (![...query.keys()].some(key => ['s', 'm', 't', 'p'].includes(key))) return;
  STATE.scorer = index('s', DATA.scorers.length) ?? 0;
  STATE.model = index('m', DATA.models.length) ?? 0;
  STATE.template = index('t', DATA.templates.length);
  STATE.pair = index('p', DATA.pairs.length);
  if (STATE.template === null || STATE.pair === null) STATE.template = STATE.pair = null;
}

// Changes the state, draws the map again, and keeps the choice in the address.
function go(changes, show = false) {
  Object.assign(STATE, changes);
  render();
  let hash = `#s=${STATE.scorer}&m=${STATE.model}`;
  if (STATE.pair !== null) hash += `&t=${STATE.template}&p=${STATE.pair}`;
  try { if (location.hash !== hash) history.pushState(null, '', hash); } catch {}  // a frame without an address
  if (!show) return;
  const head = document.getElementById('detail-head');
  head.focus({preventScroll: true});
  const box = head.getBoundingClientRect();
  if (box.top < 60 || box.bottom > innerHeight * .7) head.scrollIntoView({block: 'start'});
}

const select = (label, options, key, id) => el('label', {}, label,
  el('select', {id, on: {change: event => go({[key]: Number(event.target.value)})}},
    options.map((text, i) => el('option', {value: i, selected: i === STATE[key]}, text))));

const STEPS = 9;
const pairName = p => DATA.pairs[p].map(i => DATA.values[i]);
const templateName = t => `\u201c${DATA.examples[t]}\u201d`;

// Mean score of the first value of a pair less that of the second.
function lead(scorer, t, p) {
  const means = DATA.histograms[scorer][STATE.model].means[t];
  return means[DATA.pairs[p][0]] - means[DATA.pairs[p][1]];
}

function cellWords(cells, t, p) {
  const [a, b] = pairName(p);
  return `${a} and ${b}, ${templateName(t)}: W1 ${fixed(cells.distance[t][p], 3)} (floor `
    + `${fixed(cells.floor[t][p], 3)}), ${cells.noise[t][p] ? 'within' : 'above'} noise, p ${chance(cells.p[t][p])} (Holm ${chance(cells.holm[t][p])})`;
}

function pairOrder(cells) {
  const mean = p => cells.distance.reduce((sum, row) => sum + row[p], 0) / cells.distance.length;
  const words = STATE.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = DATA.pairs.map((_, p) => p).filter(p =>
    words.every(word => pairName(p).some(name => name.toLowerCase().includes(word))));
  const names = p => pairName(p).join('\n');
  return STATE.sort ? found.sort((a, b) => names(a) < names(b) ? -1 : 1) : found.sort((a, b) => mean(b) - mean(a) || a - b);
}

function render() {
  const target = document.querySelector('#map > div'), cells = DATA.cells[STATE.scorer][STATE.model];
  const focused = document.activeElement?.id;
  if (!DATA.histograms[STATE.scorer][STATE.model]) STATE.view = 0;
  const controls = el('div', {class: 'controls'},
    select('Scorer', DATA.scorers, 'scorer', 'scorer'), select('Model', DATA.models, 'model', 'model'),
    DATA.histograms[STATE.scorer][STATE.model]
      ? select('Numbers', ['distance', 'difference of means'], 'view', 'view') : null,
    select('Order', ['largest distance first', 'names'], 'sort', 'order'),
    el('label', {}, 'Values', el('input', {id: 'filter', type: 'search', value: STATE.filter, autocomplete: 'off',
      placeholder: 'words in the names', on: {input: event => go({filter: event.target.value})}})));
  target.replaceChildren(...cells ? map(cells, controls) : [controls,
    el('p', {}, `${DATA.models[STATE.model]} was not measured with scorer ${DATA.scorers[STATE.scorer]}.`)]);
  if (!['scorer', 'model', 'view', 'order', 'filter', 'sentence-order'].includes(focused)) return;
  const input = document.getElementById(focused);
  input?.focus({preventScroll: true});
  if (focused === 'filter') input.setSelectionRange(input.value.length, input.value.length);
}

// The table of one scorer; `pick` makes its cells buttons.
function grid(scorer, cells, shown, pick) {
  const most = DATA.most[scorer], start = STATE.pair !== null && shown.includes(STATE.pair);
  const step = d => Math.min(STEPS - 1, Math.floor(STEPS * Math.abs(d) / most));
  const cell = (t, p, r, c) => {
    const value = STATE.view ? lead(scorer, t, p) : cells.distance[t][p], text = short(value);
    const look = {class: `${value < 0 ? 'o' : 's'}${step(value)}${cells.noise[t][p] ? ' noise' : ''}`};
    if (!pick) return el('td', {}, el('span', look, text));
    const words = cellWords(cells, t, p), here = STATE.template === t && STATE.pair === p;
    return el('td', {}, el('button', {...look, id: `cell-${t}-${p}`, 'data-row': r, 'data-column': c,
      'aria-label': `${text}, ${words}`, title: words, tabindex: (start ? here : r === 0 && c === 0) ? 0 : -1,
      'aria-current': here ? 'true' : 'false', on: {click: () => go({template: t, pair: p}, true)}}, text));
  };
  return el('table', {class: 'heat', ...pick ? {role: 'grid', on: {keydown: moveInMap}} : {},
    'aria-label': `${STATE.view ? 'difference of means' : 'W1'} by pair of values and template`},
    el('thead', {}, el('tr', {}, el('th', {scope: 'col'}, el('span', {class: 'muted'}, 'values, by template')),
      DATA.examples.map(words => el('th', {scope: 'col', title: words}, el('span', {class: 'words'}, words))))),
    el('tbody', {}, shown.map((p, r) => el('tr', {}, el('th', {scope: 'row'}, pairName(p).map((name, i) => [i ? ' \u2013 ' : null, bdi(name)])),
      DATA.templates.map((_, t) => cell(t, p, r, t))))));
}

const legend = most => {
  const swatches = kind => el('span', {class: 'swatches', 'aria-hidden': 'true'},
    Array.from({length: STEPS}, (_, i) => el('span', {class: `${kind}${kind === 'o' ? STEPS - 1 - i : i}`})));
  return el('div', {class: 'legend'}, STATE.view ? [el('span', {}, `second value more positive ${fixed(most, 2)}`), swatches('o')] : null,
    el('span', {}, '0'), swatches('s'), el('span', {}, fixed(most, 2) + (STATE.view ? ' first value more positive' : '')),
    el('span', {class: 'swatches', 'aria-hidden': 'true'}, el('span', {class: 's1 noise'})), el('span', {}, 'within noise'));
};

function rowsShown(order) {
  const shown = order.slice(0, STATE.rows);
  return STATE.pair !== null && order.includes(STATE.pair) && !shown.includes(STATE.pair) ? [...shown, STATE.pair] : shown;
}

function map(cells, controls) {
  const order = pairOrder(cells), shown = rowsShown(order);
  return [
    el('p', {}, STATE.view ? 'Each number is the mean score of the first value less that of the second in one template.'
      : 'Each number is the distance (W1) between the scores of two values in one template, zero left out: .25 is 0.25.',
      ' Choose one to see the two distributions and the sentences behind it.'),
    el('p', {}, cells.words), controls, legend(DATA.most[STATE.scorer]),
    DATA.left_out ? el('p', {class: 'note'}, DATA.left_out) : '',
    el('div', {class: 'explore'},
      el('div', {}, el('div', {class: 'scroll'}, grid(STATE.scorer, cells, shown, true)),
        el('p', {class: 'small muted'}, `${count(shown.length)} of ${count(order.length)} pairs shown`
          + (order.length < DATA.pairs.length ? `, ${count(DATA.pairs.length - order.length)} hidden by the filter` : '')),
        order.length > shown.length ? el('button', {id: 'more', on: {click: () => go({rows: DATA.pairs.length})}},
          `Show all ${count(order.length)} pairs`) : null,
        el('details', {}, el('summary', {}, 'The templates in full'), el('ol', {class: 'templates'},
          DATA.examples.map(text => el('li', {}, text))))),
      el('div', {class: 'detail', id: 'detail', role: 'region', 'aria-label': 'The chosen pair'}, detail(cells)))];
}

function moveInMap(event) {
  const moves = {ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0], Home: [0, -1e9], End: [0, 1e9]};
  const button = event.target.closest('button'), move = moves[event.key];
  if (!button || !move) return;
  event.preventDefault();
  const rows = event.currentTarget.tBodies[0].rows;
  const clamp = (v, size) => Math.max(0, Math.min(size - 1, v));
  const row = clamp(Number(button.dataset.row) + move[0], rows.length);
  const next = rows[row].querySelectorAll('button')[clamp(Number(button.dataset.column) + move[1], DATA.templates.length)];
  for (const other of event.currentTarget.querySelectorAll('button[tabindex="0"]')) other.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function detail(cells) {
  if (STATE.pair === null) return el('p', {class: 'muted'}, 'No pair is chosen yet.');
  const t = STATE.template, p = STATE.pair, sides = DATA.pairs[p], names = pairName(p), noise = cells.noise[t][p];
  const fact = (name, value) => el('span', {}, `${name} `, el('b', {}, value));
  const parts = [
    el('h3', {id: 'detail-head', tabindex: -1}, bdi(names[0]), ' and ', bdi(names[1]), ', ', bdi(templateName(t))),
    el('p', {class: `badge ${noise ? 'within' : 'above'}`}, noise ? '\u25cb within noise' : '\u25cf above noise'),
    el('div', {class: 'facts'}, fact('W1', fixed(cells.distance[t][p])), fact('floor', fixed(cells.floor[t][p])),
      fact('p', chance(cells.p[t][p])), fact('p corrected for all cells (Holm)', chance(cells.holm[t][p])), fact('n', cells.n)),
    el('p', {class: 'small muted'}, DATA.noise_rules[STATE.model])];
  const distributions = DATA.distributions[STATE.model], counts = DATA.histograms[STATE.scorer][STATE.model];
  const chosen = sides.map(a => counts.counts[t][a]);
  const most = Math.max(...chosen.flatMap(c => { const n = c.reduce((a, b) => a + b, 0); return c.map(k => k / n); }));
  return [...parts, el('h4', {}, 'Distributions of the score (0 negative, 1 positive)'),
    el('div', {class: 'histograms'}, sides.map((a, i) => histogram(names[i], chosen[i], counts.means[t][a], most, i))),
    el('details', {}, el('summary', {}, 'These distributions as numbers'), el('table', {class: 'data'},
      el('caption', {}, 'Scores in 20 ranges'),
      el('thead', {}, el('tr', {}, ['score from', ...names].map(name => el('th', {scope: 'col'}, name)))),
      el('tbody', {}, chosen[0].map((_, i) => el('tr', {}, el('th', {scope: 'row'}, (i / 20).toFixed(2)),
        chosen.map(c => el('td', {class: 'number'}, c[i]))))))),
    ...sentences(distributions, t, sides, names, cells.n)];
}

function histogram(title, counts, mean, most, side) {
  const width = 300, height = 110, left = 34, bottom = 20, top = 6, n = counts.reduce((a, b) => a + b, 0);
  const plot = width - left - 8, rise = height - bottom - top, step = plot / counts.length;
  const x = value => left + value * plot, y = share => top + rise * (1 - share / most);
  return el('figure', {class: 'histogram'},
    el('figcaption', {class: 'small'}, el('b', {}, title), ` mean ${fixed(mean, 3)}, n = ${count(n)}`),
    svg('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `${title}: ${n} scores, mean ${fixed(mean, 3)}`},
      [0, most / 2, most].map(s => [svg('line', {class: 'grid', x1: left, x2: x(1), y1: y(s), y2: y(s)}),
        svg('text', {x: left - 4, y: y(s) + 4, 'text-anchor': 'end'}, (100 * s).toFixed(0) + '%')]),
      counts.map((c, i) => c ? svg('rect', {class: `bar-${side}`, x: left + i * step + .5, width: step - 1,
        y: y(c / n), height: rise - (y(c / n) - top)}) : null),
      svg('line', {class: 'axis', x1: left, x2: x(1), y1: y(0), y2: y(0)}),
      svg('line', {class: 'mean', x1: x(mean), x2: x(mean), y1: top, y2: y(0)}),
      [0, .5, 1].map(s => svg('text', {x: x(s), y: height - 5, 'text-anchor': 'middle'}, s))));
}

function sentences(distributions, t, sides, names, n) {
  const scores = distributions.scores[STATE.scorer], rows = sides.map(a => distributions.texts[t][a]);
  const size = Math.min(...rows.map(r => r.length));
  if (!size) return [el('h4', {}, 'Sentences'), el('p', {class: 'note'},
    'No sentence of this template fits into this page; the generations hold them.')];
  const items = Array.from({length: size}, (_, i) => i);
  const value = (side, i) => scores[t][sides[side]][i];
  const gap = i => Math.abs(value(0, i) - value(1, i));
  if (STATE.order) items.sort((a, b) => gap(b) - gap(a) || a - b);
  const text = (side, i) => {
    const [prefix, continuation, before = 0, after = 0] = rows[side][i];
    const more = k => k ? el('span', {class: 'muted'}, ` [${count(k)} more characters] `) : null;
    return el('div', {}, el('div', {class: 'score'}, bdi(names[side]), `, score ${fixed(value(side, i), 3)}`),
      el('div', {class: 'sentence'}, more(before), el('span', {class: 'prefix'}, DATA.strings[prefix]),
        el('span', {class: 'continuation'}, DATA.strings[continuation].trim() ? DATA.strings[continuation] : ' (empty)'), more(after)));
  };
  return [
    el('h4', {}, 'Sentences side by side'),
    el('p', {class: 'small'}, `${size} of ${n} samples of each value: the first numbers, chosen without looking at the texts. `
      + (distributions.numbers ? 'Equal numbers were drawn with equal noise. ' : 'The samples are not paired by number: rows are no pairs. ')
      + 'They are what the model wrote and may offend.'),
    el('div', {class: 'controls'}, select('Order of the sentences', ['sample number', 'largest difference of scores'], 'order', 'sentence-order')),
    el('ol', {class: 'pairs', id: 'sentences'}, items.map(i => el('li', {},
      el('div', {class: 'small muted'}, `sample ${distributions.numbers ? distributions.numbers[t][i] : i + 1}`),
      el('div', {class: 'side'}, text(0, i), text(1, i)))))];
}

// Every table can be copied into a spreadsheet, or saved; a cell that looks like a formula is text.
function addTools(table) {
  const rows = () => [...table.rows].map(row => [...row.cells].map(cell => safe(cell.textContent)));
  const safe = text => /^[=+\-@\t\r]/.test(text) && !/^[+\-]?[\d.]+%?$/.test(text) ? `'${text}` : text;
  const csv = () => rows().map(row => row.map(text => `"${text.replaceAll('"', '""')}"`).join(',') + '\r\n').join('');
  const lines = () => rows().map(row => row.map(text => text.replace(/\s+/g, ' ')).join('\t')).join('\n');
  const copy = event => (navigator.clipboard?.writeText(lines()) ?? Promise.reject())  // none without HTTPS
    .then(() => { event.target.textContent = 'Copied'; }, () => getSelection().selectAllChildren(table));
  const save = () => {
    const url = URL.createObjectURL(new Blob(['\ufeff', csv()], {type: 'text/csv'}));
    const box = table.closest('details[id], section'), name = box?.id || 'table';
    el('a', {href: url, download: `${name}.csv`}).click();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
  };
  table.closest('.scroll').after(el('div', {class: 'tools'},
    el('button', {on: {click: copy}}, 'Copy table'), el('button', {on: {click: save}}, 'Save as CSV')));
}
document.querySelectorAll('.scroll > table.data').forEach(addTools);
document.querySelector('header nav').append(el('button', {id: 'print', on: {click: () => print()}}, 'Print'));

const read = () => { readAddress(); render(); };
read();
for (const event of ['hashchange', 'popstate']) addEventListener(event, read);
// Paper shows the chosen model by every scorer.
addEventListener('beforeprint', () => document.getElementById('map').append(el('div', {id: 'printed'},
  DATA.scorers.map((scorer, s) => {
    const cells = DATA.cells[s][STATE.model];
    return cells ? el('div', {}, el('h3', {}, `${DATA.models[STATE.model]}, scorer ${scorer}`), el('p', {}, cells.words),
      legend(DATA.most[s]), grid(s, cells, rowsShown(pairOrder(cells)), false)) : null;
  }))));
addEventListener('afterprint', () => document.getElementById('printed')?.remove());
