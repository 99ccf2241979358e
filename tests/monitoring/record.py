"""Records the results of the dashboards' queries over a time range, one JSON file for each
dashboard, to draw pictures.

    {"since": 1763800000, "seconds": 180, "step": 2, "namespace": "...", "jobs": ["..."],
     "panels": {"11": [{"job": "...", "value": null, "targets": {"A": [{"labels": {}, "points":
     [[12, 0.5]]}]}}]}, "annotations": {"Incidents": [{"labels": {}, "points": [[40, 1]]}]}}

A point has the seconds after `since` and the value. A panel that is repeated for a variable has an
entry for each `value` of it.
"""

import json
import math
import pathlib

import queries

# The most points of a series, enough for the width of a picture.
NUM_POINTS = 90


class Recorder:
    """Runs queries over one time range with the variables of the dashboards filled in. `get` calls
    Prometheus' API."""

    def __init__(self, get, namespace, jobs, since, until):
        self.get, self.namespace, self.jobs = get, namespace, jobs
        self.since, self.until = int(since), int(until)
        self.seconds = max(self.until - self.since, 1)
        self.step = max(1, math.ceil(self.seconds / NUM_POINTS))

    def series(self, expr, job, rank="0"):
        """The series of an expression, without points that are not numbers."""
        expr = queries.filled(expr, job, self.namespace, self.seconds, rank)
        found = self.get("query_range", query=expr, start=self.since, end=self.until, step=self.step)["result"]
        kept = []
        for one in found:
            points = [(int(at) - self.since, float(value)) for at, value in one["values"]]
            points = [[at, float(f"{value:.6g}")] for at, value in points if math.isfinite(value)]
            labels = {name: value for name, value in one["metric"].items() if name != "__name__"}
            if points:
                kept.append({"labels": labels, "points": points})
        return kept

    def of_first_job(self, exprs, rank="0"):
        """The first job with data, and its series as {name: series}."""
        for job in self.jobs:
            found = {name: self.series(expr, job, rank) for name, expr in exprs.items()}
            if any(found.values()):
                return job, found
        return self.jobs[0], {name: [] for name in exprs}

    def panel(self, panel):
        """The entries of one panel: one, or one for each rank if the panel is repeated."""
        exprs = {target["refId"]: target["expr"] for target in panel["targets"]}
        values = [None]
        if panel.get("repeat") == "rank":
            _, found = self.of_first_job({"ranks": queries.RANKS})
            values = sorted({one["labels"]["rank"] for one in found["ranks"]}, key=int)
        entries = []
        for value in values:
            job, targets = self.of_first_job(exprs, value or "0")
            entries.append({"job": job, "value": value, "targets": targets})
        return entries

    def dashboard(self, dashboard):
        """The whole recording of one dashboard."""
        panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
        marks = {mark["name"]: mark["expr"] for mark in dashboard["annotations"]["list"] if "expr" in mark}
        return {
            "since": self.since,
            "seconds": self.seconds,
            "step": self.step,
            "namespace": self.namespace,
            "jobs": self.jobs,
            "panels": {str(panel["id"]): self.panel(panel) for panel in panels},
            "annotations": {name: self.series(expr, self.jobs[0]) for name, expr in marks.items()},
        }


def write(recorder, directory):
    """Writes DIRECTORY/NAME.json for each dashboard of the chart."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for path in sorted(queries.CHART.glob("dashboards/*.json")):
        recording = recorder.dashboard(json.loads(path.read_text()))
        panels = recording.pop("panels")
        # Writes a line for each panel, so that diffs are readable.
        lines = ",\n".join(f"{json.dumps(number)}:{short(entries)}" for number, entries in panels.items())
        head = short(recording).removesuffix("}")
        (directory / path.name).write_text(f'{head},"panels":{{\n{lines}\n}}}}\n')


def short(value):
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))
