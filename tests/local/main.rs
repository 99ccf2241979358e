//! Jobs in the local executor: real agents and trainers, without a cluster.
#![allow(clippy::unwrap_used, clippy::panic)]

mod chaos;
mod deaths;
mod endings;
mod examples;
mod executor;
mod own_model;
mod python;
mod script;
