"""The dashboard Operator: its work, durations, failures, and calls of the API server."""

from grafana import (
    BLUE,
    GREEN,
    RED,
    YELLOW,
    dashboard,
    data_source,
    label_variable,
    link,
    query,
    row,
    stat,
    steps,
    timeseries,
)
from promql import CLUSTER, of, quantile

RATE = "$__rate_interval"
# Results of a reconcile that are errors. The other results are the reason of the applied plan.
FAILED = 'result=~"Apply|Confirm|Stale|Report|Build|Panicked"'
# Answers that show a problem of the API server. 404 and 409 only mean that the operator must
# reconcile again.
UNWELL = 'code=~"5..|429|timeout|connection"'


def share(metric, bad, by=""):
    """The share of bad events in all events. It is 0 instead of absent if there is no bad event."""
    over = f"sum by ({by})" if by else "sum"
    every = f"{over} (rate({of(metric, CLUSTER)}[{RATE}]))"
    return f"({over} (rate({of(metric, CLUSTER, bad)}[{RATE}])) or {every} * 0) / {every}"


def quantiles(metric, window, by="", name=""):
    legend = f"{{{{{by}}}}} " if by else name
    return [
        query(quantile(of_all, metric, CLUSTER, window, by), legend + words)
        for of_all, words in ((0.5, "median"), (0.9, "90 %"), (0.99, "99 %"))
    ]


def health():
    return [
        row("Health"),
        stat(
            "Leader",
            "Operators that reconcile jobs. There must be exactly one.",
            [query(f"sum({of('roundhouse_operator_leader', CLUSTER)})", "leaders")],
            "none",
            steps((None, RED), (1, GREEN), (2, RED)),
        ),
        stat(
            "Version",
            "Versions of the running operators.",
            [query(f"count by (version) ({of('roundhouse_operator_info', CLUSTER)})", "{{version}}", instant=True)],
            "none",
            steps((None, BLUE)),
            text="name",
            graph=False,
        ),
        stat(
            "Jobs",
            "TrainingJobs that the operator manages.",
            [query(f"sum(max by (cluster, namespace, state) ({of('roundhouse_jobs', CLUSTER)}))", "jobs")],
            "none",
            steps((None, BLUE)),
        ),
        stat(
            "Jobs due for a reconcile",
            "Jobs whose reconcile is due and has not started yet.",
            [query(f"sum({of('roundhouse_operator_queue_depth', CLUSTER)})", "due")],
            "none",
            steps((None, GREEN), (100, YELLOW), (1000, RED)),
        ),
        stat(
            "Failed reconciles",
            "Share of the reconciles that end in an error.",
            [query(share("roundhouse_operator_reconciles_total", FAILED), "failed")],
            "percentunit",
            steps((None, GREEN), (0.01, YELLOW), (0.1, RED)),
            decimals=1,
        ),
        stat(
            "Failed API calls",
            "Share of the calls to the API server with no answer, 429 or 5xx.",
            [query(share("roundhouse_operator_api_calls_total", UNWELL), "failed")],
            "percentunit",
            steps((None, GREEN), (0.01, YELLOW), (0.1, RED)),
            decimals=1,
        ),
    ]


def work():
    results = f"sum by (result) (rate({of('roundhouse_operator_reconciles_total', CLUSTER)}[{RATE}]))"
    actions = f"sum by (action) (rate({of('roundhouse_operator_actions_total', CLUSTER)}[{RATE}]))"
    return [
        row("Work"),
        timeseries(
            "Reconciles",
            "Reconciles per second by result: the reason of the plan, or the step that failed.",
            [query(results, "{{result}}")],
            "ops",
            stacked=True,
            width=8,
        ),
        timeseries(
            "Time of a reconcile",
            "Time from the start of a reconcile to its last write.",
            quantiles("roundhouse_operator_reconcile_seconds", RATE),
            "s",
            width=8,
            log=True,
        ),
        timeseries(
            "Writes",
            "Writes to pods, services, network policies and memberships per second, by kind.",
            [query(actions, "{{action}}")],
            "ops",
            stacked=True,
            width=8,
        ),
        timeseries(
            "Queue",
            "Jobs whose reconcile is due and has not started yet.",
            [query(f"sum by (pod) ({of('roundhouse_operator_queue_depth', CLUSTER)})", "{{pod}}")],
            "none",
        ),
        timeseries(
            "Wait in the queue",
            "Time from when a reconcile is due until it starts.",
            quantiles("roundhouse_operator_queue_wait_seconds", RATE),
            "s",
            log=True,
        ),
    ]


