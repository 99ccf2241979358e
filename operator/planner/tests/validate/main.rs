//! Jobs that cannot run are refused with the field and what to change.
#![allow(clippy::unwrap_used, clippy::panic)]

mod cel_rules;
mod checks;
mod job;
mod launch;
mod placement;
