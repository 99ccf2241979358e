"""The panels of a job's training and of the time of a step."""

from grafana import BLUE, GREEN, YELLOW, query, repeated, row, stat, steps, timeseries
from promql import JOB, most, of, quantile, step_seconds

RATE = "$__rate_interval"
OWN = step_seconds("roundhouse_train_step_compute_seconds", "rank, pod, node", JOB, RATE)


def sections(by, selector):
    """The mean time of each section of a step."""
    spent = f"sum by ({by}, section) (rate({of('roundhouse_train_step_section_seconds_total', selector)}[{RATE}]))"
    num_steps = f"sum by ({by}) (rate({of('roundhouse_train_step_seconds_count', selector)}[{RATE}]))"
    return f"{spent} / on ({by}) group_left () {num_steps}"


def training():
    return [
        row("Training"),
        timeseries(
            "Loss",
            "Mean training loss of a step, and loss on the validation split.",
            [query(most("loss"), "training"), query(most("eval_loss"), "evaluation")],
            "short",
            least=None,
        ),
        timeseries(
            "Throughput",
            "Samples per second of all ranks together, over the last 2 s.",
            [query(most("samples_per_second"), "samples/s")],
            "short",
        ),
        timeseries(
            "Tokens",
            "Tokens per second of all ranks together, for data of tokens and text.",
            [query(most("tokens_per_second"), "tokens/s")],
            "short",
            width=8,
        ),
        timeseries(
            "Use of the hardware (MFU)",
            "Operations that the model needs at this throughput, as a share of the peak of the devices. "
            "trainer.peakFlops sets the peak of unknown devices.",
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
            "Norm of the mean gradient before clipping. A jump often precedes a diverging loss.",
            [query(most("gradient_norm"), "norm")],
            "short",
            width=12,
            log=True,
        ),
        timeseries(
            "Skipped updates",
            "Committed steps that did not change the weights, because their loss or gradient was not finite.",
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
            "Mean time of a step by section. The gradient reduction overlaps the backward pass. "
            "Communication is the rest of the reduction, the agreement at the end, and the wait for slower ranks.",
            parts,
            "s",
            stacked=True,
        ),
        timeseries(
            "Step time",
            "Quantiles of the step time over all ranks.",
            [
                query(quantile(share, "roundhouse_train_step_seconds", JOB, RATE), name)
                for share, name in ((0.5, "median"), (0.99, "99 %"))
            ],
            "s",
        ),
        timeseries(
            "Slowest ranks",
            "The five ranks with the longest compute time per step, without the wait for other ranks. "
            "All other ranks wait for the slowest rank.",
            [query(f"topk(5, {OWN})", "rank {{rank}}, {{pod}} on {{node}}")],
            "s",
            width=16,
        ),
        stat(
            "Slowest rank now",
            "The rank with the longest compute time per step.",
            [query(f"topk(1, {OWN})", "rank {{rank}} on {{node}}", instant=True)],
            "s",
            steps((None, BLUE)),
            width=8,
            text="value_and_name",
            graph=False,
        ),
        timeseries(
            "Wait for data",
            "Share of the step time in which a rank waited for samples. Above 2 %, raise data.reading.threads.",
            waits,
            "percentunit",
            thresholds=steps((None, GREEN), (0.02, YELLOW)),
        ),
        timeseries(
            "Communication",
            "Share of the step time in communication that does not overlap computation, including the wait for slower "
            "ranks. A rank with a much smaller share than the others is the slow rank.",
            communication,
            "percentunit",
        ),
        row("Where the time of a step goes, rank by rank"),
        repeated(
            timeseries(
                "Rank $rank",
                "Mean time of a step of this rank by section. Select ranks with the variable Rank.",
                [query(sections("rank", of_rank), "{{section}}")],
                "s",
                stacked=True,
                width=24,
            ),
            "rank",
        ),
    ]
