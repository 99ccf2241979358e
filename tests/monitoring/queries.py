#!/usr/bin/env python3
"""The queries of the dashboards and the alerts, as Grafana and Prometheus send them.

As a program, it prints them as recording rules, so that promtool can check their syntax.
"""

import json
import re
import sys

sys.dont_write_bytecode = True

import catalogue  # noqa: E402
import rules  # noqa: E402

CHART = catalogue.REPOSITORY / "charts/roundhouse"
# The ranks of a job, which are the values of the variable `rank` of its dashboard.
RANKS = 'count by (rank) (roundhouse_train_step{namespace="$namespace", job="$job"})'


def filled(text, job, namespace, seconds, rank="0"):
    """Fills the variables in a text of a dashboard, as Grafana does. `$1` is not a variable."""
    values = {
        "cluster": ".*",
        "namespace": namespace,
        "job": job,
        "rank": rank,
        "__rate_interval": "20s",
        "__interval": "20s",
        "__range": f"{seconds}s",
    }
    return re.sub(r"\$\{?([a-z_]+)\}?", lambda match: values[match[1]], text)


def without_thresholds(expr):
    """The expression with `bool` after each comparison of values."""
    expr = re.sub(r"(?m)#.*$", "", expr)
    # Does not change strings and label matchers.
    parts = re.split(r'("(?:\\.|[^"\\])*"|\{[^}]*\})', expr)
    return "".join(part if number % 2 else re.sub(r"([<>]=?|[!=]=)", r"\1 bool", part) for number, part in enumerate(parts))


def of_dashboards(jobs, namespace, seconds):
    """The queries of panels, annotations and variables as (where, [expression for each job])."""
    for path in sorted(CHART.glob("dashboards/*.json")):
        dashboard = json.loads(path.read_text())
        found = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", [])]
        found += [(mark["name"], mark["expr"]) for mark in dashboard["annotations"]["list"] if "expr" in mark]
        for variable in dashboard["templating"]["list"]:
            # The test has a single cluster, so its series have no label `cluster`.
            if variable["type"] == "query" and variable["name"] != "cluster":
                series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
                found.append((f"variable {variable['name']}", f"count by ({label}) ({series})"))
        for where, expr in found:
            yield f"{path.stem}: {where}", [filled(expr, job, namespace, seconds) for job in jobs]


def main():
    exprs = [expr for _, each in of_dashboards(["a-job"], "a-namespace", 3600) for expr in each]
    exprs += [without_thresholds(alert["expr"]) for alert in rules.alerts((CHART / "rules/alerts.yaml").read_text())]
    records = [{"record": f"query:{number}", "expr": expr} for number, expr in enumerate(exprs)]
    print(json.dumps({"groups": [{"name": "queries", "rules": records}]}))


if __name__ == "__main__":
    main()
