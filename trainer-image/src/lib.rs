//! The data-parallel trainer: from a configuration and a place in a generation to trained weights.
//!
//! `main -> Launch -> Trainer::run`. Decisions (which samples, which rate, which generation) are
//! `roundhouse-elastic`'s, collectives `roundhouse-c10d`'s; this crate holds the tensors, the
//! files and the clock.

pub mod audit;
pub mod blocking;
pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod data;
pub mod device;
pub mod evaluate;
pub mod failure;
pub mod faults;
pub mod interrupt;
pub mod launch;
pub mod ledger;
pub mod membership;
pub mod model;
pub mod optimizer;
pub mod rendezvous;
pub mod report;
pub mod sections;
pub mod signals;
pub mod strategy;
pub mod trainer;
pub mod weights;
pub mod world;

pub use failure::Failure;
pub use launch::Launch;
pub use trainer::Trainer;
