//! The decisions of an elastic trainer: which samples, which rate, which generation.
//!
//! Everything here is a function of its arguments. Files, clocks, tensors and sockets are the
//! trainer's; the crate depends on nothing that could reach them.

pub mod agreement;
pub mod course;
pub mod machine;
pub mod micro;
pub mod permutation;
pub mod schedule;
pub mod shard;

pub use agreement::{Agreement, StateSource};
pub use course::{Batch, Course, Position};
pub use machine::{Action, Event, Machine, Outcome, Place};
pub use permutation::Permutation;
pub use schedule::RateSchedule;
