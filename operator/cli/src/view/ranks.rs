//! The table of ranks: one row for each process of each worker.

use jiff::Timestamp;
use roundhouse_contract::{Action, ProcessRestarts};
use serde::Serialize;

use super::{exit, known_speed, since};
use crate::facts::metrics::of_rank;
use crate::facts::worker::Worker;
use crate::facts::{AgentReport, Facts};

/// One process of a worker.
#[allow(clippy::struct_field_names, reason = "usual terms: rank, local rank")]
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rank {
    /// Rank in the newest generation, if the worker is a member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rank: Option<u32>,
    /// Index of the worker.
    pub(crate) worker: u32,
    pub(crate) local_rank: u32,
    /// What this process has of the state if the worker is sharded: the shard `1/2`, the part of
    /// each layer `tensor 1/2`, or the layers of `stage 1/2`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shard: Option<String>,
    /// In a replica of several pods, the indices of the replica and of the pod in it: `1.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replica: Option<String>,
    /// Name of the worker's pod.
    pub(crate) pod: String,
    /// Node of the pod, once the scheduler has chosen one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    /// The state of the process in one word.
    pub(crate) state: String,
    /// Committed steps, if the agent answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) step: Option<u64>,
    /// Number of steps behind the furthest rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lag: Option<u64>,
    /// This rank's share of the job's samples per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) samples_per_second: Option<f64>,
    /// For a straggler: its time for its part of a step, divided by that of the other workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slower: Option<f64>,
    /// Restarts of the container, plus restarts of processes in the present container.
    pub(crate) restarts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_exit: Option<LastExit>,
}

/// The last end of a process.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LastExit {
    /// Exit code; 128 + n for signal n.
    pub(crate) code: i32,
    /// The meaning of the exit code.
    pub(crate) words: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<Timestamp>,
}

impl LastExit {
    /// The text for a cell of a table.
    pub(crate) fn cell(&self, now: Timestamp) -> String {
        let Self { code, words, at } = self;
        let at = at.map(|at| format!(", {} ago", since(Some(at), now)));
        format!("{code} ({words}){}", at.unwrap_or_default())
    }
}

/// The processes of all workers, ranks first.
pub(crate) fn of(facts: &Facts) -> Vec<Rank> {
    let generation = facts.generation();
    // Each of these reads all pods.
    let sizes = Sizes {
        of_pod: facts.procs(),
        of_replica: facts.procs_of_replica(),
        has_spare_pods: facts.has_large_replicas(),
    };
    let workers = facts.workers();
    let mut ranks: Vec<Rank> = workers
        .iter()
        .flat_map(|worker| (0..sizes.of_pod).map(move |local| (worker, local)))
        .map(|(worker, local)| rank(facts, worker, local, generation, &sizes))
        .collect();
    let furthest = ranks.iter().filter_map(|rank| rank.step).max();
    for rank in &mut ranks {
        rank.lag = furthest.zip(rank.step).map(|(all, own)| all - own);
    }
    ranks
}

/// Numbers that all ranks share.
struct Sizes {
    /// Number of processes of a pod.
    of_pod: u32,
    /// Number of processes of a worker.
    of_replica: u32,
    /// Whether pods without a place in a replica are spares.
    has_spare_pods: bool,
}

