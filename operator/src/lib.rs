//! The operator's effects: caches in front, writes behind, and a pure plan in between.
//!
//! `driver` is the whole loop on one screen: observe → examine → plan → apply → report.

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
