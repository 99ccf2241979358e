//! The operator against a real API server; the test plays the kubelet.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod chart;
mod check;
mod crash;
mod drift;
mod edits;
mod events;
mod failures;
mod faults;
mod gang;
mod gang_scheduler;
mod gated;
mod kueue;
mod lead;
mod lifecycle;
mod lost_nodes;
mod metrics;
mod network;
mod policy;
mod quota;
mod refusals;
mod rejected;
mod repeated;
mod restart;
mod restored;
mod silence;
mod spares;
mod stage;
mod state;
mod suspension;
mod topology;
mod troubles;
mod ttl;
mod upgrade;
mod versions;
