//! The PodGroups of a gang scheduler: the wanted ones and the observed ones.

use roundhouse_api::Gang;

use crate::observed::Repair;

/// The content of a PodGroup: what the gang scheduler needs to know about the workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodGroup {
    /// Number of workers that get nodes together or not at all.
    pub min_member: u32,
    /// Name of the queue; `None` for the gang scheduler's default.
    pub queue: Option<String>,
    /// Name of the PriorityClass; `None` for the gang scheduler's default.
    pub priority_class: Option<String>,
}

impl PodGroup {
    /// Whether the existing group has this content. The gang scheduler may fill in fields that
    /// the job leaves empty.
    #[must_use]
    pub fn is_satisfied_by(&self, existing: &Self) -> bool {
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

/// The observed state of a PodGroup that a job needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ObservedGroup {
    #[default]
    Missing,
    /// A PodGroup cannot exist, with the reason: its kind is not served, or the operator
    /// may not read it.
    Impossible(String),
    /// The job is its controller.
    Ours {
        uid: String,
        group: PodGroup,
        /// Whether it has a deletion timestamp.
        deleting: bool,
    },
    /// Another object controls it, so the operator never changes it.
    Foreign,
    /// Another object controls it and it has a deletion timestamp. It may belong to an earlier job
    /// of this name whose pods have not ended.
    ForeignLeaving,
}

/// The PodGroup of a gang after the first one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherGroup {
    pub observed: ObservedGroup,
    /// The operator's memory of its writes of it.
    pub writes: GroupWrites,
}

/// The operator's memory of its own writes of a PodGroup. Another controller or a webhook may
/// undo each of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupWrites {
    /// Content that the last repair wrote; `None` if the group was not repaired recently.
    pub repaired_to: Option<PodGroup>,
    /// When to repair a group whose content has changed.
    pub changed: Repair,
    /// When to create a group that is missing.
    pub deleted: Repair,
}

impl GroupWrites {
    /// When to write this content over another one. Content that the job itself asks for and that
    /// was not written yet is due now.
    #[must_use]
    pub fn due(&self, wanted: &PodGroup) -> Repair {
        match &self.repaired_to {
            Some(written) if written == wanted => self.changed,
            Some(_) | None => Repair::Now,
        }
    }
}

/// What an administrator must install for a gang scheduler.
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
