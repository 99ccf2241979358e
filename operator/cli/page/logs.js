// The logs: the last lines of one process.

import {clock, el, show} from "./dom.js";
import {poll} from "./poll.js";

const name = (rank) => (rank.rank === null ? `${rank.pod}, process ${rank.process}` : `rank ${rank.rank} (${rank.pod})`);
const key = (rank) => `${rank.pod}/${rank.process}`;

function line({at, who, text}) {
  return el("li", {}, at === null ? null : el("time", {}, clock(at)), el("span", {class: "who"}, who), el("span", {class: "text"}, text));
}

/** Logs; `update(ranks)` sets the choices. The page reads no log before the user chooses a rank. */
export function logs(namespace, job, report) {
  const choice = el("select", {change: () => open()});
  const previous = el("input", {type: "checkbox", change: () => open()});
  const before = el("label", {hidden: true}, previous, " before the last restart");
  const lines = el("ol", {class: "log", tabindex: "0", role: "log", "aria-label": "Lines of the log", "aria-live": "off", hidden: true});
  const note = el("p", {class: "empty"});
  const node = el("div", {}, el("p", {class: "controls"}, el("label", {}, "Log of ", choice), before), note, lines);
  let ranks = [];
  let stop = () => {};

  const say = (words) => show(note, words, () => el("span", {}, words));

  function open() {
    stop();
    stop = () => {};
    report("log");
    const rank = ranks.find((rank) => key(rank) === choice.value);
    before.hidden = !rank || rank.restarts === 0;
    lines.hidden = true;
    note.hidden = false;
    if (!rank) {
      say("Choose a rank to read its last lines.");
      return;
    }
    say("Reading the log …");
    const asked = new URLSearchParams({namespace, name: job, pod: rank.pod, process: rank.process});
    if (previous.checked && !before.hidden) asked.set("previous", "true");
    stop = poll(`api/log?${asked}`, take, (trouble) => report("log", trouble));
  }

  function take(answer) {
    const isAtEnd = lines.hidden || lines.scrollHeight - lines.scrollTop - lines.clientHeight < 24;
    lines.hidden = answer.lines.length === 0;
    note.hidden = answer.lines.length > 0 && answer.notes.length === 0;
    say(answer.notes.length > 0 ? answer.notes.join("; ") : "There are no lines yet.");
    show(lines, answer.lines, () => answer.lines.map(line));
    if (isAtEnd) lines.scrollTop = lines.scrollHeight;
  }

  say("Choose a rank to read its last lines.");
  return {
    node,
    close: () => stop(),
    update: (latest) => {
      ranks = latest;
      const chosen = choice.value;
      const options = ranks.map((rank) => [key(rank), name(rank)]);
      show(choice, options, () => [el("option", {value: ""}, "choose a rank"), ...options.map(([value, text]) => el("option", {value}, text))]);
      choice.value = options.some(([value]) => value === chosen) ? chosen : "";
      // The pod of the chosen rank is gone.
      if (choice.value !== chosen) open();
    },
  };
}
