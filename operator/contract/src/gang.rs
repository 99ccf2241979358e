//! Labels and annotations by which gang schedulers recognize the pods of a group, and the names of
//! these schedulers.

/// Label of a pod: name of its PodGroup, for the plugin Coscheduling of scheduler-plugins, as
/// in its file `apis/scheduling/v1alpha1/types.go`.
pub const COSCHEDULING_GROUP: &str = "scheduling.x-k8s.io/pod-group";
/// Annotation of a pod: name of its PodGroup, for Volcano (`pkg/apis/scheduling/v1beta1/labels.go`
/// of volcano-sh/apis).
pub const VOLCANO_GROUP: &str = "scheduling.k8s.io/group-name";
/// The scheduler that the chart of scheduler-plugins installs, unless its values set another name.
pub const COSCHEDULING_SCHEDULER: &str = "scheduler-plugins-scheduler";
/// The scheduler that Volcano installs, unless its flags set another name.
pub const VOLCANO_SCHEDULER: &str = "volcano";
/// Label of a pod: name of its group, for Kueue. As
/// <https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/> says, a group has a fixed number of pods.
pub const KUEUE_GROUP: &str = "kueue.x-k8s.io/pod-group-name";
/// Annotation of a pod: which pods of a group are alike, for Kueue. Without it Kueue compares their
/// specs. It would take a worker that avoids a node for another kind, for which the group has no
/// place (`getRoleHash` in `pkg/controller/jobs/pod`).
pub const KUEUE_ROLE: &str = "kueue.x-k8s.io/role-hash";
/// Annotation of a pod: "false" means for Kueue that its group gets no new pods. When none
/// of its pods runs, the group is finished, whether they succeeded or not, and its quota is
/// free (`Finished` in `pkg/controller/jobs/pod/pod_controller.go`).
pub const KUEUE_RETRIABLE: &str = "kueue.x-k8s.io/retriable-in-group";
