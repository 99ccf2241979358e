//! What every operator needs: the work queue, calls to the API server, leader election, background
//! tasks. Nothing here knows a TrainingJob.

pub mod api;
pub mod leader_election;
pub mod panics;
pub mod queue;
pub mod random;
pub mod tasks;
