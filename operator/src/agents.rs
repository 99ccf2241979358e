//! Polls of the workers' agents, beside the reconciles: for the progress of jobs that train, and
//! for the processes of workers that are not Ready.

pub mod client;
pub(crate) mod progress;
pub(crate) mod workers;
