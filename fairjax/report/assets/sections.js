// The parts around the map, and what changes the page.
function renderTabs() {
  const target = document.getElementById('scorers');
  target.setAttribute('role', 'tablist');
  target.setAttribute('aria-label', 'Scorers');
  const move = event => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step) return;
    event.preventDefault();
    go({scorer: (STATE.scorer + step + DATA.scorers.length) % DATA.scorers.length});
    document.getElementById(`tab-${STATE.scorer}`).focus();
  };
  const focused = target.contains(document.activeElement) ? document.activeElement.id : null;
  redraw(target, DATA.scorers.map((name, i) => el('button', {
    id: `tab-${i}`, role: 'tab', 'aria-selected': i === STATE.scorer ? 'true' : 'false', 'aria-controls': 'by-scorer',
    tabindex: i === STATE.scorer ? 0 : -1, on: {click: () => go({scorer: i}), keydown: move}}, `scorer ${name}`)));
  if (focused) document.getElementById(focused)?.focus({preventScroll: true});
  const panel = document.getElementById('by-scorer');
  if (DATA.scorers.length) {
    panel.setAttribute('role', 'tabpanel');
    panel.setAttribute('aria-labelledby', `tab-${STATE.scorer}`);
  } else target.hidden = true;
}

function renderSummary() {
  const verdicts = DATA.verdicts[STATE.scorer] ?? [];
  const found = verdicts.filter(v => v.estimates);
  const most = Math.max(1e-9, ...found.flatMap(v => v.estimates.flatMap(e => [e.value, e.null_p95]))) * 1.02;
  const width = Math.max(180, Math.min(300, body('summary').clientWidth - 40));
  const words = {above: '\u25cf above noise', within: '\u25cb within noise', unmeasured: 'not measured'};
  redraw(body('summary'),
    el('p', {class: 'lead'}, DATA.headlines[STATE.scorer] ?? 'No generations were measured.'),
    DATA.warnings.map(line => el('p', {class: 'note'}, line)),
    el('p', {class: 'small muted'}, `Bars: ${FLOOR_WORDS}. A bar that ends within the grey shows no difference.`),
    el('div', {class: 'cards'}, verdicts.map(v => el('article', {class: 'card'},
      el('header', {}, el('h3', {}, v.model), el('span', {class: `badge ${v.tone}`}, words[v.tone])),
      v.estimates ? v.estimates.map(e => estimateBar(e.name, e, most, width)) : null,
      v.sentences.map(line => el('p', {}, line))))));
}

function renderTradeoff() {
  const target = body('tradeoff'), axis = DATA.axes[STATE.y];
  if (!axis) {
    document.getElementById('tradeoff').hidden = true;
    return;
  }
  const points = axis.points[STATE.scorer];
  const tip = el('p', {class: 'tip small', role: 'status'}, 'Choose a mark to read its numbers.');
  const focused = document.activeElement?.id === 'axis';
  const methods = [...new Set(points.map(p => p.method))];
  const key = m => svg('svg', {width: 14, height: 14, class: 'inline', 'aria-hidden': 'true'},
    svg('g', {class: `m${Math.min(methods.indexOf(m), 4)}`}, svg('path', {class: 'mark', d: SHAPES[Math.min(methods.indexOf(m), 4)](7, 7)})));
  redraw(target,
    el('div', {class: 'controls'}, select('Against', DATA.axes.map(a => `${a.name} (${a.direction})`), STATE.y, i => go({y: i}), 'axis')),
    points.length ? tradeoff(points, axis, Math.max(280, Math.min(820, target.clientWidth)), text => { tip.textContent = text; })
      : el('p', {}, 'No model has both numbers.'),
    el('div', {class: 'legend'}, methods.map(m => [key(m), el('span', {}, m.replaceAll('_', ' '))]),
      el('span', {}, 'hollow: I.F. within noise; whiskers: one standard error of I.F.', axis.whisker)), tip);
  if (focused) document.getElementById('axis').focus({preventScroll: true});
}

