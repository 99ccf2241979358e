//! PID 1 of the trainer container: starts the training processes, watches them, and reports how
//! they ended.
//!
//! The agent has no important state of its own: processes report through files of the run directory
//! (see `roundhouse_contract::paths`), and the container ends with an exit code and a termination
//! message. Decisions (`verdict`, `watchdog`, `in_place`, `restart`, `exposition`) are pure;
//! `supervisor` and `http` have the effects.

// These macros panic if the log cannot be written: see `say`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod bound;
pub mod dump;
pub mod exposition;
pub mod http;
pub mod in_place;
pub mod install;
pub mod kubeflow;
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
