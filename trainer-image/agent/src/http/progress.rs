//! Answers the operator's poll of the progress.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use roundhouse_contract::{Formed, Membership, Progress, ProgressReport, RankStatus};

use super::Shared;
use crate::kubeflow::Reports;
use crate::ranks;

pub(super) async fn progress(
    State(Shared {
        options,
        metrics: _,
        reports,
    }): State<Shared>,
) -> Response {
    let status = |local| Some((local, ranks::status(&options.run_dir, local)?));
    let statuses: Vec<(u32, RankStatus)> = (0..options.procs).filter_map(status).collect();
    let job_uid = options.job_uid().map(str::to_owned);
    let own = statuses.iter().find_map(|(_, it)| it.progress.clone());
    let document = || std::fs::read_to_string(&options.membership_file).unwrap_or_default();
    if let Some(report) = own.or_else(|| posted(&statuses, &reports, document)) {
        return axum::Json(ProgressReport { job_uid, report }).into_response();
    }
    let formed = statuses.iter().map(|(_, status)| status.generation).max();
    formed.map_or_else(
        || StatusCode::NO_CONTENT.into_response(),
        |formed| {
            let report = Formed { formed };
            axum::Json(ProgressReport { job_uid, report }).into_response()
        },
    )
}

/// The progress that rank 0 has posted. It counts only while no process has a progress of its own:
/// the steps of the package `roundhouse` are committed steps of the whole job, on which the
/// operator bases its decisions, and a loop inside the script counts what it likes.
fn posted(
    statuses: &[(u32, RankStatus)],
    reports: &Reports,
    document: impl FnOnce() -> String,
) -> Option<Progress> {
    let is_first = |(_, status): &&(u32, RankStatus)| status.rank == Some(0);
    let (local_rank, status) = statuses.iter().find(is_first)?;
    let progress = reports.of(*local_rank)?;
    let document = Membership::parse(&document()).ok().flatten();
    let document = document.filter(|document| document.generation == status.generation)?;
    Some(progress.within(document.generation, document.world_size()))
}
