// The timeline: generations and incidents, as a picture and as a list with the same content.

import {timeTicks} from "./chart.js";
import {clock, el, show, svg} from "./dom.js";

const HEIGHT = 96;
const BASE = 58;
const EDGE = 8;
const LISTED = 20;

const counted = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

function incident(it) {
  const who = [it.pod, it.rank === null ? null : `rank ${it.rank}`, it.node && `on ${it.node}`].filter(Boolean).join(" ");
  const exit = it.exitCode === null ? "" : ` (exit code ${it.exitCode}: ${it.exit})`;
  const step = it.step === null ? "" : ` after step ${it.step}`;
  return `${who}: ${it.reason}${exit}${step}${it.message ? `: ${it.message}` : ""}`;
}

function generation(it) {
  const size = counted(it.worldSize, "rank");
  return it.end === null ? `${size}, for ${it.lasted} so far` : `${size}, for ${it.lasted}`;
}

function list({generations, incidents}) {
  const all = [
    ...generations.map((it) => ({at: it.begin, age: it.age, name: `Generation ${it.number}`, text: generation(it), mood: ""})),
    ...incidents.map((it) => ({at: it.at, age: it.age, name: "Incident", text: incident(it), mood: "bad"})),
  ].sort((one, other) => other.at - one.at);
  const items = all.slice(0, LISTED).map(({at, age, name, text, mood}) => el("li", {class: mood},
    el("time", {datetime: new Date(at).toISOString()}, clock(at)), el("span", {class: "hint"}, `${age} ago`), el("strong", {}, name), el("span", {}, text)));
  const rest = all.length - items.length;
  return [el("ol", {class: "history"}, items), rest > 0 ? el("p", {class: "hint"}, `and ${rest} more before`) : null];
}

function picture(history, width) {
  const {generations, incidents} = history;
  const begin = generations[0]?.begin ?? history.begin;
  const end = Math.max(history.end, begin + 1000);
  const x = (at) => EDGE + ((Math.max(at, begin) - begin) / (end - begin)) * (width - 2 * EDGE);
  const most = Math.max(...generations.map((it) => it.worldSize), 1);
  const parts = [svg("line", {class: "grid", x1: EDGE, x2: width - EDGE, y1: BASE, y2: BASE})];
  generations.forEach((it, n) => {
    const from = x(it.begin);
    const wide = Math.max(x(it.end ?? end) - from - 1, 2);
    const high = 16 + 30 * (it.worldSize / most);
    parts.push(svg("rect", {class: n % 2 ? "generation odd" : "generation", x: from, y: BASE - high, width: wide, height: high, rx: 2},
      svg("title", {}, `Generation ${it.number}, from ${clock(it.begin)}: ${generation(it)}`)));
    const text = String(it.number);
    if (wide > 8 * text.length + 4) parts.push(svg("text", {class: "inside", x: from + wide / 2, y: BASE - 5, "text-anchor": "middle"}, text));
  });
  for (const it of incidents) {
    const at = x(it.at);
    parts.push(svg("path", {class: "incident", d: `M${at} ${BASE + 2}l5 9h-10z`},
      svg("title", {}, `${clock(it.at)}: ${incident(it)}`)));
  }
  const times = timeTicks(begin, end, Math.max(2, Math.floor(width / 110)));
  for (const at of times.found) {
    const middle = Math.min(Math.max(x(at), 30), width - 30);
    parts.push(svg("line", {class: "grid", x1: x(at), x2: x(at), y1: BASE, y2: BASE + 14}));
    parts.push(svg("text", {x: middle, y: HEIGHT - 8, "text-anchor": "middle"}, times.text(at)));
  }
  const label = `${counted(generations.length, "generation")} and ${counted(incidents.length, "incident")} over time; the list below says the same.`;
  return svg("svg", {role: "img", "aria-label": label, width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`}, parts);
}

/** The timeline; `update(history)` draws it. */
export function timeline() {
  const drawing = el("div", {class: "timeline"});
  const words = el("div", {}, el("p", {class: "empty"}, "Reading the logs …"));
  const node = el("div", {}, drawing, words);
  let history = null;
  const draw = () => {
    if (!history) return;
    const {generations, incidents} = history;
    if (generations.length + incidents.length === 0) {
      show(words, null, () => el("p", {class: "empty"}, "No generation has begun: the workers have not trained together yet."));
      return;
    }
    drawing.replaceChildren(picture(history, Math.max(node.clientWidth, 240)));
    show(words, {generations, incidents}, list);
  };
  let wide = 0;
  const sizes = new ResizeObserver(() => {
    if (node.clientWidth === wide) return;
    wide = node.clientWidth;
    draw();
  });
  sizes.observe(node);
  return {
    node,
    close: () => sizes.disconnect(),
    update: (latest) => {
      history = latest;
      draw();
    },
  };
}
