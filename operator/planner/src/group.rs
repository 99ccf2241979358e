//! The PodGroup of a gang scheduler: what it says, and what there is of it.

use roundhouse_api::Gang;

use crate::observed::Repair;

/// What a gang scheduler is told of the workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodGroup {
    /// Workers that are given nodes at once, or not at all.
    pub min_member: u32,
    /// Queue; `None`: the gang scheduler's own choice.
    pub queue: Option<String>,
    /// PriorityClass; `None`: the gang scheduler's own choice.
    pub priority_class: Option<String>,
}

impl PodGroup {
    /// Whether a group that exists says this. What is not asked for is the gang scheduler's to fill in.
    #[must_use]
    pub fn is_said_by(&self, existing: &Self) -> bool {
        let Self {
            min_member,
            queue,
            priority_class,
        } = self;
        let agrees = |wanted: &Option<String>, existing: &Option<String>| {
            wanted.is_none() || wanted == existing
        };
        *min_member == existing.min_member
            && agrees(queue, &existing.queue)
            && agrees(priority_class, &existing.priority_class)
    }
}

/// What there is of the PodGroup that a job needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ObservedGroup {
    /// There is none.
    #[default]
    Missing,
    /// There can be none, in these words: its kind is not served, or may not be read.
    Impossible(String),
    /// It is controlled by this job.
    Ours {
        /// Its UID.
        uid: String,
        /// What it says.
        group: PodGroup,
        /// Whether it has a deletion timestamp.
        deleting: bool,
    },
    /// Somebody else's: it is never touched.
    Foreign,
    /// The same, with a deletion timestamp: such as that of an earlier job of this name, whose pods have not ended.
    ForeignLeaving,
}

/// What the operator remembers of its own writes of the PodGroup. Another controller or a webhook may undo each of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupWrites {
    /// What the last repair has written. `None`: the group was not repaired lately.
    pub repaired_to: Option<PodGroup>,
    /// When a group that no longer says this is repaired.
    pub changed: Repair,
    /// When a group that is missing is created.
    pub deleted: Repair,
}

impl GroupWrites {
    /// When a group that says something else is to say this. What the job itself asks for, and was not written yet, is due.
    #[must_use]
    pub fn due(&self, wanted: &PodGroup) -> Repair {
        match &self.repaired_to {
            Some(written) if written == wanted => self.changed,
            Some(_) | None => Repair::Now,
        }
    }
}

/// What an administrator has to install for a gang scheduler.
#[must_use]
pub const fn to_install(gang: Gang) -> &'static str {
    match gang {
        Gang::None => "nothing",
        Gang::Coscheduling => {
            "the scheduler of kubernetes-sigs/scheduler-plugins with its plugin Coscheduling and its CustomResourceDefinitions"
        }
        Gang::Volcano => "Volcano with its CustomResourceDefinitions",
        Gang::Kubernetes => {
            "Kubernetes 1.37 or newer with the feature gate GenericWorkload and the API scheduling.k8s.io/v1beta1"
        }
    }
}
