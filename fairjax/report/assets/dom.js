'use strict';
// What every part of the page uses: its data, elements made from text, and its state in the address.
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
    nodes.push(text.slice(start, match.index));
    const mark = document.createElement('span');
    mark.className = 'control';
    mark.textContent = 'U+' + match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, '0');
    nodes.push(mark);
    start = match.index + match[0].length;
  }
  nodes.push(text.slice(start));
  return nodes;
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'on') for (const [event, run] of Object.entries(value)) element.addEventListener(event, run);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    if (child instanceof Node) element.append(child);
    else element.append(...plain(String(child)));
  }
  return element;
}
const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, name), attributes, children);

const fixed = (value, digits = 4) => value === null || value === undefined ? '\u2013' : value.toFixed(digits);
const chance = p => p < 0.0001 ? '< 0.0001' : p.toFixed(4);
const count = value => value.toLocaleString('en');
const redraw = (element, ...children) => { element.replaceChildren(); fill(element, {}, children); };
const body = id => document.querySelector(`#${id} > div`);

// The state: indices only, so that an address can name nothing that is not in the data.
const STATE = {scorer: 0, model: 0, template: null, pair: null, sort: 'distance', filter: '', rows: 15, y: 0, order: 'number'};

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

function writeAddress() {
  let hash = `#s=${STATE.scorer}&m=${STATE.model}`;
  if (STATE.pair !== null) hash += `&t=${STATE.template}&p=${STATE.pair}`;
  if (location.hash !== hash) history.pushState(null, '', hash);
}

function select(label, options, value, change, id) {
  const input = el('select', {id, on: {change: event => change(Number(event.target.value))}},
    options.map((text, i) => el('option', {value: i, selected: i === value}, text)));
  return el('label', {}, label, input);
}

// A table of texts; the first `text_columns` are words, the others numbers.
function table(data, titled = true) {
  const kind = i => i < data.text_columns ? {} : {class: 'number'};
  return el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': data.title},
    el('table', {class: 'data'}, titled ? el('caption', {}, data.title) : null,
      el('thead', {}, el('tr', {}, data.header.map((h, i) => el('th', {scope: 'col', ...kind(i)}, h)))),
      el('tbody', {}, data.rows.map(row => el('tr', {}, row.map((cell, i) =>
        el(i ? 'td' : 'th', i ? kind(i) : {scope: 'row'}, cell)))))));
}
