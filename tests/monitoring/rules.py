"""Reads a rules file of Prometheus as far as the checks need it: alerts with their expression and their annotations.

It reads the layout of charts/roundhouse/rules/alerts.yaml and no other YAML; promtool checks the file itself.
"""

import re


def alerts(text):
    """A list of {name, expr, keys}: `keys` are those of the alert's annotations."""
    found = []
    for block in re.split(r"(?m)^  - alert: ", text)[1:]:
        name = block.split("\n", 1)[0].strip()
        expr = re.search(r"(?m)^    expr: \|\n((?:      .*\n|\n)+)", block)
        annotations = re.search(r"(?m)^    annotations:\n((?:      .*\n|\n)+)", block)
        keys = re.findall(r"(?m)^      (\w+):", annotations[1]) if annotations else []
        severity = re.search(r"(?m)^    labels: \{severity: (\w+)\}$", block)
        found.append({"name": name, "expr": expr[1] if expr else "", "keys": keys, "severity": severity and severity[1]})
    return found
