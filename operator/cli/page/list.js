// The page with the list of jobs.

import {el, loss, number, show, state} from "./dom.js";
import {poll} from "./poll.js";
import {table} from "./tables.js";

function link(job) {
  const place = `#/${encodeURIComponent(job.namespace)}/${encodeURIComponent(job.name)}`;
  return el("a", {href: place, "data-key": place}, job.name);
}

const COLUMNS = [
  {title: "Name", class: "name", cell: link},
  {title: "State", cell: (job) => state(job.state, job.mood)},
  {title: "Workers", class: "number", cell: (job) => job.ready},
  {title: "World size", class: "number", cell: (job) => number(job.worldSize)},
  {title: "Step", class: "number", cell: (job) => (job.step === null ? null : `${number(job.step)} (${job.percent})`)},
  {title: "Loss", class: "number", cell: (job) => loss(job.loss)},
  {title: "Samples/s", class: "number", cell: (job) => number(job.samplesPerSecond)},
  {title: "Incidents", class: "number", cell: (job) => number(job.incidents)},
  {title: "Age", class: "number", cell: (job) => job.age},
];
const NAMESPACE = {title: "Namespace", cell: (job) => job.namespace};

function jobs({place, jobs}) {
  if (jobs.length === 0) {
    return el("p", {class: "empty"}, `There is no job in ${place}. Submit one: `, el("code", {}, "kubectl roundhouse submit -f job.yaml"));
  }
  const several = new Set(jobs.map((job) => job.namespace)).size > 1;
  return table("Jobs", several ? [NAMESPACE, ...COLUMNS] : COLUMNS, jobs);
}

/** The page with all jobs. */
export function listPage(report, head) {
  const body = el("div", {}, el("p", {class: "empty"}, "Reading the jobs …"));
  const node = el("div", {}, el("h1", {}, "Jobs"), body);
  const take = (answer) => {
    head(answer.place, null);
    show(body, {place: answer.place, jobs: answer.jobs}, jobs);
  };
  const stop = poll("api/jobs", take, (trouble) => report("jobs", trouble));
  return {node, close: stop};
}
