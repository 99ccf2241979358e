// The page of one job.

import {chart} from "./chart.js";
import {el, number, show, state} from "./dom.js";
import {logs} from "./logs.js";
import {poll} from "./poll.js";
import {section, table} from "./tables.js";
import {timeline} from "./timeline.js";

const RANKS = [
  {title: "Rank", class: "number name", cell: (rank) => (rank.rank === null ? null : `${rank.rank}`)},
  {title: "Pod", cell: (rank) => rank.pod},
  {title: "Node", cell: (rank) => rank.node},
  {title: "State", cell: (rank) => [state(rank.state, rank.mood), rank.slower ? ` ${rank.slower.toFixed(1)} × slower` : null]},
  {title: "Step", class: "number", cell: (rank) => number(rank.step)},
  {title: "Lag", class: "number", cell: (rank) => number(rank.lag)},
  {title: "Samples/s", class: "number", cell: (rank) => number(rank.samplesPerSecond)},
  {title: "Restarts", class: "number", cell: (rank) => number(rank.restarts)},
  {title: "Last exit", class: "long", cell: (rank) => rank.lastExit},
];
// For a job with sharded workers.
const RANKS_WITH_SHARDS = RANKS.toSpliced(1, 0, {title: "Shard", class: "number", cell: (rank) => rank.shard});
// For a job whose replicas have several pods: replica 1, pod 0 of it is 1.0.
const RANKS_WITH_REPLICAS = RANKS_WITH_SHARDS.toSpliced(1, 0, {title: "Replica", class: "number", cell: (rank) => rank.replica});
const CONDITIONS = [
  {title: "Type", class: "name", cell: (it) => it.type},
  {title: "Status", cell: (it) => it.status},
  {title: "Reason", cell: (it) => it.reason},
  {title: "Since", class: "number", cell: (it) => it.since},
  {title: "Message", class: "long", cell: (it) => it.message},
];
const EVENTS = [
  {title: "Age", class: "number", cell: (it) => it.age},
  {title: "Reason", class: "name", cell: (it) => el("span", {class: it.isWarning ? "bad" : ""}, it.reason)},
  {title: "Object", cell: (it) => it.about},
  {title: "Message", class: "long", cell: (it) => it.message},
];

const empty = (words) => el("p", {class: "empty"}, words);
const items = (lines) => el("ul", {}, lines.map((line) => el("li", {}, line)));

function progress(current) {
  if (!current) return null;
  const percent = Math.floor((100 * current.step) / current.totalSteps);
  const label = `Step ${current.step} of ${current.totalSteps}, ${percent} %`;
  return el("div", {class: "progress"}, el("progress", {max: current.totalSteps, value: current.step, "aria-label": label}),
    el("span", {}, `${number(current.step)} of ${number(current.totalSteps)} steps, ${percent} %`));
}

function summary(job) {
  const lines = job.summary.map((line) => el("p", {}, line));
  const wrong = job.diagnosis;
  return [
    job.note ? el("p", {class: "note"}, job.note) : null,
    progress(job.progress),
    ...lines,
    wrong ? el("div", {class: "diagnosis"}, el("h2", {}, "What is wrong"), el("p", {}, wrong.summary),
      wrong.evidence.length > 0 ? [el("h3", {}, "How that is known"), items(wrong.evidence)] : null,
      wrong.advice.length > 0 ? [el("h3", {}, "What to do"), items(wrong.advice)] : null) : null,
    job.next.length > 0 ? el("div", {class: "next"}, el("h2", {}, "What happens next"), items(job.next)) : null,
  ];
}

/** The page of a job. */
export function jobPage(namespace, name, report, head) {
  const title = el("h1", {}, name);
  const body = {
    summary: el("div", {class: "summary"}, empty("Reading the job …")),
    ranks: el("div"),
    conditions: el("div"),
    events: el("div"),
  };
  const charts = ["Loss", "Throughput", "World size"].map(chart);
  const line = timeline();
  const log = logs(namespace, name, report);
  const node = el("div", {},
    title, body.summary,
    section("Curves", el("div", {class: "charts"}, charts.map((it) => it.node)), "from the log of rank 0; red lines are incidents"),
    section("Generations", line.node),
    section("Ranks", body.ranks),
    section("Conditions", body.conditions),
    section("Events", body.events, "newest first"),
    section("Logs", log.node));

  const take = (job) => {
    head(job.place, job.name);
    show(title, [job.name, job.state, job.mood], () => [job.name, " ", state(job.state, job.mood)]);
    const {summary: lines, diagnosis, next, note} = job;
    show(body.summary, {summary: lines, diagnosis, next, note, progress: job.progress}, summary);
    show(body.ranks, job.ranks, (ranks) => {
      const ofShards = ranks.some((rank) => rank.shard) ? RANKS_WITH_SHARDS : RANKS;
      const columns = ranks.some((rank) => rank.replica) ? RANKS_WITH_REPLICAS : ofShards;
      return ranks.length > 0 ? table("Ranks", columns, ranks) : empty("No worker has been created.");
    });
    show(body.conditions, job.conditions, (all) => (all.length > 0 ? table("Conditions", CONDITIONS, all) : empty("The operator has not seen the job yet.")));
    show(body.events, job.events, (all) => (all.length > 0 ? table("Events", EVENTS, all) : empty("There are no events. Kubernetes keeps them for an hour.")));
    log.update(job.ranks);
  };
  const takeHistory = (history) => {
    const marks = history.incidents.map((incident) => incident.at);
    history.curves.forEach((curve, n) => charts[n].update({...curve, end: history.end}, marks));
    line.update(history);
  };
  const asked = new URLSearchParams({namespace, name});
  const stops = [
    poll(`api/job?${asked}`, take, (trouble) => report("job", trouble)),
    poll(`api/history?${asked}`, takeHistory, (trouble) => report("history", trouble)),
    log.close, line.close, ...charts.map((it) => it.close),
  ];
  return {node, close: () => stops.forEach((stop) => stop())};
}
