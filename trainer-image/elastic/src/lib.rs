//! The decisions of an elastic trainer: samples, learning rate, generation and state.
//!
//! All functions here depend only on their arguments. The trainer owns files, clocks, tensors and
//! sockets, and this crate has no dependency that could reach them.

pub mod agreement;
pub mod audit;
pub mod best;
pub mod checkpoint;
pub mod data_schedule;
pub mod digest;
pub mod io_timeout;
pub mod lag;
pub mod ledger;
pub mod local_copies;
pub mod machine;
pub mod micro;
pub mod numerics;
pub mod permutation;
pub mod saving;
pub mod scaling;
pub mod schedule;
pub mod shard;
pub mod slices;
pub mod splitmix;
pub mod state;
pub mod straggler;
pub mod training_position;
pub mod transition_timeouts;

pub use agreement::Agreement;
pub use checkpoint::CheckpointId;
pub use data_schedule::{Batch, DataSchedule, Growth, Length, Position};
pub use digest::{Digest, Hasher};
pub use io_timeout::IoTimeout;
pub use ledger::{Chain, Head, Line};
pub use machine::{Action, Event, Machine, Outcome, Place};
pub use numerics::{LossScale, Skips};
pub use permutation::{Blocks, Permutation};
pub use scaling::Scaling;
pub use schedule::RateSchedule;
pub use state::{Claim, Lost, Origin, StateSource};
pub use straggler::{StepTimes, Straggler};
pub use training_position::{BatchPace, TrainingPosition};
pub use transition_timeouts::{Activity, GroupProgress, JoinWait, StepEstimate};
