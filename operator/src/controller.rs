//! One job from its observation to its status: observe, validate, plan, apply, report. `driver`
//! is the loop.

pub mod apply;
mod carry_out;
pub mod context;
pub mod driver;
pub mod error;
pub mod events;
pub(crate) mod leaving;
pub mod observe;
mod postponed;
pub mod priority;
pub mod report;
pub mod resources;
pub mod slow_writes;
pub mod tenancy;
