// A chart: a curve with axes. The pointer, or the arrow keys while the chart has the focus, reads
// single values.

import {clock, el, loss, number, svg} from "./dom.js";

const HEIGHT = 190;
const MARGIN = {top: 10, right: 12, bottom: 24, left: 52};
const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

/** About `count` round numbers between `low` and `high`. */
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const far = (n) => Math.abs(Math.log(n / rough));
  const step = [1, 2, 5, 10].map((n) => n * power).reduce((best, n) => (far(n) < far(best) ? n : best));
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) found.push(Math.abs(at) < step * 1e-6 ? 0 : at);
  return found;
}

/** About `count` round times between `begin` and `end`, in milliseconds since 1970. */
export function timeTicks(begin, end, count) {
  const rough = (end - begin) / 1000 / count;
  const step = 1000 * (TIMES.find((seconds) => seconds >= rough) ?? Math.ceil(rough / 86400) * 86400);
  const zone = new Date(begin).getTimezoneOffset() * 60000;
  const found = [];
  for (let at = Math.ceil((begin - zone) / step) * step + zone; at <= end; at += step) found.push(at);
  return {found, text: (at) => (step >= 86400000 ? new Date(at).toLocaleDateString("en", {month: "short", day: "numeric"}) : clock(at, step < 60000))};
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  if (size !== 0 && size < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(4)));
}

