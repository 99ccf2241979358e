"""PromQL that more than one panel needs.

Labels: `namespace` and `job` are those of the TrainingJob. `rank` comes from the agent, `pod`, `worker` and `node` from the
scrape, `cluster` from the external labels of a Prometheus that looks after one cluster of several.
"""

CLUSTER = 'cluster=~"$cluster"'
FLEET = CLUSTER + ', namespace=~"$namespace"'
JOB = CLUSTER + ', namespace="$namespace", job="$job"'
EACH_JOB = "cluster, namespace, job"


def of(metric, selector, more=""):
    """A selector of series."""
    return f"{metric}{{{selector}{', ' + more if more else ''}}}"


def gauge(metric, by, selector, more=""):
    """A gauge of the operator, counted once where a second operator stands by."""
    return f"max by ({by}) ({of(metric, selector, more)})"


def workers(state, selector):
    """Workers of each job in a state: wanted, ready or active."""
    return gauge("roundhouse_job_workers", EACH_JOB, selector, f'state="{state}"')


def new_within(series, window):
    """How much counters grew within a window. A series that begins within it counts from 0, which `increase` ignores."""
    return f"(clamp_min({series} - {series} offset {window}, 0) or {series})"


def most(metric, by=EACH_JOB):
    """A metric of the job's trainer that only some ranks know, or that all ranks say alike."""
    return f"max by ({by}) ({of('roundhouse_train_' + metric, JOB)})"


def quantile(of_all, metric, selector, window, by=""):
    """A quantile of a histogram."""
    groups = f"le, {by}" if by else "le"
    return f"histogram_quantile({of_all}, sum by ({groups}) (rate({of(metric + '_bucket', selector)}[{window}])))"


def goodput(by, selector, window):
    """GPU-seconds of training in each GPU-second held."""
    trained = of("roundhouse_job_gpu_training_seconds_total", selector)
    held = of("roundhouse_job_gpu_held_seconds_total", selector)
    over = f"sum by ({by})" if by else "sum"
    return f"{over} (rate({trained}[{window}])) / {over} (rate({held}[{window}]))"


def idle_gpus(by, selector, window):
    """GPUs that jobs hold while they do not train, on average over the window."""
    trained = of("roundhouse_job_gpu_training_seconds_total", selector)
    held = of("roundhouse_job_gpu_held_seconds_total", selector)
    over = f"sum by ({by})" if by else "sum"
    return f"clamp_min({over} (rate({held}[{window}])) - {over} (rate({trained}[{window}])), 0)"


def step_seconds(metric, by, selector, window):
    """Mean time of a step."""
    return (
        f"sum by ({by}) (rate({of(metric + '_sum', selector)}[{window}])) / "
        f"sum by ({by}) (rate({of(metric + '_count', selector)}[{window}]))"
    )


def unsaved_steps(selector):
    """Committed steps after the newest checkpoint, for jobs that have one. Only rank 0 knows its checkpoint."""
    return (
        f"max by ({EACH_JOB}) ({of('roundhouse_train_step', selector)}) - "
        f"(max by ({EACH_JOB}) ({of('roundhouse_train_checkpoint_step', selector)}) > 0)"
    )


def unsaved_seconds(selector, window="10m"):
    """Training that would be lost if all workers ended now."""
    return f"({unsaved_steps(selector)}) * ({step_seconds('roundhouse_train_step_seconds', EACH_JOB, selector, window)})"


def of_gpus(metric, selector):
    """A metric of the DCGM exporter for the GPUs of the job's pods, with the labels job and worker.

    Prometheus names the exporter's labels `exported_pod` and `exported_namespace` unless it honours them.
    """
    named = f'label_replace({metric}{{{CLUSTER}}}, "pod", "$1", "exported_pod", "(.+)")'
    named = f'label_replace({named}, "namespace", "$1", "exported_namespace", "(.+)")'
    pods = f"max by (cluster, namespace, pod, job, worker) ({of('roundhouse_agent_info', selector)})"
    return f"{named} * on (cluster, namespace, pod) group_left (job, worker) {pods}"
