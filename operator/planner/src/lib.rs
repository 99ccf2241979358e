//! What a TrainingJob needs next: pure decisions over what was observed.
//!
//! `validate` turns the raw object into a [`ValidatedJob`]; [`plan`] turns that and an
//! [`Observed`] into a [`Plan`]: actions in order, the whole status, the next wake-up and why.
//! Nothing here does I/O or reads a clock.

pub mod observed;
pub mod plan;
pub mod validate;

pub use observed::{
    Container, Observed, Pod, PodPhase, Presence, ProgressSample, Termination, Waiting,
};
pub use plan::{Action, DeleteReason, Event, EventType, Plan, PlanReason};
pub use validate::{InvalidSpec, JobKey, ValidatedJob, validate};
