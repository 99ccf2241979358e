//! What happens to a job while the fault occurs.

use std::ops::RangeInclusive;

use roundhouse_api::{ConditionType, Gang};

use super::fault::Fault;
use super::steady_state::ClusterState;

/// A scenario with a job of two workers. Except in `Starts`, `Gang` and `LargeReplicas`, the job
/// trains when the fault starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scenario {
    Starts,
    Fails,
    Grows,
    Shrinks,
    Suspends,
    Completes,
    /// The job is deleted and created again.
    Returns,
    /// The pod of a worker is deleted.
    Replaces,
    /// The job has a PodGroup, whose minimum changes later.
    Gang,
    /// The job is deleted after its TTL.
    Expires,
    /// Each replica has two pods, which start and end together.
    LargeReplicas,
}

/// An action of a user or a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Create,
    CreateGang,
    CreateLargeReplicas,
    /// The first worker crashes, and its kubelet restarts it.
    Crash,
    /// The pod of the second worker is deleted.
    Lose,
    Resize(u32),
    Suspend(bool),
    Complete,
    DeleteAndCreate,
    /// The TTL of the finished job becomes 0 s.
    Expire,
}

/// The state that a job must reach after an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    Trains(u32),
    Suspended,
    Completed(u32),
    Deleted,
}

/// An action, and the state that follows.
pub(crate) type Step = (Action, Goal);

impl Scenario {
    pub(crate) const ALL: [Self; 11] = [
        Self::Starts,
        Self::Fails,
        Self::Grows,
        Self::Shrinks,
        Self::Suspends,
        Self::Completes,
        Self::Returns,
        Self::Replaces,
        Self::Gang,
        Self::Expires,
        Self::LargeReplicas,
    ];

    /// All scenarios, or only the one that `ROUNDHOUSE_API_SCENARIO` contains.
    pub(crate) fn wanted() -> impl Iterator<Item = Self> {
        let only = std::env::var("ROUNDHOUSE_API_SCENARIO").ok();
        let all = Self::ALL.into_iter();
        all.filter(move |it| only.as_ref().is_none_or(|only| *only == format!("{it:?}")))
    }

    pub(crate) const fn steps(self) -> &'static [Step] {
        match self {
            Self::Starts => &[(Action::Create, Goal::Trains(2))],
            Self::Fails => &[(Action::Crash, Goal::Trains(2))],
            Self::Grows => &[(Action::Resize(3), Goal::Trains(3))],
            Self::Shrinks => &[(Action::Resize(1), Goal::Trains(1))],
            Self::Suspends => &[
                (Action::Suspend(true), Goal::Suspended),
                (Action::Suspend(false), Goal::Trains(2)),
            ],
            Self::Completes => &[(Action::Complete, Goal::Completed(2))],
            Self::Returns => &[(Action::DeleteAndCreate, Goal::Trains(2))],
            Self::Replaces => &[(Action::Lose, Goal::Trains(2))],
            Self::Gang => &[
                (Action::CreateGang, Goal::Trains(2)),
                (Action::Resize(3), Goal::Trains(3)),
                (Action::Suspend(true), Goal::Suspended),
                (Action::Suspend(false), Goal::Trains(3)),
                (Action::Complete, Goal::Completed(3)),
            ],
            Self::Expires => &[
                (Action::Complete, Goal::Completed(2)),
                (Action::Expire, Goal::Deleted),
            ],
            Self::LargeReplicas => &[
                (Action::CreateLargeReplicas, Goal::Trains(2)),
                (Action::Crash, Goal::Trains(2)),
                (Action::Lose, Goal::Trains(2)),
                (Action::Suspend(true), Goal::Suspended),
                (Action::Suspend(false), Goal::Trains(2)),
                (Action::Complete, Goal::Completed(2)),
            ],
        }
    }

    /// The steps before the fault. For an older cache there must be a past: three generations and
    /// an incident.
    pub(crate) const fn past(self, fault: Fault) -> &'static [Step] {
        match (self, fault) {
            (Self::Starts | Self::Gang | Self::LargeReplicas, _) => &[],
            (Self::Suspends, Fault::Older) => &[
                (Action::Create, Goal::Trains(2)),
                (Action::Crash, Goal::Trains(2)),
                (Action::Suspend(true), Goal::Suspended),
                (Action::Suspend(false), Goal::Trains(2)),
            ],
            _ => &[(Action::Create, Goal::Trains(2))],
        }
    }

    /// The number of pods that are created in total, before the fault and after.
    pub(crate) const fn num_pods(self) -> usize {
        match self {
            Self::Starts | Self::Fails | Self::Shrinks | Self::Completes | Self::Expires => 2,
            Self::Grows | Self::Replaces => 3,
            Self::Suspends | Self::Returns => 4,
            Self::Gang => 6,
            Self::LargeReplicas => 9,
        }
    }

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Starts => "starts",
            Self::Fails => "worker fails",
            Self::Grows => "grows",
            Self::Shrinks => "shrinks",
            Self::Suspends => "suspended, resumed",
            Self::Completes => "completes",
            Self::Returns => "deleted, created again",
            Self::Replaces => "pod deleted",
            Self::Gang => "gang: all of the above",
            Self::Expires => "completes, expires",
            Self::LargeReplicas => "replicas of two pods",
        }
    }
}

impl Goal {
    /// How the cluster differs from the goal.
    pub(crate) fn problems(
        self,
        cluster: &ClusterState,
        incidents: &RangeInclusive<u32>,
    ) -> Vec<String> {
        let status = cluster.job.status.clone().unwrap_or_default();
        let (is_there, num_pods) = match self {
            Self::Trains(nodes) => (status.is_true(ConditionType::Running), nodes),
            Self::Suspended => (status.is_true(ConditionType::Suspended), 0),
            Self::Completed(nodes) => (status.state() == "Completed", nodes),
            Self::Deleted => (cluster.job.metadata.deletion_timestamp.is_some(), 2),
        };
        let has_group =
            cluster.job.spec.scheduling.gang != Gang::None && matches!(self, Self::Trains(_));
        let num_pods = num_pods * cluster.pods_per_replica();
        let mut problems = cluster.pending_work(num_pods as usize, usize::from(has_group));
        if !is_there {
            problems.push(format!("{self:?} is not reached: {}", status.state()));
        }
        // A deletion raises metadata.generation, too, and the operator writes no status for it.
        let is_seen = status.observed_generation == cluster.job.metadata.generation;
        if !is_seen && self != Self::Deleted {
            problems.push("the operator has not observed the last edit".to_owned());
        }
        let counted = status.incidents.total;
        if !incidents.contains(&counted) {
            problems.push(format!("{counted} incidents, not {incidents:?}"));
        }
        if let Self::Trains(nodes) = self {
            problems.extend(cluster.group_problems(nodes));
        }
        problems
    }
}
