// Generations over time, with the incidents between them: as a picture, and as a list that says the same.

import {timeTicks} from "./chart.js";
import {clock, el, show, svg} from "./dom.js";

const HEIGHT = 96;
const BASE = 58;
const EDGE = 8;
const LISTED = 20;

const counted = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

function incident(told) {
  const who = [told.pod, told.rank === null ? null : `rank ${told.rank}`, told.node && `on ${told.node}`].filter(Boolean).join(" ");
  const exit = told.exitCode === null ? "" : ` (exit code ${told.exitCode}: ${told.exit})`;
  const step = told.step === null ? "" : ` after step ${told.step}`;
  return `${who}: ${told.reason}${exit}${step}${told.message ? `: ${told.message}` : ""}`;
}

function generation(told) {
  const size = counted(told.worldSize, "rank");
  return told.end === null ? `${size}, for ${told.lasted} so far` : `${size}, for ${told.lasted}`;
}

function list({generations, incidents}) {
  const all = [
    ...generations.map((told) => ({at: told.begin, age: told.age, name: `Generation ${told.number}`, text: generation(told), mood: ""})),
    ...incidents.map((told) => ({at: told.at, age: told.age, name: "Incident", text: incident(told), mood: "bad"})),
  ].sort((one, other) => other.at - one.at);
  const items = all.slice(0, LISTED).map(({at, age, name, text, mood}) => el("li", {class: mood},
    el("time", {datetime: new Date(at).toISOString()}, clock(at)), el("span", {class: "hint"}, `${age} ago`), el("strong", {}, name), el("span", {}, text)));
  const rest = all.length - items.length;
  return [el("ol", {class: "story"}, items), rest > 0 ? el("p", {class: "hint"}, `and ${rest} more before`) : null];
}

function picture(story, width) {
  const {generations, incidents} = story;
  const begin = generations[0]?.begin ?? story.begin;
  const end = Math.max(story.end, begin + 1000);
  const x = (at) => EDGE + ((Math.max(at, begin) - begin) / (end - begin)) * (width - 2 * EDGE);
  const most = Math.max(...generations.map((told) => told.worldSize), 1);
  const parts = [svg("line", {class: "grid", x1: EDGE, x2: width - EDGE, y1: BASE, y2: BASE})];
  generations.forEach((told, n) => {
    const from = x(told.begin);
    const wide = Math.max(x(told.end ?? end) - from - 1, 2);
    const high = 16 + 30 * (told.worldSize / most);
    parts.push(svg("rect", {class: n % 2 ? "generation odd" : "generation", x: from, y: BASE - high, width: wide, height: high, rx: 2},
      svg("title", {}, `Generation ${told.number}, from ${clock(told.begin)}: ${generation(told)}`)));
    const text = String(told.number);
    if (wide > 8 * text.length + 4) parts.push(svg("text", {class: "inside", x: from + wide / 2, y: BASE - 5, "text-anchor": "middle"}, text));
  });
  for (const told of incidents) {
    const at = x(told.at);
    parts.push(svg("path", {class: "incident", d: `M${at} ${BASE + 2}l5 9h-10z`},
      svg("title", {}, `${clock(told.at)}: ${incident(told)}`)));
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

/** The timeline; `update(story)` draws it. */
export function timeline() {
  const drawing = el("div", {class: "timeline"});
  const words = el("div", {}, el("p", {class: "empty"}, "Reading what has been logged …"));
  const node = el("div", {}, drawing, words);
  let story = null;
  const draw = () => {
    if (!story) return;
    const {generations, incidents} = story;
    if (generations.length + incidents.length === 0) {
      show(words, null, () => el("p", {class: "empty"}, "No generation has begun: the workers have not trained together yet."));
      return;
    }
    drawing.replaceChildren(picture(story, Math.max(node.clientWidth, 240)));
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
    update: (told) => {
      story = told;
      draw();
    },
  };
}
