"""Operator: what the operator does, how long it takes, what fails, and what it asks of the API server."""

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
# Results of a reconcile that are errors; the others are the reason of the plan that was carried out.
FAILED = 'result=~"Apply|Confirm|Stale|Report|Build|Panicked"'
# Answers of the API server that are not the operator's own doing. 404 and 409 only say that it has to look again.
UNWELL = 'code=~"5..|429|timeout|connection"'


def share(metric, bad, by=""):
    """The bad ones in all; 0, not absent, without a bad one."""
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
            "Operators that work on jobs. There must be exactly one.",
            [query(f"sum({of('roundhouse_operator_leader', CLUSTER)})", "leaders")],
            "none",
            steps((None, RED), (1, GREEN), (2, RED)),
        ),
        stat(
            "Version",
            "Versions of the operators that run.",
            [query(f"count by (version) ({of('roundhouse_operator_info', CLUSTER)})", "{{version}}", instant=True)],
            "none",
            steps((None, BLUE)),
            text="name",
            graph=False,
        ),
        stat(
            "Jobs",
            "TrainingJobs that the operator looks after.",
            [query(f"sum(max by (cluster, namespace, state) ({of('roundhouse_jobs', CLUSTER)}))", "jobs")],
            "none",
            steps((None, BLUE)),
        ),
        stat(
            "Jobs that wait for a reconcile",
            "Jobs that are due and not worked on yet.",
            [query(f"sum({of('roundhouse_operator_queue_depth', CLUSTER)})", "due")],
            "none",
            steps((None, GREEN), (100, YELLOW), (1000, RED)),
        ),
        stat(
            "Reconciles that fail",
            "Share of the reconciles that end in an error.",
            [query(share("roundhouse_operator_reconciles_total", FAILED), "failed")],
            "percentunit",
            steps((None, GREEN), (0.01, YELLOW), (0.1, RED)),
            decimals=1,
        ),
        stat(
            "API calls that fail",
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
            "Reconciles each second by result: the reason of the plan, or the step that failed.",
            [query(results, "{{result}}")],
            "ops",
            stacked=True,
            width=8,
        ),
        timeseries(
            "Time of a reconcile",
            "From its begin to its last write.",
            quantiles("roundhouse_operator_reconcile_seconds", RATE),
            "s",
            width=8,
            log=True,
        ),
        timeseries(
            "Writes",
            "Writes to pods, services, network policies and memberships each second, by kind.",
            [query(actions, "{{action}}")],
            "ops",
            stacked=True,
            width=8,
        ),
        timeseries(
            "Queue",
            "Jobs that are due and not worked on yet.",
            [query(f"sum by (pod) ({of('roundhouse_operator_queue_depth', CLUSTER)})", "{{pod}}")],
            "none",
        ),
        timeseries(
            "Wait in the queue",
            "From the time when a job is due to the begin of its reconcile.",
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
            "Calls each second by verb and HTTP status. 404 and 409 say that the world has changed: the operator looks again.",
            [query(each, "{{verb}} {{code}}")],
            "reqps",
            stacked=True,
        ),
        timeseries(
            "Time of a call",
            "Time of calls to the API server, 99 % of them, by verb.",
            [query(quantile(0.99, "roundhouse_operator_api_call_seconds", CLUSTER, RATE, "verb"), "{{verb}}")],
            "s",
            log=True,
        ),
        timeseries(
            "Calls by resource",
            "Calls each second by resource.",
            [query(resources, "{{resource}}")],
            "reqps",
            stacked=True,
            width=8,
        ),
        timeseries(
            "Watch restarts",
            "Watches that broke and began again, each second. A few each hour are normal.",
            [query(restarts, "{{resource}}")],
            "ops",
            width=8,
        ),
        timeseries(
            "Age of the watches",
            "Time since the watch of a kind last received anything. It is below 60 s. From 90 s on, and while a watch is broken, the operator does not trust its cache.",
            [query(ages, "{{kind}}")],
            "s",
            width=8,
            thresholds=steps((None, GREEN), (90, RED)),
        ),
    ]


def jobs():
    return [
        row("What jobs feel"),
        timeseries(
            "Time until the workers are ready",
            "From a job's acceptance to all its workers being ready, over the last hour.",
            quantiles("roundhouse_job_time_to_ready_seconds", "1h"),
            "s",
            width=8,
        ),
        timeseries(
            "Time to start training",
            "From a job's acceptance to all its workers training, over the last hour.",
            quantiles("roundhouse_job_start_seconds", "1h"),
            "s",
            width=8,
        ),
        timeseries(
            "Time to recover",
            "From an incident to the next generation training, over the last hour.",
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
            "Memory of the operator that is in RAM.",
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
