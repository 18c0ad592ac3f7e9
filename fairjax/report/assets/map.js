// From the heat map (pair of values by template) to two histograms to the sentences behind them.
const STEPS = 9;
const WIDE = 1056;  // as in the style sheet: map and detail stand side by side
const cellsOf = () => DATA.cells[STATE.scorer][STATE.model];
const pairName = p => DATA.pairs[p].map(i => DATA.values[i]);
const isNoise = (cells, t, p) => cells.noise[t][p] === 1;

function cellWords(cells, t, p) {
  const [a, b] = pairName(p);
  return `${a} and ${b}, template ${DATA.templates[t]}: W1 ${fixed(cells.distance[t][p], 3)} (floor `
    + `${fixed(cells.floor[t][p], 3)}), ${isNoise(cells, t, p) ? 'within' : 'above'} noise, p ${chance(cells.p[t][p])} (Holm ${chance(cells.holm[t][p])})`;
}

function pairOrder(cells) {
  const mean = p => cells.distance.reduce((sum, row) => sum + row[p], 0) / cells.distance.length;
  const words = STATE.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = DATA.pairs.map((_, p) => p).filter(p =>
    words.every(word => pairName(p).some(name => name.toLowerCase().includes(word))));
  const names = p => pairName(p).join('\n');
  return STATE.sort === 'distance' ? found.sort((a, b) => mean(b) - mean(a) || a - b)
    : found.sort((a, b) => names(a) < names(b) ? -1 : 1);
}

function renderMap() {
  if (!DATA.scorers.length) {  // nothing was measured: the other sections stand
    document.getElementById('map').hidden = true;
    return;
  }
  const target = body('map'), cells = cellsOf(), model = DATA.models[STATE.model];
  const focused = document.activeElement?.id;
  const controls = el('div', {class: 'controls'},
    select('Model', DATA.models.map(m => m.name), STATE.model, i => go({model: i}), 'model'),
    select('Order', ['largest distance first', 'names'], STATE.sort === 'distance' ? 0 : 1,
      i => go({sort: i ? 'name' : 'distance'}), 'order'),
    el('label', {}, 'Values', el('input', {id: 'filter', type: 'search', value: STATE.filter, autocomplete: 'off',
      placeholder: 'words in the names', on: {input: event => go({filter: event.target.value})}})));
  if (!cells) {
    redraw(target, controls, el('p', {}, `${model.name} was not measured with scorer ${DATA.scorers[STATE.scorer]}.`));
    return;
  }
  const order = pairOrder(cells), shown = order.slice(0, STATE.rows);
  if (STATE.pair !== null && order.includes(STATE.pair) && !shown.includes(STATE.pair)) shown.push(STATE.pair);
  const most = DATA.most[STATE.scorer];
  const step = d => Math.min(STEPS - 1, Math.floor(STEPS * d / most));
  const start = STATE.pair !== null && shown.includes(STATE.pair) ? `cell-${STATE.template}-${STATE.pair}` : null;
  const cell = (t, p, r, c) => el('td', {}, el('button', {
    id: `cell-${t}-${p}`, 'data-row': r, 'data-column': c, 'aria-label': cellWords(cells, t, p), title: cellWords(cells, t, p),
    class: `s${step(cells.distance[t][p])}${isNoise(cells, t, p) ? ' noise' : ''}`,
    tabindex: (start ? `cell-${t}-${p}` === start : r === 0 && c === 0) ? 0 : -1,
    'aria-current': STATE.template === t && STATE.pair === p ? 'true' : 'false',
    on: {click: () => go({template: t, pair: p}, true)}}, cells.distance[t][p].toFixed(2).replace(/^0/, '')));
  const grid = el('table', {class: 'heat', role: 'grid', 'aria-label': 'W1 by pair of values and template', on: {keydown: moveInMap}},
    el('thead', {}, el('tr', {}, el('th', {scope: 'col'}, el('span', {class: 'muted'}, 'template')),
      DATA.templates.map((t, i) => el('th', {scope: 'col', title: DATA.examples[i]}, t)))),
    el('tbody', {}, shown.map((p, r) => el('tr', {}, el('th', {scope: 'row'}, pairName(p).join(' \u2013 ')),
      DATA.templates.map((_, t) => cell(t, p, r, t))))));
  const more = order.length > shown.length ? el('button', {id: 'more', on: {click: () => go({rows: DATA.pairs.length})}},
    `Show all ${count(order.length)} pairs`) : null;
  redraw(target,
    el('p', {}, 'Each number is the distance (W1) between the scores of two values in one template, zero left out: '
      + '.25 is 0.25. Choose one to see the two distributions and the sentences behind it.'),
    el('p', {}, cells.words), controls,
    el('div', {class: 'legend'}, el('span', {}, '0'), el('span', {class: 'swatches', 'aria-hidden': 'true'},
      Array.from({length: STEPS}, (_, i) => el('span', {class: `s${i}`}))), el('span', {}, fixed(most, 2)),
      el('span', {class: 'swatches', 'aria-hidden': 'true'}, el('span', {class: 's1 noise'})), el('span', {}, 'within noise')),
    DATA.left_out ? el('p', {class: 'note'}, DATA.left_out) : null,
    el('div', {class: 'explore'},
      el('div', {}, el('div', {class: 'scroll'}, grid),
        el('p', {class: 'small muted'}, `${count(shown.length)} of ${count(order.length)} pairs shown`
          + (order.length < DATA.pairs.length ? `, ${count(DATA.pairs.length - order.length)} hidden by the filter` : '')), more,
        DATA.examples.length ? el('details', {}, el('summary', {}, 'The templates, with their first value'), el('dl', {class: 'templates'},
          DATA.examples.map((text, i) => [el('dt', {}, DATA.templates[i]), el('dd', {}, text)]))) : null),
      el('div', {class: 'detail', id: 'detail', role: 'region', 'aria-label': 'The chosen pair'}, detail(cells))));
  if (focused && ['filter', 'order', 'model'].includes(focused)) {
    const input = document.getElementById(focused);
    input.focus({preventScroll: true});
    if (focused === 'filter') input.setSelectionRange(input.value.length, input.value.length);
  }
}

