//! Polls of the workers' agents, beside the reconciles: progress of training, and processes that were restarted in place.

pub mod client;
pub mod progress;
pub mod restarts;
