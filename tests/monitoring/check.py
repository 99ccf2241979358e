#!/usr/bin/env python3
"""Checks the dashboards and the alerts of the chart without Prometheus or Grafana. The last line is
"checks: N passed N failed"."""

import json
import re
import sys

sys.dont_write_bytecode = True

import catalogue  # noqa: E402
import rules  # noqa: E402

CHART = catalogue.REPOSITORY / "charts/roundhouse"
# The units of
# https://github.com/grafana/grafana/blob/main/packages/grafana-data/src/valueFormats/categories.ts
UNITS = {
    "none",
    "short",
    "percent",
    "percentunit",
    "sci",
    "bytes",
    "decbytes",
    "mbytes",
    "Bps",
    "s",
    "ms",
    "celsius",
    "watt",
    "ops",
    "reqps",
    "cps",
    "hertz",
}
# https://grafana.com/docs/grafana/latest/dashboards/variables/add-template-variables/#global-variables
BUILT_IN = {
    "__rate_interval",
    "__range",
    "__interval",
    "__from",
    "__to",
    "__url_time_range",
    "__data.fields.namespace",
    "__data.fields.job",
}


def panels_of(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def ids_are_unique(dashboard):
    ids = [panel["id"] for panel in dashboard["panels"]]
    if len(ids) != len(set(ids)):
        yield f"ids {ids}"


def every_panel_has_a_title_a_description_and_a_query(dashboard):
    for panel in panels_of(dashboard):
        name = panel["title"]
        if not name:
            yield f"panel {panel['id']} has no title"
        if not re.search(r"[.)]$", panel.get("description", "")):
            yield f"{name}: no description, or it is not a sentence"
        refs = [target["refId"] for target in panel["targets"]]
        if not refs or len(refs) != len(set(refs)) or not all(target["expr"] for target in panel["targets"]):
            yield f"{name}: queries {refs}"
        if panel["type"] != "table" and not all(target["legendFormat"] not in ("", "__auto") for target in panel["targets"]):
            yield f"{name}: a query without a legend"


def units_are_known_and_thresholds_rise(dashboard):
    for panel in panels_of(dashboard):
        config = panel["fieldConfig"]
        units = [config["defaults"].get("unit")] if panel["type"] != "table" else []
        thresholds = [config["defaults"]["thresholds"]]
        for override in config["overrides"]:
            for prop in override["properties"]:
                if prop["id"] == "unit":
                    units.append(prop["value"])
                if prop["id"] == "thresholds":
                    thresholds.append(prop["value"])
        for unit in units:
            if unit not in UNITS:
                yield f"{panel['title']}: unit {unit}"
        for one in thresholds:
            values = [step["value"] for step in one["steps"]]
            if values[0] is not None or values[1:] != sorted(set(values[1:])):
                yield f"{panel['title']}: thresholds {values}"


def panels_are_in_the_grid_without_overlaps(dashboard):
    taken = {}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        if place["x"] < 0 or place["x"] + place["w"] > 24 or place["h"] < 1:
            yield f"{panel['title']}: {place}"
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                if (x, y) in taken:
                    yield f"{panel['title']} overlaps {taken[x, y]}"
                    return
                taken[x, y] = panel["title"]


def expressions(dashboard):
    for panel in panels_of(dashboard):
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for mark in dashboard["annotations"]["list"]:
        if "expr" in mark:
            yield mark["name"], mark["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def metrics_exist(dashboard):
    known = catalogue.known()
    for where, expr in expressions(dashboard):
        if where in ("cluster", "namespace", "job", "rank"):
            expr = re.sub(r"label_values\((.*), \w+\)", r"\1", expr)
        names = catalogue.used(expr)
        if not names:
            yield f"{where}: no metric in {expr}"
        for name in names:
            if catalogue.family(name, known) is None:
                yield f"{where}: {name} is not a metric of Roundhouse, of a process, or of the recorded GPU node"


def variables_are_defined_and_used(dashboard):
    defined = {variable["name"] for variable in dashboard["templating"]["list"]}
    text = json.dumps({key: value for key, value in dashboard.items() if key != "templating"})
    text += json.dumps([variable.get("query") for variable in dashboard["templating"]["list"]])
    text += json.dumps([variable.get("datasource") for variable in dashboard["templating"]["list"]])
    found = {match[0] or match[1] for match in re.findall(r"\$(?:\{([\w.]+)(?::\w+)?\}|([a-z_]+))", text)}
    for name in found - defined - BUILT_IN:
        yield f"${name} is not defined"
    for name in defined - found:
        yield f"${name} is not used"


def links_lead_to_dashboards(dashboard):
    uids = {json.loads(path.read_text())["uid"] for path in CHART.glob("dashboards/*.json")}
    text = json.dumps(dashboard)
    targets = set(re.findall(r'"/d/([\w-]+)', text))
    if not targets:
        yield "no link to another dashboard"
    for uid in targets - uids:
        yield f"/d/{uid} is not a dashboard of the chart"


def every_alert_has_a_runbook(found):
    for alert in found:
        for key in ("summary", "description", "runbook"):
            if key not in alert["keys"]:
                yield f"{alert['name']}: no {key}"
        if alert["severity"] not in ("critical", "warning", "info"):
            yield f"{alert['name']}: severity {alert['severity']}"


def metrics_of_alerts_exist(found):
    known = catalogue.known()
    for alert in found:
        names = catalogue.used(alert["expr"])
        if not names:
            yield f"{alert['name']}: no metric"
        for name in names:
            if catalogue.family(name, known) is None:
                yield f"{alert['name']}: {name} is not a metric"


def every_alert_is_tested_firing_and_not_firing(found):
    text = "".join(path.read_text() for path in sorted(catalogue.REPOSITORY.glob("tests/monitoring/alerts*_test.yaml")))
    cases = re.split(r"(?m)^- name: ", text)[1:]
    for alert in found:
        of_alert = [case for case in cases if case.startswith(alert["name"] + " ")]
        fires = any(re.search(rf'ALERTS\{{alertname="{alert["name"]}", alertstate="firing"', case) for case in of_alert)
        rests = any(re.search(r"(?m)^  - \{expr: 'ALERTS\{alertstate=\"firing\"", case) for case in of_alert)
        if not fires or not rests:
            yield f"{alert['name']}: tested firing: {fires}, not firing: {rests}"
    names = {alert["name"] for alert in found}
    for case in cases:
        if case.split(" ", 1)[0] not in names:
            yield f"a case of an unknown alert: {case.splitlines()[0]}"


def pod_monitor_relabels_like_the_scrape_configuration(_):
    """The rules of the PodMonitor are also in rules/scrape.yaml, so workers have the same labels
    with both."""
    monitor = (CHART / "templates/podmonitor.yaml").read_text()
    scrape = (CHART / "rules/scrape.yaml").read_text()
    rule = r"- \{source_?[lL]abels: \[(\w+)\], target_?[lL]abel: (\w+)\}"
    wanted, present = set(re.findall(rule, monitor)), set(re.findall(rule, scrape))
    if not wanted:
        yield "the PodMonitor has no rules"
    for source, target in wanted - present:
        yield f"rules/scrape.yaml lacks the rule from {source} to {target} of the PodMonitor"


DASHBOARD_CHECKS = [
    ids_are_unique,
    every_panel_has_a_title_a_description_and_a_query,
    units_are_known_and_thresholds_rise,
    panels_are_in_the_grid_without_overlaps,
    metrics_exist,
    variables_are_defined_and_used,
    links_lead_to_dashboards,
]
ALERT_CHECKS = [
    every_alert_has_a_runbook,
    metrics_of_alerts_exist,
    every_alert_is_tested_firing_and_not_firing,
    pod_monitor_relabels_like_the_scrape_configuration,
]


def main():
    subjects = [
        (path.name, json.loads(path.read_text()), DASHBOARD_CHECKS) for path in sorted(CHART.glob("dashboards/*.json"))
    ]
    subjects.append(("alerts.yaml", rules.alerts((CHART / "rules/alerts.yaml").read_text()), ALERT_CHECKS))
    passed = failed = 0
    for name, subject, checks in subjects:
        for check in checks:
            faults = list(check(subject))
            passed, failed = (passed, failed + 1) if faults else (passed + 1, failed)
            for fault in faults:
                print(f"FAIL  {name}: {check.__name__.replace('_', ' ')}: {fault}")
    if len(subjects) != 4 or not subjects[-1][1]:
        sys.exit("expected three dashboards and a rules file with alerts")
    print(f"checks: {passed} passed {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
