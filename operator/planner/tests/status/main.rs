//! What the status shows: conditions, progress, checkpoints, and what a job waits for.
#![allow(clippy::unwrap_used, clippy::panic)]

mod checkpoint;
mod conditions;
mod g04_repeats;
mod g18_not_accepted;
mod progress;
mod scheduling_gates;
mod waiting;
mod write_blocked;
