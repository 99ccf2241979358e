//! The shared harness of the tests that need more than one crate.

pub mod apiserver;
pub mod cluster;
pub mod exposition;
pub mod local;
pub mod manifests;
pub mod metrics_page;
pub mod nodes;
pub mod peers;
pub mod processes;
pub mod prometheus;
pub mod pytorch;
pub mod weights;
