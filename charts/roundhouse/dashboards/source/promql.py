"""PromQL expressions that several panels use.

Labels: `namespace` and `job` are those of the TrainingJob. `rank` comes from the agent, `pod`,
`worker` and `node` from the scrape, `cluster` from the external labels of Prometheus, if there are
several clusters.
"""

CLUSTER = 'cluster=~"$cluster"'
FLEET = CLUSTER + ', namespace=~"$namespace"'
JOB = CLUSTER + ', namespace="$namespace", job="$job"'
EACH_JOB = "cluster, namespace, job"


def of(metric, selector, more=""):
    """A selector of the series of a metric."""
    return f"{metric}{{{selector}{', ' + more if more else ''}}}"


def gauge(metric, by, selector, more=""):
    """A gauge of the operator. `max` counts it once, even if the standby operator exposes it,
    too."""
    return f"max by ({by}) ({of(metric, selector, more)})"


def workers(state, selector):
    """The workers of each job in a state: wanted, ready or active."""
    return gauge("roundhouse_job_workers", EACH_JOB, selector, f'state="{state}"')


def new_within(series, window):
    """The increase of counters within a window. Unlike `increase`, it counts a series that starts
    within the window from 0."""
    return f"(clamp_min({series} - {series} offset {window}, 0) or {series})"


def most(metric, by=EACH_JOB):
    """A metric of the job's trainer that only some ranks expose, or that is equal on all ranks."""
    return f"max by ({by}) ({of('roundhouse_train_' + metric, JOB)})"


def quantile(of_all, metric, selector, window, by=""):
    """A quantile of a histogram over a window."""
    groups = f"le, {by}" if by else "le"
    return f"histogram_quantile({of_all}, sum by ({groups}) (rate({of(metric + '_bucket', selector)}[{window}])))"


def goodput(by, selector, window):
    """The share of the held GPU time in which jobs trained."""
    trained = of("roundhouse_job_gpu_training_seconds_total", selector)
    held = of("roundhouse_job_gpu_held_seconds_total", selector)
    over = f"sum by ({by})" if by else "sum"
    return f"{over} (rate({trained}[{window}])) / {over} (rate({held}[{window}]))"


def idle_gpus(by, selector, window):
    """The average number of GPUs, over the window, that jobs hold while they do not train."""
    trained = of("roundhouse_job_gpu_training_seconds_total", selector)
    held = of("roundhouse_job_gpu_held_seconds_total", selector)
    over = f"sum by ({by})" if by else "sum"
    return f"clamp_min({over} (rate({held}[{window}])) - {over} (rate({trained}[{window}])), 0)"


def step_seconds(metric, by, selector, window):
    """The mean time of a step over a window."""
    return (
        f"sum by ({by}) (rate({of(metric + '_sum', selector)}[{window}])) / "
        f"sum by ({by}) (rate({of(metric + '_count', selector)}[{window}]))"
    )


def unsaved_steps(selector):
    """The committed steps after the newest checkpoint, for jobs with a checkpoint. Only rank 0
    exposes it."""
    return (
        f"max by ({EACH_JOB}) ({of('roundhouse_train_step', selector)}) - "
        f"(max by ({EACH_JOB}) ({of('roundhouse_train_checkpoint_step', selector)}) > 0)"
    )


def steps_since(metric):
    """The committed steps after the state whose step this metric is; all steps if there is none."""
    return f"{most('step')} - {most(metric)}"


def unsaved_seconds(selector, window="10m"):
    """The training time that would be lost if all workers ended now."""
    return f"({unsaved_steps(selector)}) * ({step_seconds('roundhouse_train_step_seconds', EACH_JOB, selector, window)})"


def of_gpus(metric, selector):
    """A metric of the DCGM exporter for the GPUs of the job's pods, with the labels job and worker.

    Prometheus renames the exporter's labels to `exported_pod` and `exported_namespace` unless
    `honor_labels` is set.
    """
    named = f'label_replace({metric}{{{CLUSTER}}}, "pod", "$1", "exported_pod", "(.+)")'
    named = f'label_replace({named}, "namespace", "$1", "exported_namespace", "(.+)")'
    pods = f"max by (cluster, namespace, pod, job, worker) ({of('roundhouse_agent_info', selector)})"
    return f"{named} * on (cluster, namespace, pod) group_left (job, worker) {pods}"
