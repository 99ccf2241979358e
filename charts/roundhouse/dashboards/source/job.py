"""Job: one job. How well it trains, where the time of a step goes, and what happened to it."""

from urllib.parse import quote

from grafana import (BLUE, GREEN, RED, YELLOW, annotation, dashboard, data_source, label_variable, link, query, repeated, row, stat,
                     steps, timeseries)
from promql import (CLUSTER, EACH_JOB, JOB, gauge, goodput, new_within, of, of_gpus, quantile, step_seconds, unsaved_seconds,
                    unsaved_steps, workers)

RATE, RANGE = "$__rate_interval", "$__range"
OWN = step_seconds("roundhouse_train_step_own_seconds", "rank, pod, node", JOB, RATE)
LOGS = quote(
    '/explore?schemaVersion=1&panes={"logs":{"datasource":"${logs}","queries":[{"refId":"A","datasource":{"type":"loki","uid":"${logs}"},'
    '"expr":"{namespace=\\"${namespace}\\",pod=~\\"${job}-worker-.*\\"}"}],"range":{"from":"${__from}","to":"${__to}"}}}',
    safe="/?&=${}:,",
)


def most(metric, by=EACH_JOB):
    """What only some ranks know, or all ranks say alike."""
    return f"max by ({by}) ({of('roundhouse_train_' + metric, JOB)})"


def sections(by, selector):
    """Mean time of a step in each section."""
    spent = f"sum by ({by}, section) (rate({of('roundhouse_train_step_section_seconds_total', selector)}[{RATE}]))"
    num_steps = f"sum by ({by}) (rate({of('roundhouse_train_step_seconds_count', selector)}[{RATE}]))"
    return f"{spent} / on ({by}) group_left () {num_steps}"


def summary():
    incidents = new_within(of("roundhouse_job_incidents_total", JOB), RANGE)
    return [
        row("Summary"),
        stat("Step", "Committed optimizer steps.", [query(most("step"), "step")], "none", steps((None, BLUE)), width=3),
        stat("Loss", "Mean training loss of the last step.", [query(most("loss"), "loss")], "short", steps((None, BLUE)), width=3,
             decimals=4),
        stat("Throughput", "Samples trained on each second, all ranks together.", [query(most("samples_per_second"), "samples/s")],
             "short", steps((None, BLUE)), width=3),
        stat("World size", "Ranks of the newest generation.", [query(most("world_size"), "ranks")], "none", steps((None, BLUE)),
             width=3),
        stat("Generation", "Number of the newest generation. Each change of the workers makes a new one.",
             [query(most("generation"), "generation")], "none", steps((None, BLUE)), width=3),
        stat("Incidents", "Failures of workers in the chosen time range.", [query(f"sum({incidents}) or vector(0)", "incidents")], "none",
             steps((None, GREEN), (1, YELLOW), (5, RED)), width=3),
        stat("Not saved", "Training that would be lost if all workers ended now: the steps after the newest checkpoint.",
             [query(unsaved_seconds(JOB), "not saved")], "s", steps((None, GREEN), (1800, YELLOW), (3600, RED)), width=3),
        stat("Goodput", "GPU-seconds of training in each GPU-second held, over the chosen time range.",
             [query(goodput("", JOB, RANGE), "goodput")], "percentunit", steps((None, RED), (0.5, YELLOW), (0.8, GREEN)), width=3,
             decimals=1),
    ]


def training():
    return [
        row("Training"),
        timeseries("Loss", "Mean training loss of a step, and the loss on the test split.",
                   [query(most("loss"), "training"), query(most("eval_loss"), "evaluation")], "short", least=None),
        timeseries("Throughput", "Samples trained on each second, all ranks together, over the last 2 s.",
                   [query(most("samples_per_second"), "samples/s")], "short"),
        timeseries("Tokens", "Tokens trained on each second, all ranks together. For data of tokens and text.",
                   [query(most("tokens_per_second"), "tokens/s")], "short", width=8),
        timeseries("Use of the hardware (MFU)", "Operations that the model needs at this throughput, as a share of what the devices can do. "
                   "trainer.peakFlops sets the peak of devices that are not known.",
                   [query(most("model_flops_utilization_ratio"), "MFU")], "percentunit", width=8),
        timeseries("Learning rate", "Learning rate of the last step.", [query(most("learning_rate"), "learning rate")], "sci", width=8),
        timeseries("Gradient norm", "Norm of the mean gradient before clipping. A jump often comes before a loss that diverges.",
                   [query(most("gradient_norm"), "norm")], "short", width=12, log=True),
        timeseries("Steps that changed nothing", "Committed steps whose loss or gradient was not finite, so that the weights stayed.",
                   [query(most("skipped_steps"), "skipped")], "none", thresholds=steps((None, GREEN), (1, YELLOW)), width=12),
    ]


