"""The dashboard Job: progress, step time, workers, checkpoints and GPUs of one job."""

from urllib.parse import quote

import job_training
import job_workers
from grafana import (
    BLUE,
    GOODPUT,
    GREEN,
    RED,
    YELLOW,
    annotation,
    dashboard,
    data_source,
    label_variable,
    link,
    query,
    row,
    stat,
    steps,
)
from promql import CLUSTER, JOB, goodput, most, new_within, of, unsaved_seconds

RANGE = "$__range"
# Grafana's Explore page with a query for the logs of the job's pods.
LOGS = quote(
    '/explore?schemaVersion=1&panes={"logs":{"datasource":"${logs}","queries":[{"refId":"A","datasource":{"type":"loki","uid":"${logs}"},'
    '"expr":"{namespace=\\"${namespace}\\",pod=~\\"${job}-worker-.*\\"}"}],"range":{"from":"${__from}","to":"${__to}"}}}',
    safe="/?&=${}:,",
)


def summary():
    incidents = new_within(of("roundhouse_job_incidents_total", JOB), RANGE)
    return [
        row("Summary"),
        stat("Step", "Committed optimizer steps.", [query(most("step"), "step")], "none", steps((None, BLUE)), width=3),
        stat(
            "Loss",
            "Mean training loss of the last step.",
            [query(most("loss"), "loss")],
            "short",
            steps((None, BLUE)),
            width=3,
            decimals=4,
        ),
        stat(
            "Throughput",
            "Samples per second of all ranks together.",
            [query(most("samples_per_second"), "samples/s")],
            "short",
            steps((None, BLUE)),
            width=3,
        ),
        stat(
            "World size",
            "Ranks of the newest generation.",
            [query(most("world_size"), "ranks")],
            "none",
            steps((None, BLUE)),
            width=3,
        ),
        stat(
            "Generation",
            "Number of the newest generation. Each change of the workers starts a new generation.",
            [query(most("generation"), "generation")],
            "none",
            steps((None, BLUE)),
            width=3,
        ),
        stat(
            "Incidents",
            "Failures of workers in the selected time range.",
            [query(f"sum({incidents}) or vector(0)", "incidents")],
            "none",
            steps((None, GREEN), (1, YELLOW), (5, RED)),
            width=3,
        ),
        stat(
            "Not saved",
            "Training time that would be lost if all workers ended now: the steps after the newest checkpoint.",
            [query(unsaved_seconds(JOB), "not saved")],
            "s",
            steps((None, GREEN), (1800, YELLOW), (3600, RED)),
            width=3,
        ),
        stat(
            "Goodput",
            "Share of the held GPU time in which the job trained, over the selected time range.",
            [query(goodput("", JOB, RANGE), "goodput")],
            "percentunit",
            GOODPUT,
            width=3,
            decimals=1,
        ),
    ]


def events():
    """Marks of new generations and incidents on every panel."""
    generation = of("roundhouse_train_generation", JOB)
    incidents = f"sum by (reason) ({of('roundhouse_job_incidents_total', JOB)})"
    before = f"sum by (reason) ({of('roundhouse_job_incidents_total', JOB)} offset 15s)"
    return [
        annotation(
            "Generations",
            f"max by (job) ({generation}) > (max by (job) ({generation} offset 15s) or max by (job) ({generation}) * 0)",
            BLUE,
            "New generation",
            "{{job}}: the workers changed",
        ),
        annotation("Incidents", f"{incidents} > ({before} or {incidents} * 0)", RED, "Incident", "{{reason}}"),
    ]


def build():
    known = f"roundhouse_job_workers{{{CLUSTER}}}"
    return dashboard(
        "roundhouse-job",
        "Roundhouse / Job",
        "One TrainingJob: progress, where the time goes, workers, checkpoints and GPUs.",
        variables=[
            data_source("datasource", "Data source", "prometheus"),
            label_variable("cluster", "Cluster", "label_values(roundhouse_operator_info, cluster)", every=True),
            label_variable("namespace", "Namespace", f"label_values({known}, namespace)"),
            label_variable("job", "Job", f'label_values(roundhouse_job_workers{{{CLUSTER}, namespace="$namespace"}}, job)'),
            label_variable(
                "rank",
                "Rank",
                f"label_values(roundhouse_train_step{{{JOB}}}, rank)",
                several=True,
                default="0",
                numeric=True,
            ),
            data_source("logs", "Logs", "loki"),
        ],
        panels=[
            *summary(),
            *job_training.training(),
            *job_training.time_of_a_step(),
            *job_workers.membership(),
            *job_workers.checkpoints(),
            *job_workers.devices(),
        ],
        annotations=events(),
        links=[
            link("Fleet", "/d/roundhouse-fleet?${datasource:queryparam}&${cluster:queryparam}", "dashboard", "All jobs"),
            link("Logs", LOGS, "doc", "Logs of the job's workers, from Loki"),
        ],
    )
