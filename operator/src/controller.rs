//! One job from its observation to its status: observe, examine, plan, apply, report. `driver` is the loop.

pub mod apply;
pub mod context;
pub mod driver;
pub mod error;
pub mod events;
pub(crate) mod leaving;
pub mod observe;
pub mod priority;
pub mod report;
pub mod resources;
pub mod slow_writes;
pub mod tenancy;
