//! Labels and annotations on the objects the operator owns.

/// API group of the custom resource, and prefix of Roundhouse's labels and annotations.
pub const GROUP: &str = "roundhouse.dev";
/// Field manager of every object that the operator creates, and value of [`MANAGED_BY`].
pub const FIELD_MANAGER: &str = "roundhouse-operator";
/// Default value of `spec.managedBy`.
pub const DEFAULT_MANAGER: &str = "roundhouse.dev/operator";

/// Label: name of the application (`roundhouse`).
pub const APP_NAME: &str = "app.kubernetes.io/name";
/// Label: name of the job.
pub const APP_INSTANCE: &str = "app.kubernetes.io/instance";
/// Label: role of the object (`worker`).
pub const APP_COMPONENT: &str = "app.kubernetes.io/component";
/// Label: name of the product (`roundhouse`).
pub const APP_PART_OF: &str = "app.kubernetes.io/part-of";
/// Label: [`FIELD_MANAGER`]. The operator's pod watch selects on it.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Label: name of the job that owns the object.
pub const JOB_NAME: &str = "roundhouse.dev/job-name";
/// Label: UID of the job that owns the object; a later job of the same name has another UID.
pub const JOB_UID: &str = "roundhouse.dev/job-uid";
/// Label: index of the worker in its job, from 0.
pub const WORKER_INDEX: &str = "roundhouse.dev/worker-index";
/// Label: number of earlier pods of this worker.
pub const ATTEMPT: &str = "roundhouse.dev/attempt";
/// Label: `true` on a deleted pod that stays on a node which does not answer. It no longer attracts
/// pods of its job to its topology domain.
pub const LEFT_DOMAIN: &str = "roundhouse.dev/left-domain";
/// Label: index of the replica of which the pod is, or for which it was created, in jobs with
/// `workers.podsPerReplica` and `scheduling.topologyKey`.
pub const REPLICA_INDEX: &str = "roundhouse.dev/replica-index";
/// Label: number of the gang with which the pod was created, in jobs with
/// `workers.podsPerReplica` and `scheduling.gang`. Pods of the first gang have none.
pub const GANG: &str = "roundhouse.dev/gang";

/// Annotation: the worker's [`crate::Membership`] as JSON.
pub const MEMBERSHIP: &str = "roundhouse.dev/membership";
/// Annotation: the pod's [`crate::ReplicaPlace`] as JSON, in jobs with `workers.podsPerReplica`.
pub const REPLICA: &str = "roundhouse.dev/replica";
/// Annotation: the pod's [`crate::CopyPair`] as JSON, in jobs of workers of one pod with
/// `checkpoint.local.peerCopies`.
pub const COPY_PAIR: &str = "roundhouse.dev/copy-pair";
/// Annotation: earlier generations that may still train, see [`crate::earlier`].
pub const EARLIER: &str = "roundhouse.dev/earlier-generations";
/// Annotation: the job's [`crate::TrainerConfig`] as JSON.
pub const TRAINER_CONFIG: &str = "roundhouse.dev/trainer-config";
/// Annotation: the worker's [`crate::BuiltFrom`] as JSON.
pub const BUILT_FROM: &str = "roundhouse.dev/built-from";

/// Value of [`APP_NAME`] and [`APP_PART_OF`].
pub const ROUNDHOUSE: &str = "roundhouse";
/// Value of [`APP_COMPONENT`] on workers.
pub const WORKER: &str = "worker";
/// Name of the container that runs the agent.
pub const TRAINER_CONTAINER: &str = "trainer";
