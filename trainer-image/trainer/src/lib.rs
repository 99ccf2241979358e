//! A trainer for any model and any data.
//!
//! A program gives [`main`] a function that builds a [`Job`] from the configuration: a [`Task`] (a
//! model and its loss) and [`Source`]s (data), and optionally an [`Update`] of its own. This crate
//! does everything else: data-parallel synchronization, elasticity, checkpoints and metrics.
//! ```text
//! process        the launch of the process, and its exit code
//! trainer        the loop: form a generation, step, evaluate, finish
//!   gradients    the passes of a step: source -> task -> sync
//!   sync         sums gradients over the ranks
//!   update       gradients -> new weights
//! replica        the processes of a worker that hold one copy of the state together
//! group, rendezvous, state    c10d and tensors behind the traits of roundhouse-member
//! ```

#![warn(missing_docs)]

pub mod audit;
pub mod batch;
pub mod cli;
pub mod clip;
pub mod config;
pub mod data;
pub mod device;
pub mod ema;
pub mod evaluate;
pub mod experts;
pub mod export;
pub mod failure;
pub mod gradients;
pub mod group;
pub mod job;
pub mod loss;
pub mod memory;
pub mod models;
pub mod optimizers;
pub mod parameters;
pub mod peak;
mod pipeline;
pub mod process;
pub mod random;
pub mod ranks;
pub mod rendezvous;
pub mod replica;
pub mod segment;
mod shards;
pub mod source;
pub mod state;
pub mod stopwatch;
pub mod sync;
pub mod task;
mod tensor_parallel;
pub mod tracing;
pub mod trainer;
pub mod update;
pub mod weights;

pub use batch::Batch;
pub use data::HostSource;
pub use data::upload::upload;
pub use experts::Experts;
pub use failure::Failure;
pub use job::{Job, Setup};
pub use parameters::{Parameters, Role};
pub use process::main;
pub use ranks::Ranks;
pub use segment::Segment;
pub use source::{Source, SourceError};
pub use task::{LossSum, Mode, Task};
pub use trainer::Trainer;
pub use update::{Rate, Signals, Update};

// Items of other crates that a user's program needs, in the versions that this crate is built with.
pub use roundhouse_contract::TrainerConfig;
pub use roundhouse_contract::trainer::OptionsInvalid;
pub use roundhouse_elastic::{Blocks, Permutation};
pub use tch;
