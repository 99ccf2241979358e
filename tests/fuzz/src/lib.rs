//! Feeds random bytes to all code that reads untrusted input: documents of pods, users and
//! operators of other versions, files of a shared volume, and data sets. A reader may refuse its
//! input. It must not panic, hang, or allocate far more memory than the input has bytes.
//!
//! `cargo test` runs each target with its seeds and with 2,000 reproducible mutations of them.
//! `make fuzz` lets libFuzzer search for inputs that reach new code. An input that breaks a reader
//! becomes a file of `findings/TARGET`, which `cargo test` reads, too.
#![expect(
    clippy::unwrap_used,
    reason = "a target panics where a reader breaks a guarantee"
)]

pub mod data;
pub mod documents;
mod input_directory;
pub mod inputs;
pub mod volume;

/// A reader under test, with inputs that it accepts.
#[derive(Clone, Copy)]
pub struct Target {
    /// The name for `make fuzz TARGETS=NAME`.
    pub name: &'static str,
    /// Gives an input to the reader.
    pub read: fn(&[u8]),
    /// Inputs that the reader accepts.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets, in the order of their runs.
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

/// The target with this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
