//! The closed sets that labels come from. What is not in its set is `Other`, so that nobody outside can make series.

use roundhouse_api::ConditionReason;
use roundhouse_contract::ExitCode;
use roundhouse_contract::termination::Reason;

/// What is neither a known state nor a known reason.
pub const OTHER: &str = "Other";

/// Reasons of incidents that the trainer does not give: the planner's, the container runtime's, the kubelet's.
const INCIDENTS: [&str; 16] = [
    "ContainerCannotRun",
    "Error",
    "Evicted",
    "Failed",
    "NodeAffinity",
    "NodeLost",
    "NodeShutdown",
    "OOMKilled",
    "PeersLost",
    "Preempted",
    "Preempting",
    "Shutdown",
    "StartError",
    "Terminated",
    "UnexpectedAdmissionError",
    "Unknown",
];

/// The state of a job as a label: `status.state`, which the column STATE of `kubectl get` shows.
#[must_use]
pub fn state(reason: &str) -> &'static str {
    ConditionReason::parse(reason).map_or(OTHER, ConditionReason::as_str)
}

/// The reason of an incident as a label.
#[must_use]
pub fn incident(reason: &str) -> &'static str {
    known(reason, &INCIDENTS)
}

fn known(word: &str, set: &[&'static str]) -> &'static str {
    let ours = ExitCode::ALL.into_iter().map(Reason::of);
    let ours = ours.chain([Reason::Killed, Reason::Crashed]);
    let mut all = set.iter().copied().chain(ours.map(Reason::as_str));
    all.find(|known| *known == word).unwrap_or(OTHER)
}

/// A kind of object that the operator watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watched {
    /// Training jobs.
    TrainingJobs,
    /// Their pods.
    Pods,
    /// Their Services.
    Services,
    /// Their `NetworkPolicies`.
    NetworkPolicies,
    /// Their `PodGroups` of Coscheduling, if a job has that gang scheduler.
    CoschedulingGroups,
    /// Their `PodGroups` of Volcano, if a job has that gang scheduler.
    VolcanoGroups,
    /// Their `PodGroups` of Kubernetes itself, if a job has that gang scheduler.
    KubernetesGroups,
    /// Nodes, to know which are cordoned or about to be removed by an autoscaler.
    Nodes,
    /// Namespaces, if the policy chooses by their labels.
    Namespaces,
}

impl Watched {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::TrainingJobs,
        Self::Pods,
        Self::Services,
        Self::NetworkPolicies,
        Self::CoschedulingGroups,
        Self::VolcanoGroups,
        Self::KubernetesGroups,
        Self::Nodes,
        Self::Namespaces,
    ];

    /// The kind of this resource in this API group, if it is watched.
    #[must_use]
    pub fn of(resource: Resource, group: &str) -> Option<Self> {
        let (name, full) = (resource.as_str(), format!("{}.{group}", resource.as_str()));
        let mut all = Self::ALL.into_iter();
        all.find(|kind| kind.as_str() == name || kind.as_str() == full)
    }

    /// Whether plans depend on it. Cordoned nodes only say which worker goes first when a job is scaled down, and a write to
    /// a PodGroup fails if it is another one by now.
    #[must_use]
    pub const fn decides(self) -> bool {
        !matches!(
            self,
            Self::Nodes | Self::CoschedulingGroups | Self::VolcanoGroups | Self::KubernetesGroups
        )
    }

    /// Whether the API server is asked for their versions, to confirm what was observed ([`crate::watch::staleness::confirm`]).
    #[must_use]
    pub const fn is_confirmed(self) -> bool {
        matches!(self, Self::TrainingJobs | Self::Pods)
    }

    /// As the API server names the resource, with its API group if two have the same name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TrainingJobs => "trainingjobs",
            Self::Pods => "pods",
            Self::Services => "services",
            Self::NetworkPolicies => "networkpolicies",
            Self::CoschedulingGroups => "podgroups.scheduling.x-k8s.io",
            Self::VolcanoGroups => "podgroups.scheduling.volcano.sh",
            Self::KubernetesGroups => "podgroups.scheduling.k8s.io",
            Self::Nodes => "nodes",
            Self::Namespaces => "namespaces",
        }
    }
}

/// What is done to an object, as Kubernetes names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Reads one object.
    Get,
    /// Reads all objects of a kind.
    List,
    /// Follows the changes of a kind.
    Watch,
    /// Makes an object.
    Create,
    /// Replaces an object.
    Update,
    /// Changes parts of an object.
    Patch,
    /// Deletes an object.
    Delete,
    /// Anything else.
    Other,
}

impl Verb {
    /// As Kubernetes writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::Other => "other",
        }
    }
}

/// Which resource of the API a call is about, with its subresource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource(&'static str);

impl Resource {
    /// What the operator has the right to call.
    const KNOWN: [&'static str; 10] = [
        "trainingjobs",
        "trainingjobs/status",
        "pods",
        "services",
        "networkpolicies",
        "podgroups",
        "nodes",
        "namespaces",
        "events",
        "leases",
    ];

    /// The resource of this name, such as `trainingjobs/status`.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let known = Self::KNOWN.into_iter().find(|known| *known == name);
        Self(known.unwrap_or("other"))
    }

    /// As the API server names it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}
