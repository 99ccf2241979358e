//! Checkpoints hold the whole state of a training in a directory that all workers share.
//!
//! ```text
//! <dir>/checkpoints/gen-0000000003-step-000000000600/manifest.json
//!                                                    shard-00000-of-00002.safetensors
//!                                                    shard-00001-of-00002.safetensors
//! <dir>/best.json
//! <dir>/ledger/gen-0000000003.jsonl
//! <dir>/jobs/<UID of a job>
//! ```
//! A checkpoint is a new directory that gets its name when all its files are durable. It never
//! changes afterwards, except that a manifest may get scores. So a named checkpoint is complete,
//! unless it was damaged later, which sizes and checksums show.

pub mod alone;
pub mod best_file;
pub mod complete;
pub mod damaged;
pub mod directory;
pub(crate) mod draft;
pub mod error;
pub mod io_watch;
pub mod job;
pub mod load;
pub mod manifest;
mod probe;
pub mod saver;
pub mod shard;
pub mod writer;

pub use damaged::{Damage, Damaged};
pub use directory::Directory;
pub use error::{Reason, VolumeError};
pub use io_watch::{IdleTimer, IoWatch};
pub use manifest::{Identity, Manifest};
pub use saver::{Saver, SaverEvent};

/// Formats a message about a file.
pub(crate) fn about(path: &std::path::Path, reason: impl std::fmt::Display) -> String {
    format!("{}: {reason}", path.display())
}
