//! The list of jobs, one line each.

use jiff::Timestamp;
use kube::ResourceExt;
use roundhouse_api::TrainingJob;
use serde::Serialize;

use super::{known_speed, since, state};
use crate::out::table;

/// One job in the list.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Line {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The state of the job in one word.
    pub(crate) state: String,
    /// Ready and wanted workers, such as `1/2`.
    pub(crate) ready: String,
    /// Ranks of the newest generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) world_size: Option<u32>,
    /// Number of committed steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) step: Option<u64>,
    /// Share of the steps that are committed, such as `48%`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) percent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) samples_per_second: Option<f64>,
    pub(crate) incidents: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) created: Option<Timestamp>,
}

/// One line for each job, sorted by namespace and name.
pub(crate) fn lines(jobs: &[TrainingJob]) -> Vec<Line> {
    let mut lines: Vec<Line> = jobs.iter().map(line).collect();
    lines.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    lines
}

fn line(job: &TrainingJob) -> Line {
    let status = job.status.clone().unwrap_or_default();
    let progress = status.progress.as_ref();
    Line {
        namespace: job.namespace().unwrap_or_default(),
        name: job.name_any(),
        state: state(status.state()),
        ready: status
            .workers
            .as_ref()
            .map_or_else(|| "-".to_owned(), |it| it.summary.clone()),
        world_size: status.membership.as_ref().map(|it| it.world_size),
        step: progress.map(|it| it.progress.step),
        percent: progress.map(|it| it.percent.clone()),
        loss: progress.and_then(|it| it.progress.loss),
        samples_per_second: progress.and_then(|it| known_speed(it.progress.samples_per_second)),
        incidents: status.incidents.total,
        created: job.creation_timestamp().map(|at| at.0),
    }
}

/// The lines as a table.
pub(crate) fn text(lines: &[Line], with_namespace: bool, now: Timestamp) -> String {
    let mut columns = vec![
        "NAME",
        "STATE",
        "READY",
        "WORLD",
        "STEP",
        "PROGRESS",
        "LOSS",
        "SAMPLES/S",
        "INCIDENTS",
        "AGE",
    ];
    if with_namespace {
        columns.insert(0, "NAMESPACE");
    }
    let rows = lines.iter().map(|line| {
        let mut cells = vec![
            line.name.clone(),
            line.state.clone(),
            line.ready.clone(),
            or_dash(line.world_size),
            or_dash(line.step),
            or_dash(line.percent.clone()),
            or_dash(line.loss.map(|loss| format!("{loss:.4}"))),
            or_dash(line.samples_per_second.map(|it| format!("{it:.0}"))),
            line.incidents.to_string(),
            since(line.created, now),
        ];
        if with_namespace {
            cells.insert(0, line.namespace.clone());
        }
        cells
    });
    table(&columns, rows)
}

/// The value, or `-` if there is none.
pub(crate) fn or_dash(value: Option<impl std::fmt::Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}
