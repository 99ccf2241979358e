//! PodGroups as the gang schedulers define them: the fields that Roundhouse writes, and no others.

use kube::core::ObjectMeta;
use roundhouse_api::Gang;
use roundhouse_planner::PodGroup;

use crate::metrics::labels::Watched;
use crate::runtime::api::object::NamespacedObject;

/// A kind of PodGroup.
pub(crate) trait GroupKind: NamespacedObject {
    /// Whose it is.
    const GANG: Gang;
    /// Its watch.
    const WATCHED: Watched;

    /// An object that says this.
    fn build(metadata: ObjectMeta, group: &PodGroup) -> Self;

    /// What an object says.
    fn said(&self) -> PodGroup;
}

/// Of kubernetes-sigs/scheduler-plugins.
pub(crate) mod coscheduling {
    use kube::CustomResource;
    use kube::core::ObjectMeta;
    use roundhouse_api::Gang;
    use serde::{Deserialize, Serialize};

    use super::{GroupKind, Watched};

    /// `spec` of a PodGroup.
    #[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize)]
    #[kube(
        group = "scheduling.x-k8s.io",
        version = "v1alpha1",
        kind = "PodGroup",
        namespaced,
        schema = "disabled"
    )]
    #[serde(rename_all = "camelCase", default)]
    pub(crate) struct PodGroupSpec {
        /// Pods that are placed at once.
        pub(crate) min_member: i64,
    }

    impl GroupKind for PodGroup {
        const GANG: Gang = Gang::Coscheduling;
        const WATCHED: Watched = Watched::CoschedulingGroups;

        fn build(metadata: ObjectMeta, group: &roundhouse_planner::PodGroup) -> Self {
            let spec = PodGroupSpec {
                min_member: group.min_member.into(),
            };
            Self { metadata, spec }
        }

        fn said(&self) -> roundhouse_planner::PodGroup {
            roundhouse_planner::PodGroup {
                min_member: u32::try_from(self.spec.min_member).unwrap_or(0),
                queue: None,
                priority_class: None,
            }
        }
    }
}

/// Of Volcano.
pub(crate) mod volcano {
    use kube::CustomResource;
    use kube::core::ObjectMeta;
    use roundhouse_api::Gang;
    use serde::{Deserialize, Serialize};

    use super::{GroupKind, Watched};

    /// `spec` of a PodGroup.
    #[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize)]
    #[kube(
        group = "scheduling.volcano.sh",
        version = "v1beta1",
        kind = "PodGroup",
        namespaced,
        schema = "disabled"
    )]
    #[serde(rename_all = "camelCase", default)]
    pub(crate) struct PodGroupSpec {
        /// Pods that are placed at once.
        pub(crate) min_member: i64,
        /// Queue that pays for them.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub(crate) queue: Option<String>,
        /// Their PriorityClass.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub(crate) priority_class_name: Option<String>,
    }

    impl GroupKind for PodGroup {
        const GANG: Gang = Gang::Volcano;
        const WATCHED: Watched = Watched::VolcanoGroups;

        fn build(metadata: ObjectMeta, group: &roundhouse_planner::PodGroup) -> Self {
            let spec = PodGroupSpec {
                min_member: group.min_member.into(),
                queue: group.queue.clone(),
                priority_class_name: group.priority_class.clone(),
            };
            Self { metadata, spec }
        }

        fn said(&self) -> roundhouse_planner::PodGroup {
            roundhouse_planner::PodGroup {
                min_member: u32::try_from(self.spec.min_member).unwrap_or(0),
                queue: self.spec.queue.clone(),
                priority_class: self.spec.priority_class_name.clone(),
            }
        }
    }
}

/// Of Kubernetes itself, since 1.37.
pub(crate) mod kubernetes {
    use kube::CustomResource;
    use kube::core::ObjectMeta;
    use roundhouse_api::Gang;
    use serde::{Deserialize, Serialize};

    use super::{GroupKind, Watched};

    /// `spec` of a PodGroup.
    #[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize)]
    #[kube(
        group = "scheduling.k8s.io",
        version = "v1beta1",
        kind = "PodGroup",
        namespaced,
        schema = "disabled"
    )]
    #[serde(rename_all = "camelCase", default)]
    pub(crate) struct PodGroupSpec {
        pub(crate) scheduling_policy: SchedulingPolicy,
        /// PriorityClass of the group and of its pods. Immutable.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub(crate) priority_class_name: Option<String>,
    }

    /// How the pods are placed.
    #[derive(Clone, Debug, Default, Serialize, Deserialize)]
    #[serde(default)]
    pub(crate) struct SchedulingPolicy {
        pub(crate) gang: GangPolicy,
    }

    /// All or none.
    #[derive(Clone, Debug, Default, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    pub(crate) struct GangPolicy {
        /// Pods that are placed at once.
        pub(crate) min_count: i64,
    }

    impl GroupKind for PodGroup {
        const GANG: Gang = Gang::Kubernetes;
        const WATCHED: Watched = Watched::KubernetesGroups;

        fn build(metadata: ObjectMeta, group: &roundhouse_planner::PodGroup) -> Self {
            let gang = GangPolicy {
                min_count: group.min_member.into(),
            };
            let spec = PodGroupSpec {
                scheduling_policy: SchedulingPolicy { gang },
                priority_class_name: group.priority_class.clone(),
            };
            Self { metadata, spec }
        }

        fn said(&self) -> roundhouse_planner::PodGroup {
            let min_count = self.spec.scheduling_policy.gang.min_count;
            roundhouse_planner::PodGroup {
                min_member: u32::try_from(min_count).unwrap_or(0),
                queue: None,
                priority_class: self.spec.priority_class_name.clone(),
            }
        }
    }
}
