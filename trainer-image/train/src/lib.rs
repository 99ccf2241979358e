//! A trainer for any model and any data.
//!
//! A user implements [`Task`] (a model and its loss) and [`Source`] (data); everything else, from data-parallel
//! synchronization to elasticity, checkpoints and metrics, is done here.

pub mod batch;
pub mod data;
pub mod parameters;
pub mod source;
pub mod task;
pub mod update;

pub use batch::Batch;
pub use data::HostSource;
pub use parameters::{Parameters, Role};
pub use source::Source;
pub use task::{LossSum, Mode, Task};
pub use update::{Rate, Update};
