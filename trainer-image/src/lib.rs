//! The data-parallel trainer: from a configuration and a place in a generation to trained weights.
//!
//! `main -> Launch -> Trainer::run`. Decisions (which samples, which rate, which generation) are
//! `roundhouse-elastic`'s, what a process does as a member of generations is `roundhouse-member`'s, collectives are
//! `roundhouse-c10d`'s; this crate holds the tensors. [`group`], [`rendezvous`] and [`state`] are what a member needs
//! of c10d and of tensors.

pub mod audit;
pub mod cli;
pub mod config;
pub mod data;
pub mod device;
pub mod evaluate;
pub mod failure;
pub mod group;
pub mod model;
pub mod optimizer;
pub mod rendezvous;
pub mod state;
pub mod strategy;
pub mod trainer;
pub mod weights;

pub use failure::Failure;
pub use trainer::Trainer;
