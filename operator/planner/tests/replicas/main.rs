//! Replicas of several pods (`workers.podsPerReplica`).
#![allow(clippy::unwrap_used)]

mod cluster;
mod copies;
mod domains;
mod failures;
mod gangs;
mod lives;
mod places;
mod properties;
mod scarce;
mod scheduler;
