//! Polls of the workers' agents, beside the reconciles: the progress of jobs that train, and the processes of workers that are
//! not Ready.

pub mod client;
pub(crate) mod progress;
pub(crate) mod workers;
