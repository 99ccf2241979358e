"""Reads the alerts of a Prometheus rules file, with their expressions and annotations.

It reads only the layout of charts/roundhouse/rules/alerts.yaml, not general YAML. promtool checks
the file itself.
"""

import re


def alerts(text):
    """A list of {name, expr, keys, severity}. `keys` are the keys of the alert's annotations."""
    found = []
    for block in re.split(r"(?m)^  - alert: ", text)[1:]:
        name = block.split("\n", 1)[0].strip()
        expr = re.search(r"(?m)^    expr: \|\n((?:      .*\n|\n)+)", block)
        annotations = re.search(r"(?m)^    annotations:\n((?:      .*\n|\n)+)", block)
        keys = re.findall(r"(?m)^      (\w+):", annotations[1]) if annotations else []
        severity = re.search(r"(?m)^    labels: \{severity: (\w+)\}$", block)
        found.append({"name": name, "expr": expr[1] if expr else "", "keys": keys, "severity": severity and severity[1]})
    return found
