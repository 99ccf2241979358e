// Creates elements. Text from the cluster only becomes text nodes, never markup, and its control
// characters become visible.

const SVG = "http://www.w3.org/2000/svg";

/** Makes text harmless: shows control characters as pictures (␛), and characters that have no width or change the direction
 *  of text as \u{…}. Tabs stay. */
export function safe(text) {
  return String(text)
    .replace(/[\u0000-\u0008\u000a-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/\u007f/g, "\u2421")
    .replace(/[\u0080-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
      (c) => `\\u{${c.charCodeAt(0).toString(16)}}`);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child instanceof Node) node.append(child);
    else if (child !== null && child !== undefined && child !== false) node.append(document.createTextNode(safe(child)));
  }
  return node;
}

/** An HTML element. An attribute that is a function becomes a listener for the event of that name. */
export const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);

/** An SVG element, with attributes as in `el`. */
export const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

const shown = new WeakMap();

/** Rebuilds the content of a node if its data have changed. The element with the focus keeps it, by its data-key. */
export function show(node, data, build) {
  const mark = JSON.stringify(data);
  if (shown.get(node) === mark) return;
  shown.set(node, mark);
  const active = document.activeElement;
  const key = node.contains(active) ? active.dataset.key : undefined;
  node.replaceChildren(...[build(data)].flat(Infinity).filter(Boolean));
  if (key) node.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
}

/** A state as a coloured word. */
export const state = (word, mood) => el("span", {class: `state ${mood}`}, word);

/** A number with `digits` decimals and thin spaces between thousands. */
export function number(value, digits = 0) {
  if (value === null || value === undefined) return "–";
  const text = value.toLocaleString("en", {maximumFractionDigits: digits, minimumFractionDigits: digits});
  return text.replaceAll(",", "\u202f");
}

/** A loss: four significant digits. */
export const loss = (value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(4)).toString());

/** The time of day, with or without seconds. */
export function clock(millis, seconds = true) {
  const two = (n) => String(n).padStart(2, "0");
  const at = new Date(millis);
  const text = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return seconds ? `${text}:${two(at.getSeconds())}` : text;
}
