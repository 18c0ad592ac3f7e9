// Charts. Each is drawn in the pixels that it has, so that its letters keep their size on a phone.
const FLOOR_WORDS = 'grey: up to the floor, the largest value expected by chance alone (95th percentile)';

// A bar of an estimate over the band up to its floor.
function estimateBar(name, estimate, most, width) {
  const x = value => Math.max(0, Math.min(1, value / most)) * width;
  const error = estimate.std_error;
  return el('div', {},
    el('div', {class: 'small'}, name + ' ', el('b', {class: 'number'}, estimate.words)),
    svg('svg', {width, height: 16, role: 'img', 'aria-label': `${name} ${estimate.words}`},
      svg('line', {class: 'grid', x1: 0, x2: width, y1: 14.5, y2: 14.5}),
      svg('rect', {class: 'bar-0', x: 0, y: 4, width: x(estimate.value), height: 8}),
      svg('rect', {class: 'floor', x: 0, y: 1, width: x(estimate.null_p95), height: 14}),
      error === null ? null : svg('line', {class: 'whisker', x1: x(estimate.value - error),
        x2: x(estimate.value + error), y1: 8, y2: 8})));
}

function histogram(title, counts, mean, most, side, width) {
  const height = 110, left = 34, bottom = 20, top = 6, n = counts.reduce((a, b) => a + b, 0);
  const plot = width - left - 8, rise = height - bottom - top;
  const x = value => left + value * plot, y = share => top + rise * (1 - share / most);
  const step = plot / counts.length;
  const label = `${title}: ${n} scores, mean ${fixed(mean, 3)}`;
  const ticks = [0, most / 2, most];
  return el('figure', {class: 'histogram'},
    el('figcaption', {class: 'small'}, el('b', {}, title), ` mean ${fixed(mean, 3)}, n = ${count(n)}`),
    svg('svg', {width, height, role: 'img', 'aria-label': label},
      ticks.map(t => [svg('line', {class: 'grid', x1: left, x2: x(1), y1: y(t), y2: y(t)}),
        svg('text', {class: 'quiet', x: left - 4, y: y(t) + 4, 'text-anchor': 'end'}, (100 * t).toFixed(0) + '%')]),
      counts.map((c, i) => c ? svg('rect', {class: `bar-${side}`, x: left + i * step + .5, width: Math.max(1, step - 1),
        y: y(c / n), height: rise - (y(c / n) - top)}) : null),
      svg('line', {class: 'axis', x1: left, x2: x(1), y1: y(0), y2: y(0)}),
      svg('line', {class: 'mean', x1: x(mean), x2: x(mean), y1: top, y2: y(0)}),
      [0, .5, 1].map(t => svg('text', {class: 'quiet', x: x(t), y: height - 5, 'text-anchor': 'middle'}, t))));
}

function niceTicks(low, high) {
  const raw = (high - low) / 4 || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(k => k * power).find(s => s >= raw);
  const ticks = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step / 1e6; t += step) ticks.push(Number(t.toPrecision(6)));
  return ticks;
}

const SHAPES = [
  (x, y) => `M${x - 5} ${y - 5}h10v10h-10z`, (x, y) => `M${x} ${y - 6.5}l6.5 6.5l-6.5 6.5l-6.5 -6.5z`,
  (x, y) => `M${x - 5.5} ${y}a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0 -11 0z`,
  (x, y) => `M${x} ${y - 6.5}l6 11h-12z`, (x, y) => `M${x} ${y + 6.5}l6 -11h-12z`];

