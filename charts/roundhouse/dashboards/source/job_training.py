"""How well a job trains, and where the time of a step goes."""

from grafana import BLUE, GREEN, YELLOW, query, repeated, row, stat, steps, timeseries
from promql import JOB, most, of, quantile, step_seconds

RATE = "$__rate_interval"
OWN = step_seconds("roundhouse_train_step_compute_seconds", "rank, pod, node", JOB, RATE)


def sections(by, selector):
    """Mean time of a step in each section."""
    spent = f"sum by ({by}, section) (rate({of('roundhouse_train_step_section_seconds_total', selector)}[{RATE}]))"
    num_steps = f"sum by ({by}) (rate({of('roundhouse_train_step_seconds_count', selector)}[{RATE}]))"
    return f"{spent} / on ({by}) group_left () {num_steps}"


def training():
    return [
        row("Training"),
        timeseries(
            "Loss",
            "Mean training loss of a step, and the loss on the test split.",
            [query(most("loss"), "training"), query(most("eval_loss"), "evaluation")],
            "short",
            least=None,
        ),
        timeseries(
            "Throughput",
            "Samples trained on each second, all ranks together, over the last 2 s.",
            [query(most("samples_per_second"), "samples/s")],
            "short",
        ),
        timeseries(
            "Tokens",
            "Tokens trained on each second, all ranks together. For data of tokens and text.",
            [query(most("tokens_per_second"), "tokens/s")],
            "short",
            width=8,
        ),
        timeseries(
            "Use of the hardware (MFU)",
            "Operations that the model needs at this throughput, as a share of what the devices can do. "
            "trainer.peakFlops sets the peak of devices that are not known.",
            [query(most("model_flops_utilization_ratio"), "MFU")],
            "percentunit",
            width=8,
        ),
        timeseries(
            "Learning rate",
            "Learning rate of the last step.",
            [query(most("learning_rate"), "learning rate")],
            "sci",
            width=8,
        ),
        timeseries(
            "Gradient norm",
            "Norm of the mean gradient before clipping. A jump often comes before a loss that diverges.",
            [query(most("gradient_norm"), "norm")],
            "short",
            width=12,
            log=True,
        ),
        timeseries(
            "Steps that changed nothing",
            "Committed steps whose loss or gradient was not finite, so that the weights stayed.",
            [query(most("skipped_steps"), "skipped")],
            "none",
            thresholds=steps((None, GREEN), (1, YELLOW)),
            width=12,
        ),
    ]


def time_of_a_step():
    parts = [query(sections("job", JOB), "{{section}}")]
    waits = [query(most("data_wait_ratio", "rank"), "rank {{rank}}")]
    communication = [query(most("communication_ratio", "rank"), "rank {{rank}}")]
    of_rank = JOB + ', rank=~"$rank"'
    return [
        row("Where the time of a step goes"),
        timeseries(
            "Step time, mean of the ranks",
            "Mean time of a step by section. The gradient reduction overlaps backward; "
            "communication is what is left of it, the agreement at the end, and the wait for slower ranks.",
            parts,
            "s",
            stacked=True,
        ),
        timeseries(
            "Step time",
            "Quantiles of the time of a step, over all ranks.",
            [
                query(quantile(share, "roundhouse_train_step_seconds", JOB, RATE), name)
                for share, name in ((0.5, "median"), (0.99, "99 %"))
            ],
            "s",
        ),
        timeseries(
            "Slowest ranks",
            "The five ranks that spend most time on their own part of a step, without the wait for others. "
            "All other ranks wait for the slowest.",
            [query(f"topk(5, {OWN})", "rank {{rank}}, {{pod}} on {{node}}")],
            "s",
            width=16,
        ),
        stat(
            "Slowest rank now",
            "The rank that spends most time on its own part of a step.",
            [query(f"topk(1, {OWN})", "rank {{rank}} on {{node}}", instant=True)],
            "s",
            steps((None, BLUE)),
            width=8,
            text="value_and_name",
            graph=False,
        ),
        timeseries(
            "Wait for data",
            "Share of the time of steps that a rank waited for samples. Above 2 %, raise data.reading.threads.",
            waits,
            "percentunit",
            thresholds=steps((None, GREEN), (0.02, YELLOW)),
        ),
        timeseries(
            "Communication",
            "Share of the time of steps that went to communication which nothing overlaps, with the wait for slower "
            "ranks. A rank with much less than the others is the slow one.",
            communication,
            "percentunit",
        ),
        row("Where the time of a step goes, rank by rank"),
        repeated(
            timeseries(
                "Rank $rank",
                "Mean time of a step of this rank by section. Choose ranks with the variable Rank.",
                [query(sections("rank", of_rank), "{{section}}")],
                "s",
                stacked=True,
                width=24,
            ),
            "rank",
        ),
    ]
