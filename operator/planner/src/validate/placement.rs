//! Adds `spec.scheduling` to the pod template. Values of the template take precedence: an
//! administrator may run a gang scheduler under another name.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use roundhouse_api::{Gang, Scheduling};
use roundhouse_contract::gang;

/// Sets the scheduler and the priority class where the template has none.
pub(super) fn complete(template: &mut PodTemplateSpec, scheduling: &Scheduling) {
    let scheduler = match scheduling.gang {
        // The default scheduler of Kubernetes handles the gang.
        Gang::None | Gang::Kubernetes => None,
        Gang::Coscheduling => Some(gang::COSCHEDULING_SCHEDULER),
        Gang::Volcano => Some(gang::VOLCANO_SCHEDULER),
    };
    let class = scheduling.priority_class_name.as_ref();
    if scheduler.is_none() && class.is_none() {
        return;
    }
    let pod = template.spec.get_or_insert_default();
    pod.scheduler_name = pod
        .scheduler_name
        .take()
        .or_else(|| scheduler.map(str::to_owned));
    pod.priority_class_name = pod.priority_class_name.take().or_else(|| class.cloned());
}