def time_of_a_step():
    parts = [query(sections("job", JOB), "{{section}}")]
    waits = [query(most("data_wait_ratio", "rank"), "rank {{rank}}")]
    communication = [query(most("communication_ratio", "rank"), "rank {{rank}}")]
    of_rank = JOB + ', rank=~"$rank"'
    return [
        row("Where the time of a step goes"),
        timeseries("Step time, mean of the ranks", "Mean time of a step by section. The gradient reduction overlaps backward; "
                   "communication is what is left of it, the agreement at the end, and the wait for slower ranks.",
                   parts, "s", stacked=True),
        timeseries("Step time", "Quantiles of the time of a step, over all ranks.",
                   [query(quantile(share, "roundhouse_train_step_seconds", JOB, RATE), name)
                    for share, name in ((0.5, "median"), (0.99, "99 %"))], "s"),
        timeseries("Slowest ranks", "The five ranks that spend most time on their own part of a step, without the wait for others. "
                   "All other ranks wait for the slowest.",
                   [query(f"topk(5, {OWN})", "rank {{rank}}, {{pod}} on {{node}}")], "s", width=16),
        stat("Slowest rank now", "The rank that spends most time on its own part of a step.",
             [query(f"topk(1, {OWN})", "rank {{rank}} on {{node}}", instant=True)], "s", steps((None, BLUE)), width=8,
             text="value_and_name", graph=False),
        timeseries("Wait for data", "Share of the time of steps that a rank waited for samples. Above 2 %, raise data.reading.threads.",
                   waits, "percentunit", thresholds=steps((None, GREEN), (0.02, YELLOW))),
        timeseries("Communication", "Share of the time of steps that went to communication which nothing overlaps, with the wait for slower "
                   "ranks. A rank with much less than the others is the slow one.", communication, "percentunit"),
        row("Where the time of a step goes, rank by rank"),
        repeated(timeseries("Rank $rank", "Mean time of a step of this rank by section. Choose ranks with the variable Rank.",
                            [query(sections("rank", of_rank), "{{section}}")], "s", stacked=True, width=24), "rank"),
    ]


def membership():
    incidents = new_within(of("roundhouse_job_incidents_total", JOB), "1h")
    avoided = new_within(of("roundhouse_job_node_avoided_total", CLUSTER + ', namespace="$namespace"'), "1d")
    return [
        row("Workers, generations and incidents"),
        timeseries("World size", "Ranks that train together.", [query(most("world_size"), "ranks")], "none", width=8),
        timeseries("Workers", "Workers that the spec wants, that are ready, and that train in the newest generation.",
                   [query(workers(state, JOB), state) for state in ("wanted", "ready", "active")], "none", width=8),
        timeseries("Generation of each worker", "A worker below the others has not joined the newest generation; 0 is the lobby.",
                   [query(f"max by (pod) ({of('roundhouse_agent_generation', JOB)})", "{{pod}}")], "none", width=8),
        timeseries("Incidents by reason", "Incidents of the last hour, by the reason that the job's status gives.",
                   [query(f"sum by (reason) ({incidents})", "{{reason}}")], "none", stacked=True, width=8),
        timeseries("Processes", "Processes of the workers that run, and processes that died and were started again in their containers.",
                   [query(f"sum by ({EACH_JOB}) ({of('roundhouse_agent_process_up', JOB)})", "running"),
                    query(f"sum by ({EACH_JOB}) ({of('roundhouse_agent_process_restarts_total', JOB)})", "started again")], "none", width=8),
        timeseries("Nodes avoided in the namespace", "How often jobs of this namespace have avoided a node in the last day, after an error of "
                   "a device or of the node itself.",
                   [query(f"sum by (job, node) ({avoided})", "{{node}} ({{job}})")], "none", stacked=True, width=8),
    ]


def checkpoints():
    return [
        row("Checkpoints"),
        timeseries("Steps not saved", "Committed steps after the newest checkpoint.", [query(unsaved_steps(JOB), "steps")], "none", width=4),
        timeseries("Training not saved", "Training that would be lost if all workers ended now.",
                   [query(unsaved_seconds(JOB), "not saved")], "s", width=4,
                   thresholds=steps((None, GREEN), (3600, RED))),
        timeseries("Age of the newest checkpoint", "Time since the newest checkpoint was complete.",
                   [query(f"time() - {most('checkpoint_timestamp_seconds')}", "age")], "s", width=4),
        timeseries("Time to save", "From the end of the step until the checkpoint was complete, and how long training stood still for it.",
                   [query(most("checkpoint_seconds"), "complete after"), query(most("checkpoint_stall_seconds"), "training stood still")],
                   "s", width=6),
        timeseries("Size and trouble", "Size of the last checkpoint; checkpoints that failed, or were due while another was being written.",
                   [query(most("checkpoint_bytes"), "size"),
                    query(f"sum by ({EACH_JOB}) ({of('roundhouse_train_checkpoint_failures_total', JOB)})", "failed"),
                    query(f"sum by ({EACH_JOB}) ({of('roundhouse_train_checkpoints_skipped_total', JOB)})", "skipped")],
                   "bytes", width=6),
    ]


