//! What a TrainingJob needs next: pure decisions over what was observed.
//!
//! [`validate`] turns the raw object into a [`ValidatedJob`]; [`plan`] turns that and an
//! [`Observed`] into a [`Plan`]: actions in order, the whole status, the next wake-up and why.
//! Nothing here does I/O or reads a clock. Each policy is one file: `children`, `replace`, `failure`,
//! `nodes`, `suspend`, `membership`, `stranded`, `deadlines`, `finish`, over a `draft`; `decide` calls them in order.

mod checkpoint;
mod children;
mod deadlines;
mod decide;
mod draft;
mod failure;
mod finish;
pub mod gpu;
pub mod members;
mod membership;
mod nodes;
pub mod observed;
pub mod plan;
pub mod program;
mod progress;
mod refused;
mod replace;
pub mod status;
mod stranded;
mod suspend;
pub mod validate;
mod waiting;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use checkpoint::is_in_new_trouble;
pub use decide::plan;
pub use observed::{
    Container, Observed, Pod, PodPhase, Presence, Processes, ProgressSample, Termination, Waiting,
};
pub use plan::{Action, DeleteReason, Event, EventType, MAX_ACTIONS, Plan, PlanReason};
pub use program::{Program, Script};
pub use refused::{Obstacle, plan_invalid, plan_refused};
pub use validate::{InvalidSpec, JobKey, ValidatedJob, validate};
