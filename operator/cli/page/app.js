// Routes to a page, and shows the state of the connection.

import {clock, el, show} from "./dom.js";
import {jobPage} from "./job.js";
import {listPage} from "./list.js";

const main = document.getElementById("main");
const place = document.getElementById("place");
const live = document.getElementById("live");
const trouble = document.getElementById("trouble");

let close = () => {};
/** Present errors, by query. */
let troubles = new Map();
let lastAnswer = null;

function report(question, now) {
  if (now) troubles.set(question, now);
  else {
    troubles.delete(question);
    // `null` is a success; `undefined` means that the page no longer polls this query.
    if (now === null) lastAnswer = Date.now();
  }
  const first = [...troubles.values()][0];
  live.textContent = first ? "" : `live, ${clock(lastAnswer)}`;
  live.className = first ? "" : "good";
  trouble.hidden = !first;
  if (!first) return;
  const heads = {ended: "Connection lost.", lost: "The API server does not answer as it should.", missing: "Not found."};
  const old = lastAnswer && first.kind !== "missing" ? ` This is the state of ${clock(lastAnswer)}. The page tries again every few seconds.` : "";
  show(trouble, [first, old], () => [el("strong", {}, heads[first.kind]), " ", first.words, old]);
}

/** Sets the place (a namespace or a directory) and the title of the page. */
function head(where, title) {
  place.textContent = where;
  document.title = title ? `${title} – Roundhouse` : "Roundhouse";
}

function route() {
  close();
  troubles = new Map();
  trouble.hidden = true;
  const parts = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent).filter(Boolean);
  const page = parts.length === 2 ? jobPage(parts[0], parts[1], report, head) : listPage(report, head);
  main.replaceChildren(page.node);
  close = page.close;
}

window.addEventListener("hashchange", () => {
  route();
  main.focus();
});
route();