function renderCurves() {
  const target = body('curves'), width = Math.max(280, Math.min(820, target.clientWidth));
  if (!DATA.curves.length) {
    document.getElementById('curves').hidden = true;
    return;
  }
  const key = i => svg('svg', {width: 22, height: 10, class: 'inline', 'aria-hidden': 'true'},
    svg('g', {class: `m${i % 5}`}, svg('line', {class: 'curve', x1: 0, x2: 22, y1: 5, y2: 5})));
  redraw(target, el('p', {class: 'small'}, 'Mean loss by step: solid lines are training, dashed ones with dots validation.'),
    DATA.curves.map(part => el('figure', {}, el('h3', {}, part.stage), curveChart(part, width),
      el('div', {class: 'legend'}, part.runs.map((run, i) => [key(i), el('span', {}, run.name)])),
      part.note ? el('p', {class: 'small muted'}, part.note) : null, table(part.table))));
}

const OPEN = new Set();  // entries of the ledger that the reader opened

function renderLedger() {
  const scorer = DATA.scorers[STATE.scorer];
  redraw(body('ledger'),
    el('p', {}, 'What each number is, where it comes from, and which reading was taken where the paper leaves several.'),
    DATA.ledger.map(entry => el('details', {class: 'card', id: `ledger-${entry.id}`, open: OPEN.has(entry.id),
      on: {toggle: event => OPEN[event.target.open ? 'add' : 'delete'](entry.id)}},
      el('summary', {}, el('b', {}, entry.metric), el('span', {class: 'muted'}, ` ${entry.id}; ${entry.equation}`)),
      el('dl', {},
        el('dt', {}, 'Paper'), el('dd', {}, entry.paper), el('dt', {}, 'Equation'), el('dd', {}, entry.equation),
        el('dt', {}, 'Definition'), el('dd', {}, entry.definition),
        el('dt', {}, 'Reading taken'), el('dd', {}, entry.reading),
        el('dt', {}, 'Alternatives'), el('dd', {}, entry.alternatives),
        el('dt', {}, 'Here'), el('dd', {}, entry.here.filter(h => h.scorer === null || h.scorer === scorer)
          .map(h => el('div', {}, h.words)))))));
}

function renderOnce() {
  document.getElementById('title').append(...plain(DATA.title));
  document.getElementById('subtitle').append(...plain(DATA.subtitle));
  document.getElementById('contents').append(...[['summary', 'In short'], ['map', 'Pairs and sentences'], ['tradeoff', 'Trade-off'],
    ...(DATA.curves.length ? [['curves', 'Training']] : []), ['numbers', 'Numbers'], ['ledger', 'Ledger'], ['limits', 'Limits'], ['made', 'Provenance']]
    .map(([id, name]) => el('a', {href: `#${id}`}, name)));
  body('numbers').append(el('p', {class: 'small'}, DATA.legend), ...DATA.absent.map(line => el('p', {class: 'small'}, line)),
    ...DATA.blocks.map(b => el('div', {}, el('h3', {}, b.heading), b.note ? el('p', {class: 'small'}, b.note) : null,
      b.tables.map(t => table(t, t.title !== b.heading)), b.lines.length ? el('ul', {class: 'small'}, b.lines.map(line => el('li', {}, line))) : null)));
  body('limits').append(el('ul', {}, DATA.limits.map(line => el('li', {}, line))));
  body('made').append(...DATA.made.map(t => table(t)), DATA.config === null ? '' :
    el('details', {}, el('summary', {}, 'Configuration'), el('pre', {}, DATA.config)));
}

function render() {
  for (const draw of [renderTabs, renderSummary, renderMap, renderTradeoff, renderCurves, renderLedger]) draw();
}

// Changes the state, draws what depends on it, and keeps the choice in the address.
function go(changes, show = false) {
  Object.assign(STATE, changes);
  if ('sort' in changes || 'filter' in changes || 'rows' in changes || 'order' in changes || 'template' in changes) renderMap();
  else if ('y' in changes) renderTradeoff();
  else render();
  writeAddress();
  if ('order' in changes) document.getElementById('sentence-order')?.focus({preventScroll: true});
  if (show) {
    const head = document.getElementById('detail-head');
    head.focus({preventScroll: true});
    const box = head.getBoundingClientRect();
    if (box.top < 60 || box.bottom > innerHeight * .7) head.scrollIntoView({block: 'start'});
  }
}

readAddress();
renderOnce();
render();
addEventListener('hashchange', () => { readAddress(); render(); });
addEventListener('popstate', () => { readAddress(); render(); });
let drawnAt = innerWidth;
addEventListener('resize', () => {
  if (innerWidth === drawnAt) return;
  drawnAt = innerWidth;
  render();
});