/** A chart; `update(curve, marks)` draws it, with vertical lines at the times `marks`. */
export function chart(title) {
  const now = el("output", {"aria-live": "off"});
  const picture = svg("svg", {tabindex: "0", role: "img", height: HEIGHT});
  const empty = el("p", {class: "empty"}, "There are no values yet.");
  const plot = el("div", {}, picture);
  const node = el("figure", {class: "chart"}, el("figcaption", {}, el("span", {}, title), now), plot, empty);
  let curve = null;
  let marks = [];
  let cursor = null;

  const value = (y) => (curve.title === "Loss" ? loss(y) : number(y));
  const unit = () => (curve.unit ? ` ${curve.unit}` : "");
  const place = (x) => (curve.isOverTime ? clock(curve.begin + 1000 * x) : `step ${number(x)}`);

  function read() {
    const {points} = curve;
    const [x, y] = points[cursor ?? points.length - 1];
    now.replaceChildren(`${value(y)}${unit()}`, el("span", {class: "hint"}, cursor === null ? " now" : ` at ${place(x)}`));
    now.setAttribute("aria-live", cursor === null ? "off" : "polite");
  }

  function draw() {
    const points = curve?.points ?? [];
    picture.toggleAttribute("hidden", points.length === 0);
    empty.hidden = points.length > 0;
    if (points.length === 0) {
      now.replaceChildren();
      return;
    }
    if (cursor !== null && cursor >= points.length) cursor = null;
    const width = Math.max(plot.clientWidth, 200);
    const inner = {width: width - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom};
    const xs = [points[0][0], points.at(-1)[0]];
    if (curve.isOverTime) xs[1] = Math.max(xs[1], (curve.end - curve.begin) / 1000);
    if (xs[0] === xs[1]) xs[1] = xs[0] + 1;
    let [low, high] = points.reduce(([low, high], [, y]) => [Math.min(low, y), Math.max(high, y)], [Infinity, -Infinity]);
    if (curve.isOverTime) low = Math.min(0, low);
    if (low === high) [low, high] = [low - Math.abs(low) * 0.5 - 0.5, high + Math.abs(high) * 0.5 + 0.5];
    high += (high - low) * 0.06;
    const x = (at) => MARGIN.left + ((at - xs[0]) / (xs[1] - xs[0])) * inner.width;
    const y = (at) => MARGIN.top + (1 - (at - low) / (high - low)) * inner.height;
    const bottom = MARGIN.top + inner.height;

    const parts = [];
    for (const at of ticks(low, high, 4)) {
      // A number of ranks is whole, so other grid lines make no sense.
      if (curve.isStepped && !Number.isInteger(at)) continue;
      parts.push(svg("line", {class: "grid", x1: MARGIN.left, x2: MARGIN.left + inner.width, y1: y(at), y2: y(at)}));
      parts.push(svg("text", {x: MARGIN.left - 6, y: y(at) + 4, "text-anchor": "end"}, short(at)));
    }
    const count = Math.max(2, Math.floor(inner.width / 60));
    const times = curve.isOverTime ? timeTicks(curve.begin + 1000 * xs[0], curve.begin + 1000 * xs[1], count) : null;
    const labels = times
      ? times.found.map((at) => [x((at - curve.begin) / 1000), times.text(at)])
      : ticks(xs[0], xs[1], count).map((at) => [x(at), short(at)]);
    for (const [at, text] of labels) {
      parts.push(svg("line", {class: "grid", x1: at, x2: at, y1: bottom, y2: bottom + 4}));
      if (at < MARGIN.left + 18) continue;
      const near = at > width - 34 ? "end" : "middle";
      parts.push(svg("text", {x: near === "end" ? width - 2 : at, y: bottom + 17, "text-anchor": near}, text));
    }
    parts.push(svg("text", {x: MARGIN.left - 6, y: bottom + 17, "text-anchor": "end"}, curve.isOverTime ? "time" : "step"));
    if (curve.isOverTime) {
      for (const mark of marks) {
        const at = x((mark - curve.begin) / 1000);
        if (at >= MARGIN.left) parts.push(svg("line", {class: "mark", x1: at, x2: at, y1: MARGIN.top, y2: bottom}));
      }
    }
    let path = "";
    points.forEach(([px, py], n) => {
      if (n === 0) path += `M${x(px).toFixed(1)} ${y(py).toFixed(1)}`;
      else if (curve.isStepped) path += `H${x(px).toFixed(1)}V${y(py).toFixed(1)}`;
      else path += `L${x(px).toFixed(1)} ${y(py).toFixed(1)}`;
    });
    if (curve.isStepped) path += `H${x(xs[1]).toFixed(1)}`;
    parts.push(svg("path", {class: "curve", d: path}));
    if (points.length === 1) parts.push(svg("circle", {class: "dot", cx: x(points[0][0]), cy: y(points[0][1]), r: 3}));
    if (cursor !== null) {
      const [cx, cy] = points[cursor];
      parts.push(svg("line", {class: "cursor", x1: x(cx), x2: x(cx), y1: MARGIN.top, y2: bottom}));
      parts.push(svg("circle", {class: "dot", cx: x(cx), cy: y(cy), r: 3.5}));
    }
    picture.setAttribute("width", width);
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const last = points.at(-1);
    picture.setAttribute("aria-label", `${title}: ${value(last[1])}${unit()} at ${place(last[0])}, from ${value(points[0][1])} at ${place(points[0][0])}; `
      + `lowest ${value(Math.min(...points.map((p) => p[1])))}, highest ${value(Math.max(...points.map((p) => p[1])))}. Arrow keys read single values.`);
    picture.replaceChildren(...parts);
    picture.onpointermove = (event) => {
      const at = xs[0] + ((event.offsetX - MARGIN.left) / inner.width) * (xs[1] - xs[0]);
      let best = 0;
      points.forEach(([px], n) => { if (Math.abs(px - at) < Math.abs(points[best][0] - at)) best = n; });
      move(best);
    };
    read();
  }

  function move(to) {
    if (cursor === to) return;
    cursor = to;
    draw();
  }
  picture.addEventListener("pointerleave", () => move(null));
  picture.addEventListener("blur", () => move(null));
  picture.addEventListener("keydown", (event) => {
    const last = curve.points.length - 1;
    const by = Math.max(1, Math.round(last / 50));
    const from = cursor ?? last;
    const to = {ArrowLeft: from - by, ArrowRight: from + by, Home: 0, End: last}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    move(Math.min(last, Math.max(0, to)));
  });
  let wide = 0;
  const sizes = new ResizeObserver(() => {
    if (plot.clientWidth === wide) return;
    wide = plot.clientWidth;
    draw();
  });
  sizes.observe(plot);

  let drawn = "";
  return {
    node,
    close: () => sizes.disconnect(),
    update: (latest, at) => {
      const mark = JSON.stringify([latest, at]);
      if (mark === drawn) return;
      drawn = mark;
      curve = latest;
      marks = at;
      draw();
    },
  };
}
