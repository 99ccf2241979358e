//! What a TrainingJob needs next: pure decisions over the observed objects.
//!
//! [`validate_with`] turns the raw object into a [`ValidatedJob`]. [`plan`] turns that and an
//! [`Observed`] into a [`Plan`]: the actions in order, the whole status, the time of the next
//! requeue, and the reason. [`plan_rejected`] manages a job that is not accepted and creates no new
//! pods for it. Nothing here does I/O or reads a clock. `decide` calls the policies in order, over
//! a `draft`. The modules group them by subject: a `generation` and its members; the pods of the
//! `workers`, several of which may form one of the `replicas`; `failures`, budgets and avoided
//! nodes; the `lifecycle` of a job with suspension, deadlines and end; the `status` that the user
//! reads.

mod built;
mod decide;
mod draft;
mod failures;
pub mod generation;
pub mod gpu;
pub mod group;
mod invalid;
pub mod kubelet;
pub mod launch;
mod lifecycle;
pub mod observed;
pub mod plan;
pub mod program;
pub mod rejection;
mod replicas;
pub mod status;
pub mod tenancy;
pub mod validate;
mod verdict;
pub mod worker_state;
mod workers;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use decide::{plan, plan_rejected};
pub use group::{GroupWrites, ObservedGroup, OtherGroup, PodGroup};
pub use observed::{
    Container, InitContainer, Observed, Pod, PodPhase, Presence, Processes, ProgressSample, Repair,
    Termination, Waiting,
};
pub use plan::{Action, DeleteReason, Event, EventType, MAX_ACTIONS, Plan, PlanReason};
pub use program::{Program, Script};
pub use rejection::{Rejection, RejectionReason};
pub use status::progress::is_in_new_trouble;
pub use status::write_blocked::{WriteBlocked, plan_refused};
pub use validate::{InvalidSpec, JobIdentity, ValidatedJob, Validation, validate, validate_with};
