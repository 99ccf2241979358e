//! Tests of jobs in the local executor, with real agents and trainers and without a cluster.
#![allow(clippy::unwrap_used, clippy::panic)]

mod cleanup;
mod copies;
mod examples;
mod executor;
mod g01_chaos;
mod g03_member_deaths;
mod g10_restarts;
mod own_model;
mod parallel;
mod python;
mod resume;
mod scale;
mod script;
mod sharded;