// Fairness against a cost: a line for each method, hollow marks for what is within noise.
function tradeoff(points, axis, width, tell) {
  const height = Math.max(280, Math.min(420, width * .62)), left = 50, right = 14, top = 14, bottom = 44;
  const spread = (values, least) => {
    const low = Math.min(...values), high = Math.max(...values), room = Math.max((high - low) * .12, least);
    return [Math.max(0, low - room), high + room];
  };
  const error = p => p.estimate.std_error ?? 0;
  const [x0, x1] = spread(points.flatMap(p => [p.estimate.value - error(p), p.estimate.value + error(p), p.estimate.null_p95]), 1e-3);
  const [y0, y1] = spread(points.flatMap(p => [p.y, p.low ?? p.y, p.high ?? p.y]), 1e-3);
  const x = v => left + (x1 - v) / (x1 - x0) * (width - left - right);
  const y = v => top + (y1 - v) / (y1 - y0) * (height - top - bottom);
  const methods = [...new Set(points.map(p => p.method))];
  const shape = m => Math.min(methods.indexOf(m), SHAPES.length - 1);
  const line = m => points.filter(p => p.method === m).sort((a, b) => (a.weight ?? -1) - (b.weight ?? -1));
  const placed = [];
  const label = p => {
    const w = 6.4 * p.label.length, px = x(p.estimate.value), py = y(p.y);
    const spots = [[9, 4], [-9 - w, 4], [-w / 2, -12], [-w / 2, 22], [9, -10], [-9 - w, -10], [9, 18], [-9 - w, 18], [-w / 2, -28], [-w / 2, 38], [9, -26], [9, 34]]
      .map(([dx, dy]) => ({x: px + dx, y: py + dy, w, h: 13}));
    const cost = s => (s.x < left || s.x + s.w > width || s.y < top || s.y > height - bottom ? 50 : 0)
      + placed.filter(o => s.x < o.x + o.w && o.x < s.x + s.w && Math.abs(s.y - o.y) < 13).length * 10;
    const best = spots.reduce((a, b) => cost(b) < cost(a) ? b : a);
    placed.push(best);
    return svg('text', {class: 'label', x: best.x, y: best.y}, p.label);
  };
  for (const p of points) placed.push({x: x(p.estimate.value) - 7, y: y(p.y) + 5, w: 14, h: 13});
  return svg('svg', {width, height, role: 'group', 'aria-label': `I.F. against ${axis.name}; fairer to the right`},
    niceTicks(x0, x1).map(t => [svg('line', {class: 'grid', x1: x(t), x2: x(t), y1: top, y2: height - bottom}),
      svg('text', {class: 'quiet', x: x(t), y: height - bottom + 16, 'text-anchor': 'middle'}, t)]),
    niceTicks(y0, y1).map(t => [svg('line', {class: 'grid', x1: left, x2: width - right, y1: y(t), y2: y(t)}),
      svg('text', {class: 'quiet', x: left - 6, y: y(t) + 4, 'text-anchor': 'end'}, t)]),
    svg('text', {x: (left + width - right) / 2, y: height - 8, 'text-anchor': 'middle'}, 'I.F. (fairer to the right \u2192)'),
    svg('text', {x: 13, y: (top + height - bottom) / 2, 'text-anchor': 'middle',
      transform: `rotate(-90 13 ${(top + height - bottom) / 2})`}, axis.name),
    methods.map(m => svg('g', {class: `m${shape(m)}`}, svg('polyline', {class: 'link',
      points: line(m).map(p => `${x(p.estimate.value)},${y(p.y)}`).join(' ')}))),
    points.map(p => [
      svg('line', {class: 'whisker', x1: x(p.estimate.value - error(p)), x2: x(p.estimate.value + error(p)), y1: y(p.y), y2: y(p.y)}),
      p.low === undefined ? null : svg('line', {class: 'whisker', x1: x(p.estimate.value), x2: x(p.estimate.value), y1: y(p.low), y2: y(p.high)})]),
    points.map(label),
    methods.map(m => svg('g', {class: `m${shape(m)}`}, line(m).map(p => {
      const words = `${p.name}: I.F. ${p.estimate.words}, ${axis.name} ${p.words}`;
      const show = () => tell(words);
      return svg('g', {tabindex: 0, role: 'img', 'aria-label': words, on: {focus: show, mouseenter: show, click: show}},
        svg('path', {class: p.estimate.within_floor ? 'mark hollow' : 'mark', d: SHAPES[shape(m)](x(p.estimate.value), y(p.y))}));
    }))));
}

// The loss of every run of a stage by step: training solid, validation dashed with dots.
function curveChart(part, width) {
  const height = Math.max(220, Math.min(340, width * .45)), left = 50, right = 14, top = 10, bottom = 40;
  const all = part.runs.flatMap(run => [...run.train, ...run.valid]);
  const most = Math.max(1, ...all.map(p => p[0])), y0 = Math.min(...all.map(p => p[1])), y1 = Math.max(...all.map(p => p[1]));
  const room = Math.max((y1 - y0) * .05, 1e-3), low = y0 - room, high = y1 + room;
  const x = step => left + step / most * (width - left - right);
  const y = loss => top + (high - loss) / (high - low) * (height - top - bottom);
  const line = (points, kind) => points.length ? svg('polyline', {class: `curve ${kind}`, points: points.map(([s, l]) => `${x(s)},${y(l)}`).join(' ')}) : null;
  const dots = points => points.map(([s, l]) => svg('circle', {class: 'dot', cx: x(s), cy: y(l), r: 2.5}));
  return svg('svg', {width, height, role: 'img', 'aria-label': `Loss by step, ${part.stage}: ${part.runs.map(run => run.name).join(', ')}`},
    niceTicks(0, most).map(t => [svg('line', {class: 'grid', x1: x(t), x2: x(t), y1: top, y2: height - bottom}),
      svg('text', {class: 'quiet', x: x(t), y: height - bottom + 16, 'text-anchor': 'middle'}, count(t))]),
    niceTicks(low, high).map(t => [svg('line', {class: 'grid', x1: left, x2: width - right, y1: y(t), y2: y(t)}),
      svg('text', {class: 'quiet', x: left - 6, y: y(t) + 4, 'text-anchor': 'end'}, t)]),
    svg('text', {x: (left + width - right) / 2, y: height - 6, 'text-anchor': 'middle'}, 'step'),
    svg('text', {x: 13, y: (top + height - bottom) / 2, 'text-anchor': 'middle',
      transform: `rotate(-90 13 ${(top + height - bottom) / 2})`}, 'loss'),
    part.runs.map((run, i) => svg('g', {class: `m${i % 5}`}, line(run.train, 'train'), line(run.valid, 'valid'), dots(run.valid))));
}