def calls():
    each = f"sum by (verb, code) (rate({of('roundhouse_operator_api_calls_total', CLUSTER)}[{RATE}]))"
    resources = f"sum by (resource) (rate({of('roundhouse_operator_api_calls_total', CLUSTER)}[{RATE}]))"
    ages = f"max by (kind) ({of('roundhouse_operator_watch_age_seconds', CLUSTER)})"
    restarts = f"sum by (resource) (rate({of('roundhouse_operator_watch_restarts_total', CLUSTER)}[{RATE}]))"
    return [
        row("API server"),
        timeseries(
            "Calls by answer",
            "Calls per second by verb and HTTP status. 404 and 409 mean that an object has changed: the operator reconciles again.",
            [query(each, "{{verb}} {{code}}")],
            "reqps",
            stacked=True,
        ),
        timeseries(
            "Time of a call",
            "99th percentile of the duration of calls to the API server, by verb.",
            [query(quantile(0.99, "roundhouse_operator_api_call_seconds", CLUSTER, RATE, "verb"), "{{verb}}")],
            "s",
            log=True,
        ),
        timeseries(
            "Calls by resource",
            "Calls per second by resource.",
            [query(resources, "{{resource}}")],
            "reqps",
            stacked=True,
            width=8,
        ),
        timeseries(
            "Watch restarts",
            "Restarts of broken watches per second. A few per hour are normal.",
            [query(restarts, "{{resource}}")],
            "ops",
            width=8,
        ),
        timeseries(
            "Age of the watches",
            "Time since the watch of a kind last received an event. It is usually below 60 s. From 90 s, and while a watch is broken, "
            "the operator treats its cache as stale.",
            [query(ages, "{{kind}}")],
            "s",
            width=8,
            thresholds=steps((None, GREEN), (90, RED)),
        ),
    ]


def jobs():
    return [
        row("Latency of jobs"),
        timeseries(
            "Time until the workers are ready",
            "Time from a job's acceptance until all its workers are ready, over the last hour.",
            quantiles("roundhouse_job_time_to_ready_seconds", "1h"),
            "s",
            width=8,
        ),
        timeseries(
            "Time to start training",
            "Time from a job's acceptance until all its workers train, over the last hour.",
            quantiles("roundhouse_job_start_seconds", "1h"),
            "s",
            width=8,
        ),
        timeseries(
            "Time to recover",
            "Time from an incident until the next generation trains, over the last hour.",
            quantiles("roundhouse_job_recover_seconds", "1h"),
            "s",
            width=8,
        ),
    ]


def process():
    own = CLUSTER + ', job="roundhouse-operator"'
    return [
        row("Process"),
        timeseries(
            "Memory",
            "Resident memory of the operator.",
            [query(f"max by (pod) ({of('process_resident_memory_bytes', own)})", "{{pod}}")],
            "bytes",
            width=8,
        ),
        timeseries(
            "CPU",
            "CPU cores that the operator uses.",
            [query(f"sum by (pod) (rate({of('process_cpu_seconds_total', own)}[{RATE}]))", "{{pod}}")],
            "short",
            width=8,
        ),
        timeseries(
            "Open files",
            "Open files and connections of the operator.",
            [query(f"max by (pod) ({of('process_open_fds', own)})", "{{pod}}")],
            "none",
            width=8,
        ),
    ]


def build():
    return dashboard(
        "roundhouse-operator",
        "Roundhouse / Operator",
        "The operator: work, latency, errors, API server, leader and memory.",
        variables=[
            data_source("datasource", "Data source", "prometheus"),
            label_variable("cluster", "Cluster", "label_values(roundhouse_operator_info, cluster)", every=True),
        ],
        panels=[*health(), *work(), *calls(), *jobs(), *process()],
        links=[link("Fleet", "/d/roundhouse-fleet?${datasource:queryparam}&${cluster:queryparam}", "dashboard", "All jobs")],
    )
