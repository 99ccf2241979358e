//! What happens to a job while its operator is in trouble.

use std::ops::RangeInclusive;

use roundhouse_api::{ConditionType, Gang};

use super::fault::Fault;
use super::rest::World;

/// A story of a job of two workers. But for the first it trains when the trouble begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scenario {
    Starts,
    Fails,
    Grows,
    Shrinks,
    Suspends,
    Completes,
    /// It is deleted and applied anew.
    Returns,
    /// A worker's pod is deleted.
    Replaces,
    /// It has a PodGroup, and another minimum later.
    Gang,
    /// It is deleted some time after its end.
    Expires,
}

/// What a user or a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Create,
    CreateGang,
    /// The first worker crashes, and its kubelet starts it again.
    Crash,
    /// The pod of the second worker is deleted.
    Lose,
    Resize(u32),
    Suspend(bool),
    /// The workers end.
    Complete,
    DeleteAndCreate,
    /// It may be deleted as soon as it has ended.
    Expire,
}

/// Where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    Trains(u32),
    Suspended,
    Completed(u32),
    Deleted,
}

/// What is done, and what comes of it.
pub(crate) type Step = (Deed, Goal);

impl Scenario {
    pub(crate) const ALL: [Self; 10] = [
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
    ];

    /// All, or the one that the variable `ROUNDHOUSE_API_SCENARIO` names.
    pub(crate) fn wanted() -> impl Iterator<Item = Self> {
        let only = std::env::var("ROUNDHOUSE_API_SCENARIO").ok();
        let all = Self::ALL.into_iter();
        all.filter(move |it| only.as_ref().is_none_or(|only| *only == format!("{it:?}")))
    }

    pub(crate) const fn steps(self) -> &'static [Step] {
        match self {
            Self::Starts => &[(Deed::Create, Goal::Trains(2))],
            Self::Fails => &[(Deed::Crash, Goal::Trains(2))],
            Self::Grows => &[(Deed::Resize(3), Goal::Trains(3))],
            Self::Shrinks => &[(Deed::Resize(1), Goal::Trains(1))],
            Self::Suspends => &[
                (Deed::Suspend(true), Goal::Suspended),
                (Deed::Suspend(false), Goal::Trains(2)),
            ],
            Self::Completes => &[(Deed::Complete, Goal::Completed(2))],
            Self::Returns => &[(Deed::DeleteAndCreate, Goal::Trains(2))],
            Self::Replaces => &[(Deed::Lose, Goal::Trains(2))],
            Self::Gang => &[
                (Deed::CreateGang, Goal::Trains(2)),
                (Deed::Resize(3), Goal::Trains(3)),
                (Deed::Suspend(true), Goal::Suspended),
                (Deed::Suspend(false), Goal::Trains(3)),
                (Deed::Complete, Goal::Completed(3)),
            ],
            Self::Expires => &[
                (Deed::Complete, Goal::Completed(2)),
                (Deed::Expire, Goal::Deleted),
            ],
        }
    }

    /// What happens before the trouble. A cache that is older must have something to be older than: three generations, and an
    /// incident.
    pub(crate) const fn past(self, fault: Fault) -> &'static [Step] {
        match (self, fault) {
            (Self::Starts | Self::Gang, _) => &[],
            (Self::Suspends, Fault::Older) => &[
                (Deed::Create, Goal::Trains(2)),
                (Deed::Crash, Goal::Trains(2)),
                (Deed::Suspend(true), Goal::Suspended),
                (Deed::Suspend(false), Goal::Trains(2)),
            ],
            _ => &[(Deed::Create, Goal::Trains(2))],
        }
    }

    /// Pods that are made in all, also before the trouble.
    pub(crate) const fn num_pods(self) -> usize {
        match self {
            Self::Starts | Self::Fails | Self::Shrinks | Self::Completes | Self::Expires => 2,
            Self::Grows | Self::Replaces => 3,
            Self::Suspends | Self::Returns => 4,
            Self::Gang => 6,
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
            Self::Returns => "deleted, applied anew",
            Self::Replaces => "pod deleted",
            Self::Gang => "gang: all of these",
            Self::Expires => "completes, expires",
        }
    }
}

impl Goal {
    /// What is missing, or too much.
    pub(crate) fn complaints(self, world: &World, incidents: &RangeInclusive<u32>) -> Vec<String> {
        let status = world.job.status.clone().unwrap_or_default();
        let (is_there, num_pods) = match self {
            Self::Trains(nodes) => (status.is_true(ConditionType::Running), nodes),
            Self::Suspended => (status.is_true(ConditionType::Suspended), 0),
            Self::Completed(nodes) => (status.state() == "Completed", nodes),
            Self::Deleted => (world.job.metadata.deletion_timestamp.is_some(), 2),
        };
        let has_group =
            world.job.spec.scheduling.gang != Gang::None && matches!(self, Self::Trains(_));
        let mut wrong = world.unrest(num_pods as usize, usize::from(has_group));
        if !is_there {
            wrong.push(format!("{self:?} is not reached: {}", status.state()));
        }
        // A deletion is an edit, too, of which no status is written.
        let is_seen = status.observed_generation == world.job.metadata.generation;
        if !is_seen && self != Self::Deleted {
            wrong.push("its last edit is not seen".to_owned());
        }
        let counted = status.incidents.total;
        if !incidents.contains(&counted) {
            wrong.push(format!("{counted} incidents, not {incidents:?}"));
        }
        if let Self::Trains(nodes) = self {
            wrong.extend(world.disunion(nodes));
        }
        wrong
    }
}