function moveInMap(event) {
  const moves = {ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0], Home: [0, -1e9], End: [0, 1e9]};
  const button = event.target.closest('button'), move = moves[event.key];
  if (!button || !move) return;
  event.preventDefault();
  const rows = event.currentTarget.tBodies[0].rows;
  const clamp = (v, size) => Math.max(0, Math.min(size - 1, v));
  const row = clamp(Number(button.dataset.row) + move[0], rows.length);
  const column = clamp(Number(button.dataset.column) + move[1], DATA.templates.length);
  const next = rows[row].querySelectorAll('button')[column];
  for (const other of event.currentTarget.querySelectorAll('button[tabindex="0"]')) other.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function detail(cells) {
  if (STATE.pair === null) return el('p', {class: 'muted'}, 'No pair is chosen yet.');
  const t = STATE.template, p = STATE.pair, sides = DATA.pairs[p], names = pairName(p), n = cells.n;
  const noise = isNoise(cells, t, p);
  const parts = [
    el('h3', {id: 'detail-head', tabindex: -1}, `${names[0]} and ${names[1]}, template ${DATA.templates[t]}`),
    el('p', {class: `badge ${noise ? 'within' : 'above'}`}, noise ? '\u25cb within noise' : '\u25cf above noise'),
    el('div', {class: 'facts'}, el('span', {}, 'W1 ', el('b', {}, fixed(cells.distance[t][p]))),
      el('span', {}, 'floor ', el('b', {}, fixed(cells.floor[t][p]))),
      el('span', {}, 'p ', el('b', {}, chance(cells.p[t][p]))),
      el('span', {}, 'p corrected for all cells (Holm) ', el('b', {}, chance(cells.holm[t][p]))),
      el('span', {}, 'n ', el('b', {}, n))),
    el('p', {class: 'small muted'}, DATA.noise_rule)];
  const evidence = DATA.evidence[STATE.model];
  const counts = DATA.histograms[STATE.scorer][STATE.model];
  if (!evidence || !counts) {
    parts.push(el('p', {}, 'The generations were not at hand when this page was made: no distributions, no sentences.'));
    return parts;
  }
  const chosen = sides.map(a => counts.counts[t][a]);
  const shares = chosen.flatMap(c => { const sum = c.reduce((x, y) => x + y, 0); return c.map(k => k / sum); });
  const most = Math.max(...shares), room = body('map').clientWidth;
  const width = innerWidth >= WIDE ? Math.min(300, (room - 16) / 4 - 8) : room < 500 ? room : Math.min(300, room / 2 - 8);
  parts.push(el('h4', {}, 'Distributions of the score (0 negative, 1 positive)'),
    el('div', {class: 'histograms'}, sides.map((a, i) =>
      histogram(names[i], chosen[i], counts.means[t][a], most, i, width))),
    el('details', {}, el('summary', {}, 'These distributions as numbers'), table({
      title: 'Scores in 20 ranges', text_columns: 1, header: ['score from', ...names],
      rows: chosen[0].map((_, i) => [(i / 20).toFixed(2), ...chosen.map(c => String(c[i]))])})));
  parts.push(...sentences(evidence, t, sides, names, n));
  return parts;
}

