"""The dashboard Fleet: all jobs of the selected namespaces, which of them train or wait, and the
use of their GPUs."""

from grafana import (
    BLUE,
    GOODPUT,
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
    table,
    timeseries,
)
from promql import (
    CLUSTER,
    EACH_JOB,
    FLEET,
    gauge,
    goodput,
    idle_gpus,
    new_within,
    of,
    quantile,
    step_seconds,
    unsaved_seconds,
    workers,
)

RATE, RANGE = "$__rate_interval", "$__range"
WAITING = f"({workers('wanted', FLEET)} > 0) and on ({EACH_JOB}) ({workers('active', FLEET)} == 0)"
TO_JOB = (
    "/d/roundhouse-job?${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"
    "&var-namespace=${__data.fields.namespace}&var-job=${__data.fields.job}"
)


def states():
    jobs = gauge("roundhouse_jobs", "cluster, namespace, state", FLEET)
    training = gauge("roundhouse_jobs", "cluster, namespace", FLEET, 'state="Training"')
    gpus = gauge("roundhouse_job_gpus", EACH_JOB, FLEET)
    incidents = new_within(of("roundhouse_job_incidents_total", FLEET), RANGE)
    return [
        row("Now"),
        stat(
            "Training jobs",
            "Jobs in state Training: all their ranks commit steps together.",
            [query(f"sum({training}) or vector(0)", "training")],
            "none",
        ),
        stat(
            "Waiting jobs",
            "Jobs that want workers, none of which trains: they wait for GPUs, images, data, or other workers in the lobby.",
            [query(f"count({WAITING}) or vector(0)", "waiting")],
            "none",
            steps((None, GREEN), (1, YELLOW)),
        ),
        stat(
            "GPUs held",
            "GPUs that pods of jobs hold at this moment, whether or not the jobs train.",
            [query(f"sum({gpus})", "held")],
            "none",
            steps((None, BLUE)),
        ),
        stat(
            "GPUs idle",
            "GPUs held by jobs that do not train, on average over the last minutes.",
            [query(idle_gpus("", FLEET, RATE), "idle")],
            "none",
            steps((None, GREEN), (1, YELLOW), (8, RED)),
            decimals=1,
        ),
        stat(
            "Goodput",
            "Share of the held GPU time in which jobs trained, over the selected time range.",
            [query(goodput("", FLEET, RANGE), "goodput")],
            "percentunit",
            GOODPUT,
            decimals=1,
        ),
        stat(
            "Incidents",
            "Failures of workers in the selected time range. All failures before the next generation trains are one incident.",
            [query(f"sum({incidents}) or vector(0)", "incidents")],
            "none",
            steps((None, GREEN), (1, YELLOW), (10, RED)),
        ),
        timeseries(
            "Jobs by state",
            "Number of jobs in each state, as in the column STATE of kubectl get trainingjobs.",
            [query(f"sum by (state) ({jobs})", "{{state}}")],
            "none",
            stacked=True,
        ),
        timeseries(
            "Jobs by namespace",
            "Number of TrainingJobs in each namespace, in any state.",
            [query(f"sum by (namespace) ({jobs})", "{{namespace}}")],
            "none",
            stacked=True,
        ),
    ]


def gpu_use():
    gpus = gauge("roundhouse_job_gpus", EACH_JOB, FLEET)
    return [
        row("GPUs"),
        timeseries(
            "GPUs held",
            "GPUs that pods hold, by namespace.",
            [query(f"sum by (namespace) ({gpus})", "{{namespace}}")],
            "none",
            stacked=True,
            width=8,
        ),
        timeseries(
            "GPUs idle",
            "GPUs held by jobs that do not train, because they start, recover, or wait for their minimum of workers.",
            [query(idle_gpus("namespace", FLEET, RATE), "{{namespace}}")],
            "none",
            stacked=True,
            width=8,
        ),
        timeseries(
            "Goodput",
            "Share of the held GPU time in which jobs trained, by namespace. The rest is the time of starts, recoveries "
            "and waiting.",
            [query(goodput("namespace", FLEET, RATE), "{{namespace}}")],
            "percentunit",
            thresholds=GOODPUT,
            most=1,
            width=8,
        ),
    ]


