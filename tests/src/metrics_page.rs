//! Generates the page of the reference that lists all metrics, from the metrics that the operator,
//! the agent and the trainer expose.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use prometheus::{Registry, TextEncoder};
use roundhouse_agent::metrics::Metrics as AgentMetrics;
use roundhouse_operator::metrics::{Metrics as OperatorMetrics, testing::touch};
use roundhouse_report::metrics::Metrics as TrainerMetrics;

use crate::exposition::{Family, parse};

/// The path of the page, from the repository's root.
pub const PATH: &str = "docs/reference/metrics.md";

const HEAD: &str = "# Metrics

The operator, the agent and the trainer expose metrics in the text format of Prometheus. `make generate` writes this page
from the metrics themselves.

A metric whose value is not known is absent, not 0. Counters of a process start at 0 when the process starts: use `rate()` or
`increase()`.
";
const OPERATOR: &str = "Path `/metrics`, port 8080 of the operator.

The series of a job start when the operator first works on the job. They go away when the job is deleted, or ten minutes after
it has ended and its pods hold no GPU.

Goodput of a job, the share of its GPU time that went into training:

```promql
increase(roundhouse_job_gpu_training_seconds_total[1h]) / increase(roundhouse_job_gpu_held_seconds_total[1h])
```

GPUs are the resources `nvidia.com/gpu`, `amd.com/gpu` and `nvidia.com/mig-*` in the limits of the pod's containers. A pod holds
its GPUs from the moment it is scheduled until it ends. A GPU trains while its worker is a live member of the newest generation
and the condition `Running` of the job is true.
";
const AGENT: &str =
    "Path `/metrics`, port 9464 of each worker's pod, together with the metrics of the trainer.
";
const TRAINER: &str = "Each process of the built-in trainer writes its metrics every half second. The agent of the worker exposes
them with the label `rank`. \"Over the last seconds\" means the steps of the last 2 s. Metrics with \"(rank 0)\" are known to rank
0 alone: use `max()` over the ranks of a job.
";

/// The sections of the page: title, introduction, and an exposition in which each metric has at
/// least one series.
///
/// # Errors
/// A metric cannot be created or written, which is a defect.
pub fn expositions() -> anyhow::Result<[(&'static str, &'static str, String); 3]> {
    let registry = Registry::new();
    touch(&OperatorMetrics::new(&registry, Arc::new(Instant::now))?);
    let operator = TextEncoder::new().encode_to_string(&registry.gather())?;
    let agent = AgentMetrics::new(1)?.own_text()?;
    let trainer = TrainerMetrics::with_every_series()?.to_text()?;
    let trainer = roundhouse_agent::exposition::merge([(0, trainer.as_str())]);
    Ok([
        ("Operator", OPERATOR, operator),
        ("Agent", AGENT, agent),
        ("Trainer", TRAINER, trainer),
    ])
}

/// The text of the page in Markdown.
///
/// # Errors
/// The errors of [`expositions`], or an exposition is not in Prometheus' text format.
pub fn page() -> anyhow::Result<String> {
    let mut page = HEAD.to_owned();
    for (title, introduction, text) in expositions()? {
        let families = parse(&text).with_context(|| title.to_owned())?;
        write!(
            page,
            "\n## {title}\n{introduction}\n| metric | type | labels | unit | meaning |\n|---|---|---|---|---|\n"
        )?;
        for family in &families {
            row(&mut page, family)?;
        }
    }
    Ok(page)
}

fn row(page: &mut String, family: &Family) -> std::fmt::Result {
    let Family {
        name,
        help,
        kind,
        labels,
        series: _,
    } = family;
    let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
    let (labels, unit) = (labels.join(", "), unit(name));
    let help = help.trim_end_matches('.');
    writeln!(page, "| `{name}` | {kind} | {labels} | {unit} | {help} |")
}

/// The unit, from the suffix of a metric's name. Empty for counts.
fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    match name.rsplit('_').next() {
        Some("seconds") if name.contains("_gpu_") => "GPU-seconds",
        Some("seconds") if name.ends_with("_timestamp_seconds") => "seconds since 1970",
        Some("seconds") => "seconds",
        Some("bytes") => "bytes",
        Some("ratio") => "0 to 1",
        Some(_) | None => "",
    }
}
