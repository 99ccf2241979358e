//! Everything that reads what somebody else wrote, under random bytes: documents of pods, users and operators of other
//! versions, files of a shared volume, and data. A reader may refuse its input. It may not panic, hang, or take memory that
//! the input is not worth.
//!
//! `cargo test` gives each target its seeds and some thousand mutations of them, the same each time. `make fuzz` has
//! libFuzzer look for inputs that reach new code. What it finds becomes a file of `findings/TARGET`, which `cargo test`
//! reads.
#![expect(
    clippy::unwrap_used,
    reason = "a target panics where a reader breaks a promise"
)]

pub mod data;
pub mod documents;
pub mod inputs;
mod place;
pub mod volume;

/// A reader.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, for `make fuzz TARGETS=NAME`.
    pub name: &'static str,
    /// Reads an input.
    pub read: fn(&[u8]),
    /// Inputs that are accepted.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    documents::MEMBERSHIP,
    documents::PROGRESS,
    documents::TERMINATION,
    documents::RANK_STATUS,
    documents::TRAINER_CONFIG,
    documents::TRAINING_JOB,
    volume::CHECKPOINT,
    volume::LEDGER,
    data::IDX,
    data::IMAGE,
    data::TFRECORD,
    data::WEBDATASET,
    data::PARQUET,
    data::TOKENS,
    data::TEXT,
];

/// The target of a name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