def devices():
    each = "GPU {{gpu}}, worker {{worker}}"
    return [
        row("GPUs and memory"),
        timeseries("GPU busy", "Share of the time that a kernel ran on the GPU (DCGM exporter).",
                   [query(of_gpus("DCGM_FI_DEV_GPU_UTIL", JOB), each)], "percent", most=100, width=8),
        timeseries("Tensor cores busy", "Share of the cycles that the tensor cores were busy (DCGM exporter). Low with a busy GPU: use bf16, or "
                   "sizes that are multiples of 8.",
                   [query(of_gpus("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", JOB), each)], "percentunit", most=1, width=8),
        timeseries("GPU memory", "Memory of the GPU that is in use (DCGM exporter).",
                   [query(of_gpus("DCGM_FI_DEV_FB_USED", JOB), each)], "mbytes", width=8),
        timeseries("GPU power", "Power that the GPU draws (DCGM exporter).",
                   [query(of_gpus("DCGM_FI_DEV_POWER_USAGE", JOB), each)], "watt", width=8),
        timeseries("GPU temperature", "Temperature of the GPU (DCGM exporter).",
                   [query(of_gpus("DCGM_FI_DEV_GPU_TEMP", JOB), each)], "celsius", width=8, thresholds=steps((None, GREEN), (85, RED))),
        timeseries("GPU errors (Xid)", "Number of the last Xid error, 0 for none (DCGM exporter). NVIDIA's list of Xid errors says what it means.",
                   [query(of_gpus("DCGM_FI_DEV_XID_ERRORS", JOB), each)], "none", width=8, thresholds=steps((None, GREEN), (1, RED))),
        timeseries("GPU memory of libtorch", "Memory in tensors, and memory that the allocator has taken from the GPU.",
                   [query(most("device_memory_allocated_bytes", "rank"), "rank {{rank}}, in tensors"),
                    query(most("device_memory_reserved_bytes", "rank"), "rank {{rank}}, taken")], "bytes"),
        timeseries("Memory of the processes", "Memory of each process that is in RAM.",
                   [query(most("resident_memory_bytes", "rank"), "rank {{rank}}")], "bytes"),
    ]


def events():
    """New generations and incidents, as marks on every panel."""
    generation = of("roundhouse_train_generation", JOB)
    incidents = f"sum by (reason) ({of('roundhouse_job_incidents_total', JOB)})"
    before = f"sum by (reason) ({of('roundhouse_job_incidents_total', JOB)} offset 15s)"
    return [
        annotation("Generations", f"max by (job) ({generation}) > (max by (job) ({generation} offset 15s) or max by (job) ({generation}) * 0)",
                   BLUE, "New generation", "{{job}}: the workers changed"),
        annotation("Incidents", f"{incidents} > ({before} or {incidents} * 0)", RED, "Incident", "{{reason}}"),
    ]


def build():
    known = f"roundhouse_job_workers{{{CLUSTER}}}"
    return dashboard(
        "roundhouse-job", "Roundhouse / Job", "One TrainingJob: progress, where the time goes, workers, checkpoints and GPUs.",
        variables=[
            data_source("datasource", "Data source", "prometheus"),
            label_variable("cluster", "Cluster", "label_values(roundhouse_operator_info, cluster)", every=True),
            label_variable("namespace", "Namespace", f"label_values({known}, namespace)"),
            label_variable("job", "Job", f'label_values(roundhouse_job_workers{{{CLUSTER}, namespace="$namespace"}}, job)'),
            label_variable("rank", "Rank", f"label_values(roundhouse_train_step{{{JOB}}}, rank)", several=True, default="0", numeric=True),
            data_source("logs", "Logs", "loki"),
        ],
        panels=[*summary(), *training(), *time_of_a_step(), *membership(), *checkpoints(), *devices()],
        annotations=events(),
        links=[
            link("Fleet", "/d/roundhouse-fleet?${datasource:queryparam}&${cluster:queryparam}", "dashboard", "All jobs"),
            link("Logs", LOGS, "doc", "Logs of the job's workers, from Loki"),
        ],
    )