function sentences(evidence, t, sides, names, n) {
  const scores = evidence.scores[STATE.scorer], rows = sides.map(a => evidence.texts[t][a]);
  const size = Math.min(...rows.map(r => r.length));
  if (!size) return [el('h4', {}, 'Sentences'), el('p', {class: 'note'}, DATA.no_sentences)];
  const items = Array.from({length: size}, (_, i) => i);
  const value = (side, i) => scores ? scores[t][sides[side]][i] : null;
  const gap = i => scores ? Math.abs(value(0, i) - value(1, i)) : 0;
  if (STATE.order === 'gap') items.sort((a, b) => gap(b) - gap(a) || a - b);
  const text = (side, i) => {
    const [prefix, continuation, before = 0, after = 0] = rows[side][i];
    const more = k => k ? el('span', {class: 'muted'}, ` [${count(k)} more characters] `) : null;
    return el('div', {}, el('div', {class: 'score'}, `${names[side]}, score ${fixed(value(side, i), 3)}`),
      el('div', {class: 'sentence'}, more(before), el('span', {class: 'prefix'}, DATA.strings[prefix]),
        el('span', {class: 'continuation'}, DATA.strings[continuation].trim() ? DATA.strings[continuation] : ' (empty)'), more(after)));
  };
  const paired = evidence.coupled;
  return [
    el('h4', {}, 'Sentences side by side'),
    el('p', {class: 'small'}, `${size} of ${n} samples of each value: the first numbers, chosen without looking at the texts. `
      + (paired ? 'Equal numbers were drawn with equal noise. ' : 'The samples were drawn independently: rows are no pairs. ')
      + 'They are what the model wrote and may offend.'),
    el('div', {class: 'controls'}, select('Order of the sentences', ['sample number', 'largest difference of scores'],
      STATE.order === 'gap' ? 1 : 0, i => go({order: i ? 'gap' : 'number'}), 'sentence-order')),
    el('ol', {class: 'pairs', id: 'sentences'}, items.map(i => el('li', {},
      el('div', {class: 'small muted'}, `sample ${evidence.numbers ? evidence.numbers[t][i] : i + 1}`),
      el('div', {class: 'side'}, text(0, i), text(1, i)))))];
}
