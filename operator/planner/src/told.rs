//! What the user is told: conditions and counts, what a job waits for, what is refused, how far training has come.

pub(crate) mod checkpoint;
pub(crate) mod progress;
pub(crate) mod refused;
pub(crate) mod rejected;
pub(crate) mod repeats;
pub mod status;
pub(crate) mod waiting;
