//! Tests of jobs in the local executor, with real agents and trainers and without a cluster.
#![allow(clippy::unwrap_used, clippy::panic)]

mod chaos;
mod cleanup;
mod examples;
mod executor;
mod member_deaths;
mod own_model;
mod python;
mod restarts;
mod resume;
mod scale;
mod script;
