//! The harness of the tests that need more than one crate.

pub mod cluster;
pub mod manifests;
