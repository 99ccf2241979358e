//! Suspension and resumption, deadlines, the end of a job, and its deletion.
#![allow(clippy::unwrap_used, clippy::panic)]

mod deadlines;
mod deleting;
mod finish;
mod newer_protocol;
mod outdated;
mod suspend;
mod suspend_checkpoints;
mod ttl;
