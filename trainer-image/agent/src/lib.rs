//! PID 1 of the trainer container: starts the training processes, watches them, tells how they ended.
//!
//! It holds no state of its own that matters: processes report through files of the run directory
//! (see `roundhouse_contract::paths`), and what ends a container is its exit code and termination
//! message. Decisions (`verdict`, `watchdog`, `in_place`, `restart`, `exposition`) are pure; `supervisor` and `http`
//! do the effects.

// They panic when the log cannot be written: see `say`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod bound;
pub mod dump;
pub mod exposition;
pub mod http;
pub mod in_place;
pub mod install;
pub mod logs;
pub mod membership;
pub mod metrics;
mod nccl_log;
pub mod options;
pub mod program;
pub mod ranks;
pub mod restart;
mod say;
pub mod script_progress;
pub mod supervisor;
pub mod verdict;
pub mod watchdog;