fn rank(facts: &Facts, worker: &Worker, local_rank: u32, generation: u64, sizes: &Sizes) -> Rank {
    let report = facts.reports.get(&worker.pod);
    let place = worker.place_in(generation);
    let number = place.map(|place| place.rank(local_rank));
    let progress = facts.progress().filter(|it| it.generation == generation);
    let restarts = report.and_then(|report| report.restarts.as_ref());
    let is_spare = sizes.has_spare_pods && worker.replica.is_none();
    let state = match state(worker, local_rank, restarts, generation) {
        state if is_spare && state == "Preparing" => "Spare".to_owned(),
        state => state,
    };
    let is_training = state == "Training";
    let speed = progress
        .as_ref()
        .filter(|it| is_training && it.world_size > 0);
    let straggler = progress.as_ref().and_then(|it| it.straggler);
    let straggler =
        straggler.filter(|it| place.is_some_and(|place| place.node_rank == it.node_rank));
    Rank {
        rank: number,
        worker: worker.index,
        local_rank,
        shard: shard(facts, number, local_rank, sizes).filter(|_| facts.is_sharded()),
        replica: worker
            .replica
            .as_ref()
            .map(|place| format!("{}.{}", place.replica, place.pod)),
        pod: worker.pod.clone(),
        node: worker.node.clone(),
        state,
        step: number.and_then(|number| step(report?, number)),
        lag: None,
        samples_per_second: speed.and_then(|it| {
            // Processes that divide layers compute the same samples.
            let num_alike = if facts.parallel().divides_layers() {
                sizes.of_replica
            } else {
                1
            };
            let of_all = known_speed(it.samples_per_second)? * f64::from(num_alike);
            Some(of_all / f64::from(it.world_size))
        }),
        slower: straggler.map(|it| it.factor),
        restarts: worker.restarts + restarts.map_or(0, |it| it.total),
        last_exit: last_exit(worker, local_rank, restarts),
    }
}

/// What a process of a sharded worker has of the state: a shard, a part of each layer, or the
/// layers of a stage. In a replica of several pods a process has one only while it has a rank.
fn shard(facts: &Facts, rank: Option<u32>, local_rank: u32, sizes: &Sizes) -> Option<String> {
    let of_all = sizes.of_replica.max(1);
    let index = if sizes.of_pod == of_all {
        local_rank
    } else {
        rank? % of_all
    };
    let parallel = facts.parallel();
    let what = if parallel.tensor.is_some() {
        "tensor "
    } else if parallel.pipeline.is_some() {
        "stage "
    } else {
        ""
    };
    Some(format!("{what}{}/{of_all}", index + 1))
}

fn step(report: &AgentReport, rank: u32) -> Option<u64> {
    let value = of_rank(&report.metrics, "roundhouse_train_step", rank)?;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range check makes it a valid number of steps"
    )]
    (0.0..9e15).contains(&value).then_some(value as u64)
}

fn state(
    worker: &Worker,
    local: u32,
    restarts: Option<&ProcessRestarts>,
    generation: u64,
) -> String {
    let is_preparing = restarts.is_some_and(|it| it.preparing.contains(&local));
    let asked_to_leave = worker
        .place
        .as_ref()
        .is_some_and(|it| it.action == Action::Leave);
    let word = match worker.phase.as_str() {
        _ if worker.is_leaving => "Leaving",
        "Succeeded" => "Completed",
        "Failed" => worker.failed.as_ref().map_or("Failed", |(reason, _)| {
            if reason.is_empty() { "Failed" } else { reason }
        }),
        _ if worker.is_unreachable => "NodeUnreachable",
        _ if worker.unschedulable.is_some() => "Unschedulable",
        _ if worker.waiting.is_some() => worker.waiting.as_ref().map_or("", |it| &it.0),
        "Pending" => "Pending",
        _ if is_preparing => "Preparing",
        _ if !worker.is_ready && worker.place_in(generation).is_some() => "Recovering",
        _ if !worker.is_ready => "Preparing",
        _ if asked_to_leave => "Leaving",
        _ if worker.place_in(generation).is_some() => "Training",
        _ => "Lobby",
    };
    word.to_owned()
}

fn last_exit(worker: &Worker, local: u32, restarts: Option<&ProcessRestarts>) -> Option<LastExit> {
    let in_place = restarts.and_then(|it| it.last.as_ref());
    if let Some(end) = in_place.filter(|end| end.local_rank == local) {
        return Some(LastExit {
            code: end.exit_code,
            words: exit::words(end.exit_code, "Error"),
            at: Timestamp::from_second(end.ended_at_seconds).ok(),
        });
    }
    let end = worker.end.as_ref()?;
    Some(LastExit {
        code: end.code,
        words: exit::words(end.code, &end.reason),
        at: end.at,
    })
}
