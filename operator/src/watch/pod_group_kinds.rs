//! PodGroups as the gang schedulers define them: the fields that Roundhouse writes, and no others.

use kube::core::ObjectMeta;
use roundhouse_api::Gang;
use roundhouse_planner::PodGroup;

use crate::metrics::labels::Watched;
use crate::runtime::api::object::NamespacedObject;

/// A kind of PodGroup.
pub(crate) trait GroupKind: NamespacedObject {
    /// The gang scheduler that defines the kind.
    const GANG: Gang;
    /// The label of its watch in the metrics.
    const WATCHED: Watched;

    /// Builds the object of a PodGroup.
    fn build(metadata: ObjectMeta, group: &PodGroup) -> Self;

    /// Reads the PodGroup from an object.
    fn said(&self) -> PodGroup;
}

/// A kind whose `spec` is read and written by the module of its gang scheduler.
macro_rules! group_kind {
    ($scheduler:ident, $gang:expr, $watched:expr) => {
        impl GroupKind for $scheduler::PodGroup {
            const GANG: Gang = $gang;
            const WATCHED: Watched = $watched;

            fn build(metadata: ObjectMeta, group: &PodGroup) -> Self {
                let spec = $scheduler::write(group);
                Self { metadata, spec }
            }

            fn said(&self) -> PodGroup {
                $scheduler::read(&self.spec)
            }
        }
    };
}

group_kind!(
    coscheduling,
    Gang::Coscheduling,
    Watched::CoschedulingGroups
);
group_kind!(volcano, Gang::Volcano, Watched::VolcanoGroups);
group_kind!(kubernetes, Gang::Kubernetes, Watched::KubernetesGroups);

/// A number of pods as an object has it; another client may have written anything.
fn number(pods: i64) -> u32 {
    u32::try_from(pods).unwrap_or(0)
}

pub(crate) mod coscheduling {
    use kube::CustomResource;
    use serde::{Deserialize, Serialize};

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
        /// Pods that are placed together or not at all.
        pub(crate) min_member: i64,
    }

    pub(super) fn write(group: &super::PodGroup) -> PodGroupSpec {
        PodGroupSpec {
            min_member: group.min_member.into(),
        }
    }

    pub(super) fn read(spec: &PodGroupSpec) -> super::PodGroup {
        super::PodGroup {
            min_member: super::number(spec.min_member),
            queue: None,
            priority_class: None,
        }
    }
}

pub(crate) mod volcano {
    use kube::CustomResource;
    use serde::{Deserialize, Serialize};

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
        /// Pods that are placed together or not at all.
        pub(crate) min_member: i64,
        /// The queue that pays for the pods.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub(crate) queue: Option<String>,
        /// The PriorityClass of the pods.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub(crate) priority_class_name: Option<String>,
    }

    pub(super) fn write(group: &super::PodGroup) -> PodGroupSpec {
        PodGroupSpec {
            min_member: group.min_member.into(),
            queue: group.queue.clone(),
            priority_class_name: group.priority_class.clone(),
        }
    }

    pub(super) fn read(spec: &PodGroupSpec) -> super::PodGroup {
        super::PodGroup {
            min_member: super::number(spec.min_member),
            queue: spec.queue.clone(),
            priority_class: spec.priority_class_name.clone(),
        }
    }
}

/// PodGroups of Kubernetes itself, since 1.37.
pub(crate) mod kubernetes {
    use kube::CustomResource;
    use serde::{Deserialize, Serialize};

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
        /// The PriorityClass of the group and of its pods. Immutable.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub(crate) priority_class_name: Option<String>,
    }

    /// How the scheduler places the pods.
    #[derive(Clone, Debug, Default, Serialize, Deserialize)]
    #[serde(default)]
    pub(crate) struct SchedulingPolicy {
        pub(crate) gang: GangPolicy,
    }

    /// Places all pods or none of them.
    #[derive(Clone, Debug, Default, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    pub(crate) struct GangPolicy {
        /// Pods that are placed together or not at all.
        pub(crate) min_count: i64,
    }

    pub(super) fn write(group: &super::PodGroup) -> PodGroupSpec {
        let gang = GangPolicy {
            min_count: group.min_member.into(),
        };
        PodGroupSpec {
            scheduling_policy: SchedulingPolicy { gang },
            priority_class_name: group.priority_class.clone(),
        }
    }

    pub(super) fn read(spec: &PodGroupSpec) -> super::PodGroup {
        super::PodGroup {
            min_member: super::number(spec.scheduling_policy.gang.min_count),
            queue: None,
            priority_class: spec.priority_class_name.clone(),
        }
    }
}
