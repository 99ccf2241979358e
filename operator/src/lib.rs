//! The operator's effects: watches fill caches, a pure plan decides, and writes carry it out.
//!
//! `controller::driver` has the whole loop: observe → validate → plan → apply → report.

pub mod agents;
pub mod check;
pub mod controller;
pub mod http;
pub mod job;
pub mod memory;
pub mod metrics;
pub mod run;
pub mod runtime;
pub mod settings;
pub mod watch;
