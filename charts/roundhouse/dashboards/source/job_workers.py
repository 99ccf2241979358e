"""The panels of a job's workers, generations, checkpoints, GPUs and memory."""

from grafana import GREEN, RED, query, row, steps, timeseries
from promql import CLUSTER, EACH_JOB, JOB, most, new_within, of, of_gpus, steps_since, unsaved_seconds, unsaved_steps, workers


def membership():
    incidents = new_within(of("roundhouse_job_incidents_total", JOB), "1h")
    avoided = new_within(of("roundhouse_job_node_avoided_total", CLUSTER + ', namespace="$namespace"'), "1d")
    return [
        row("Workers, generations and incidents"),
        timeseries("World size", "Ranks that train together.", [query(most("world_size"), "ranks")], "none", width=8),
        timeseries(
            "Workers",
            "Workers that the spec requests, that are ready, and that train in the newest generation.",
            [query(workers(state, JOB), state) for state in ("wanted", "ready", "active")],
            "none",
            width=8,
        ),
        timeseries(
            "Generation of each worker",
            "A worker below the others has not joined the newest generation; 0 is the lobby.",
            [query(f"max by (pod) ({of('roundhouse_agent_generation', JOB)})", "{{pod}}")],
            "none",
            width=8,
        ),
        timeseries(
            "Incidents by reason",
            "Incidents of the last hour, by the reason in the job's status.",
            [query(f"sum by (reason) ({incidents})", "{{reason}}")],
            "none",
            stacked=True,
            width=6,
        ),
        timeseries(
            "Repeated steps",
            "Committed steps that the job trained again, because all processes with their state were lost. "
            "The event StepsRepeated lists them.",
            [query(f"sum by ({EACH_JOB}) ({of('roundhouse_job_repeated_steps_total', JOB)})", "steps")],
            "none",
            width=6,
            thresholds=steps((None, GREEN), (1, RED)),
        ),
        timeseries(
            "Processes",
            "Running processes of the workers, and restarts of processes within their containers.",
            [
                query(f"sum by ({EACH_JOB}) ({of('roundhouse_agent_process_up', JOB)})", "running"),
                query(f"sum by ({EACH_JOB}) ({of('roundhouse_agent_process_restarts_total', JOB)})", "restarts"),
            ],
            "none",
            width=6,
        ),
        timeseries(
            "Nodes avoided in the namespace",
            "Number of times that jobs of this namespace have avoided a node in the last day, after an error of "
            "a device or of the node itself.",
            [query(f"sum by (job, node) ({avoided})", "{{node}} ({{job}})")],
            "none",
            stacked=True,
            width=6,
        ),
    ]


def checkpoints():
    return [
        row("Checkpoints"),
        timeseries(
            "Steps not saved",
            "Committed steps after the newest checkpoint, the newest local copy, and the newest copy in another pod (with checkpoint.local.peerCopies).",
            [
                query(unsaved_steps(JOB), "checkpoint"),
                query(steps_since("local_copy_step"), "local copy"),
                query(steps_since("second_copy_step"), "copy in another pod"),
            ],
            "none",
            width=4,
        ),
        timeseries(
            "Training not saved",
            "Training time that would be lost if all workers ended now.",
            [query(unsaved_seconds(JOB), "not saved")],
            "s",
            width=4,
            thresholds=steps((None, GREEN), (3600, RED)),
        ),
        timeseries(
            "Age of the newest checkpoint",
            "Time since the newest checkpoint was complete.",
            [query(f"time() - {most('checkpoint_timestamp_seconds')}", "age")],
            "s",
            width=4,
        ),
        timeseries(
            "Time to save",
            "Time from the end of the step until the checkpoint or the local copy was complete, and the pause of training for it.",
            [
                query(most("checkpoint_seconds"), "complete after"),
                query(most("checkpoint_stall_seconds"), "training paused"),
                query(most("local_copy_seconds"), "local copy complete after"),
                query(most("local_copy_stall_seconds"), "training paused for it"),
            ],
            "s",
            width=6,
        ),
        timeseries(
            "Size and failures",
            "Size of the last checkpoint, failed checkpoints, and checkpoints skipped because another was being written.",
            [
                query(most("checkpoint_bytes"), "size"),
                query(f"sum by ({EACH_JOB}) ({of('roundhouse_train_checkpoint_failures_total', JOB)})", "failed"),
                query(f"sum by ({EACH_JOB}) ({of('roundhouse_train_checkpoints_skipped_total', JOB)})", "skipped"),
                query(f"sum by ({EACH_JOB}) ({of('roundhouse_train_local_copy_failures_total', JOB)})", "local copies failed"),
                query(f"sum by ({EACH_JOB}) ({of('roundhouse_train_local_copies_skipped_total', JOB)})", "local copies skipped"),
            ],
            "bytes",
            width=6,
        ),
    ]


def devices():
    each = "GPU {{gpu}}, worker {{worker}}"
    return [
        row("GPUs and memory"),
        timeseries(
            "GPU busy",
            "Share of the time in which a kernel ran on the GPU (DCGM exporter).",
            [query(of_gpus("DCGM_FI_DEV_GPU_UTIL", JOB), each)],
            "percent",
            most=100,
            width=8,
        ),
        timeseries(
            "Tensor cores busy",
            "Share of the cycles in which the tensor cores were busy (DCGM exporter). If it is low and the GPU is busy, use "
            "bf16, or sizes that are multiples of 8.",
            [query(of_gpus("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", JOB), each)],
            "percentunit",
            most=1,
            width=8,
        ),
        timeseries(
            "GPU memory",
            "Memory in use on the GPU (DCGM exporter).",
            [query(of_gpus("DCGM_FI_DEV_FB_USED", JOB), each)],
            "mbytes",
            width=8,
        ),
        timeseries(
            "GPU power",
            "Power that the GPU draws (DCGM exporter).",
            [query(of_gpus("DCGM_FI_DEV_POWER_USAGE", JOB), each)],
            "watt",
            width=8,
        ),
        timeseries(
            "GPU temperature",
            "Temperature of the GPU (DCGM exporter).",
            [query(of_gpus("DCGM_FI_DEV_GPU_TEMP", JOB), each)],
            "celsius",
            width=8,
            thresholds=steps((None, GREEN), (85, RED)),
        ),
        timeseries(
            "GPU errors (Xid)",
            "Number of the last Xid error, 0 for none (DCGM exporter). NVIDIA's list of Xid errors explains it.",
            [query(of_gpus("DCGM_FI_DEV_XID_ERRORS", JOB), each)],
            "none",
            width=8,
            thresholds=steps((None, GREEN), (1, RED)),
        ),
        timeseries(
            "GPU memory of libtorch",
            "Memory in tensors, and memory that the allocator has reserved on the GPU.",
            [
                query(most("device_memory_allocated_bytes", "rank"), "rank {{rank}}, in tensors"),
                query(most("device_memory_reserved_bytes", "rank"), "rank {{rank}}, reserved"),
            ],
            "bytes",
        ),
        timeseries(
            "Memory of the processes",
            "Resident memory of each process.",
            [query(most("resident_memory_bytes", "rank"), "rank {{rank}}")],
            "bytes",
        ),
    ]
