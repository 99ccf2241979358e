//! The closed sets that labels come from. A value outside its set becomes `Other`, so no user can
//! create time series.

use roundhouse_api::ConditionReason;
use roundhouse_contract::ExitCode;
use roundhouse_contract::termination::Reason;

/// The label of an unknown state or reason.
pub const OTHER: &str = "Other";

/// Reasons of incidents that the planner, the container runtime or the kubelet gives, and the
/// trainer does not.
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

roundhouse_contract::closed_enum! {
    /// A kind of object that the operator watches.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Watched {
        TrainingJobs,
        Pods,
        Services,
        NetworkPolicies,
        /// `PodGroups` of Coscheduling. Watched if a job has that gang scheduler.
        CoschedulingGroups,
        /// `PodGroups` of Volcano. Watched if a job has that gang scheduler.
        VolcanoGroups,
        /// `PodGroups` of Kubernetes itself. Watched if a job has that gang scheduler.
        KubernetesGroups,
        /// Nodes. The watch shows which of them are cordoned or about to be removed by an
        /// autoscaler.
        Nodes,
        /// Namespaces. Watched if the policy selects by their labels.
        Namespaces,
    }
}

impl Watched {
    /// The kind of this resource in this API group, if it is watched.
    #[must_use]
    pub fn of(resource: Resource, group: &str) -> Option<Self> {
        let (name, full) = (resource.as_str(), format!("{}.{group}", resource.as_str()));
        let mut all = Self::ALL.into_iter();
        all.find(|kind| kind.as_str() == name || kind.as_str() == full)
    }

    /// Whether plans depend on this kind. Cordoned nodes only decide which worker leaves first when
    /// a job is scaled down, and a write to a PodGroup names the UID that was observed, so a stale
    /// cache does no harm.
    #[must_use]
    pub const fn decides(self) -> bool {
        !matches!(
            self,
            Self::Nodes | Self::CoschedulingGroups | Self::VolcanoGroups | Self::KubernetesGroups
        )
    }

    /// Whether the operator asks the API server for the versions of this kind to confirm what it
    /// observed ([`crate::watch::staleness::confirm`]).
    #[must_use]
    pub const fn is_confirmed(self) -> bool {
        matches!(self, Self::TrainingJobs | Self::Pods)
    }

    /// The API server's name of the resource, with its API group if two resources have the same
    /// name.
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

/// A verb of the Kubernetes API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    Other,
}

impl Verb {
    /// The verb as Kubernetes writes it.
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

/// The resource that a call is about, with its subresource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource(&'static str);

impl Resource {
    /// The resources that the operator has the right to call.
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

    /// The API server's name of the resource.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}