def waiting():
    start = [
        query(quantile(share, "roundhouse_job_start_seconds", CLUSTER, "1h"), name)
        for share, name in ((0.5, "median"), (0.9, "90 %"))
    ]
    lobby = [
        query(quantile(share, "roundhouse_job_time_to_ready_seconds", CLUSTER, "1h"), name)
        for share, name in ((0.5, "median"), (0.9, "90 %"))
    ]
    recover = [
        query(quantile(share, "roundhouse_job_recover_seconds", CLUSTER, "1h"), name)
        for share, name in ((0.5, "median"), (0.9, "90 %"))
    ]
    return [
        row("Queue, starts and recoveries"),
        timeseries(
            "Waiting jobs",
            "Jobs that want workers, none of which trains, by namespace.",
            [
                query(
                    f"count by (namespace) ({WAITING}) or count by (namespace) ({workers('wanted', FLEET)}) * 0",
                    "{{namespace}}",
                )
            ],
            "none",
            stacked=True,
            width=6,
        ),
        timeseries(
            "Time until the workers are ready",
            "Time from a job's acceptance until all its workers are ready, over the last hour and all namespaces.",
            lobby,
            "s",
            width=6,
        ),
        timeseries(
            "Time to start training",
            "Time from a job's acceptance until all its workers train, over the last hour and all namespaces.",
            start,
            "s",
            width=6,
        ),
        timeseries(
            "Time to recover",
            "Time from an incident until the next generation trains, over the last hour and all namespaces.",
            recover,
            "s",
            width=6,
            thresholds=steps((None, GREEN), (60, RED)),
        ),
    ]


def failures():
    incidents = new_within(of("roundhouse_job_incidents_total", FLEET), "1h")
    avoided = new_within(of("roundhouse_job_node_avoided_total", FLEET), "1d")
    return [
        row("Failures"),
        timeseries(
            "Incidents by reason",
            "Incidents of the last hour, by the reason in the job's status.",
            [query(f"sum by (reason) ({incidents})", "{{reason}}")],
            "none",
            stacked=True,
        ),
        timeseries(
            "Nodes avoided",
            "Number of times that jobs have avoided a node in the last day, after an error of a device or of the node itself. "
            "Check a node that several jobs avoid.",
            [query(f"sum by (node) ({avoided})", "{{node}}")],
            "none",
            stacked=True,
            thresholds=steps((None, GREEN), (3, RED)),
        ),
    ]


def jobs():
    loss = f"max by ({EACH_JOB}) ({of('roundhouse_train_loss', FLEET)})"
    incidents = new_within(of("roundhouse_job_incidents_total", FLEET), RANGE)
    return [
        row("Jobs"),
        table(
            "Jobs",
            "One line for each job with workers. Click a job to open its dashboard.",
            [
                ("wanted", workers("wanted", FLEET), "none", None),
                ("ready", workers("ready", FLEET), "none", None),
                ("active", workers("active", FLEET), "none", steps((None, RED), (1, GREEN))),
                ("GPUs", gauge("roundhouse_job_gpus", EACH_JOB, FLEET), "none", None),
                ("goodput", goodput(EACH_JOB, FLEET, RANGE), "percentunit", GOODPUT),
                ("step", f"max by ({EACH_JOB}) ({of('roundhouse_train_step', FLEET)})", "none", None),
                ("loss", loss, "short", None),
                ("step time", step_seconds("roundhouse_train_step_seconds", EACH_JOB, FLEET, RATE), "s", None),
                ("not saved", unsaved_seconds(FLEET), "s", steps((None, GREEN), (1800, YELLOW), (3600, RED))),
                ("incidents", f"sum by ({EACH_JOB}) ({incidents})", "none", steps((None, GREEN), (1, YELLOW), (5, RED))),
            ],
            by=("cluster", "namespace", "job"),
            link=("job", "Open the job", TO_JOB),
            height=12,
        ),
    ]


def build():
    known = 'roundhouse_jobs{cluster=~"$cluster"}'
    return dashboard(
        "roundhouse-fleet",
        "Roundhouse / Fleet",
        "All TrainingJobs: training and waiting jobs, the use of their GPUs, and failures.",
        variables=[
            data_source("datasource", "Data source", "prometheus"),
            label_variable("cluster", "Cluster", "label_values(roundhouse_operator_info, cluster)", every=True),
            label_variable("namespace", "Namespace", f"label_values({known}, namespace)", every=True, several=True),
        ],
        panels=[*states(), *gpu_use(), *waiting(), *failures(), *jobs()],
        links=[
            link(
                "Operator",
                "/d/roundhouse-operator?${datasource:queryparam}&${cluster:queryparam}",
                "dashboard",
                "Work and errors of the operator",
            )
        ],
        span="24h",
    )
