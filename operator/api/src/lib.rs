//! The TrainingJob custom resource, `roundhouse.dev/v1alpha1`.
//!
//! The types, and readers that accept every stored object ([`shallow`], [`lenient`]). A field's
//! doc comment says what it means, and `kubectl explain` shows it. The schema and its CEL rules say
//! what the API server refuses. Decisions are in the planner.
//!
//! Two conventions of Kubernetes do not hold below `spec.trainer` and in progress. Learning rates
//! and losses are numbers, as in the configuration of every framework. Names of models, formats,
//! optimizers and schedules are in lower case, as is usual for them (`resnet50`, `adamw`).

#![warn(missing_docs)]

pub mod crd;
pub mod event;
pub mod failures;
mod few;
pub mod fields;
mod finalizers;
pub mod lenient;
pub mod manifest;
pub mod metadata;
pub mod quantity;
pub mod reason;
mod resource_by;
pub mod schema;
pub mod shallow;
pub mod spec;
pub mod status;

pub use crd::crd;
pub use event::EventReason;
pub use few::{FewEntries, FewItems};
pub use finalizers::finalizers_of_others;
pub use reason::ConditionReason;
pub use shallow::shallow;
pub use spec::{
    Best, Checkpoint, CheckpointClaim, CheckpointHostPath, CheckpointVolume, CleanPodPolicy,
    CopyMedium, ExitCodeOperator, FailureAction, FailurePolicy, FailureRule, Gang, LocalCopies,
    NetworkPolicyMode, OnExitCodes, Scheduling, SuccessPolicy, TopologyMode, TrainingJob,
    TrainingJobSpec, Workers,
};
pub use status::{
    AvoidedNode, BlockReason, BlockedWrite, CheckpointStatus, ConditionType, Incidents,
    JobProgress, LastFailure, MembershipStatus, Replacements, TrainingJobStatus, WorkersStatus,
};
