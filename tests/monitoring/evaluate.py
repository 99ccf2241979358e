#!/usr/bin/env python3
"""Evaluates every query of every dashboard and alert on a running Prometheus. Each must return a
finite value.

The time range is the whole time in which Prometheus has scraped. Comparisons of alerts return 0 or
1 (PromQL's `bool`). This distinguishes an alert that does not fire from an alert whose series do
not exist.
"""

import argparse
import json
import math
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

sys.dont_write_bytecode = True

import queries  # noqa: E402
import record  # noqa: E402

STEP_SECONDS = 2
# The interval between two evaluations, with --wait.
POLL_SECONDS = 3


class Prometheus:
    def __init__(self, url):
        self.url = url

    def get(self, path, **parameters):
        data = urllib.parse.urlencode(parameters, doseq=True)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{data}", timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{parameters.get('query', path)}\n  {error.read().decode()}") from error

    def has_data(self, expr, since):
        now = time.time()
        found = self.get("query_range", query=expr, start=since, end=now, step=STEP_SECONDS)["result"]
        return any(math.isfinite(float(value)) for series in found for _, value in series["values"])


def of_alerts(prometheus):
    groups = prometheus.get("rules")["groups"]
    for rule in [rule for group in groups for rule in group["rules"]]:
        if rule["health"] != "ok":
            yield f"alert {rule['name']}: {rule['health']}, {rule.get('lastError', '')}", ["vector(1) < 0"]
        yield f"alert {rule['name']}", [queries.without_thresholds(rule["query"])]


def empty(prometheus, arguments):
    """The queries without data, and the number of all queries."""
    seconds = max(int(time.time() - arguments.since), STEP_SECONDS)
    faults, number = [], 0
    alerts = list(of_alerts(prometheus))
    if not alerts:
        faults.append("Prometheus has no rules")
    for where, exprs in [*queries.of_dashboards(arguments.job, arguments.namespace, seconds), *alerts]:
        number += 1
        if not any(prometheus.has_data(expr, arguments.since) for expr in exprs):
            faults.append(f"{where}: no data for {exprs[0]}")
    return faults, number


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="for example http://localhost:9090")
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--job", required=True, action="append", help="a job; can be repeated, then one of the jobs must have data for each query")
    parser.add_argument("--since", required=True, type=float, help="when Prometheus started, in seconds since 1970")
    parser.add_argument("--record", metavar="DIRECTORY", help="save the data of the dashboards there; see record.py")
    parser.add_argument("--wait", type=float, default=0, help="seconds to wait until all queries have data")
    arguments = parser.parse_args()
    prometheus = Prometheus(arguments.url)
    end = time.monotonic() + arguments.wait
    while True:
        faults, number = empty(prometheus, arguments)
        if not faults or time.monotonic() > end:
            break
        time.sleep(POLL_SECONDS)
    if arguments.record:
        span = (arguments.since, time.time())
        record.write(record.Recorder(prometheus.get, arguments.namespace, arguments.job, *span), arguments.record)
    for line in faults:
        print(line)
    print(f"{number} queries: {number - len(faults)} have data, {len(faults)} have none")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
