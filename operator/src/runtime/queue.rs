//! The work queue: which job is reconciled next, after which delay, and how many at a time.

pub mod debounce;
pub mod runner;
pub mod work_queue;
