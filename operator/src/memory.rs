//! What the operator remembers of a job between two reconciles. All of it is lost when the operator restarts, and
//! nothing irrevocable depends on it.

pub mod backoff;
pub mod expectations;
pub mod recent_pods;
pub mod repairs;
pub mod status_delay;
pub mod taken_names;
pub mod unsent_events;
