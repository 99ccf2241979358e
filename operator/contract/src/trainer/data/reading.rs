//! Order of the samples, threads, memory and the treatment of corrupt records.

use serde::{Deserialize, Serialize};

use crate::trainer::{ConfigInvalid, invalid};

/// Treatment of a record that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum OnCorrupt {
    /// Training fails; the message names the file and the place.
    #[default]
    Fail,
    /// Another sample takes its place, the same on every worker, and is counted.
    Skip,
}

/// An order with two levels: blocks of consecutive samples are shuffled, then the samples of
/// several blocks. Disks are read nearly sequentially, and each sample still occurs once per epoch.
/// Without it any sample can be at any position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Shuffle {
    /// Number of consecutive samples in a block.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 1_000_000_000)))]
    pub block: u64,
    /// Number of blocks whose samples are mixed.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 1_000_000)))]
    pub window: u64,
}

impl Shuffle {
    pub(super) fn validate(&self) -> Result<(), ConfigInvalid> {
        if !(1..=1_000_000_000).contains(&self.block) {
            return invalid("data.shuffle.block", "must be between 1 and 1000000000");
        }
        if !(1..=1_000_000).contains(&self.window) {
            return invalid("data.shuffle.window", "must be between 1 and 1000000");
        }
        Ok(())
    }
}

/// Threads, memory and the treatment of corrupt records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Reading {
    /// Treatment of a record that cannot be read.
    pub on_corrupt: OnCorrupt,
    /// Threads per process that read and decode. Default: the number of CPUs of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 256)))]
    pub threads: Option<u32>,
    /// Number of batches that are read ahead; it bounds the memory.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 64)))]
    pub read_ahead: u32,
    /// Directory for indexes of files and for tokenized text, used if the data's own directory
    /// cannot be written. Without it an index is built at each start.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(min = 1, max = 1024)))]
    pub cache_dir: Option<String>,
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            on_corrupt: OnCorrupt::Fail,
            threads: None,
            read_ahead: 2,
            cache_dir: None,
        }
    }
}

impl Reading {
    /// Whether all fields have their defaults.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn validate(&self) -> Result<(), ConfigInvalid> {
        if self
            .threads
            .is_some_and(|threads| !(1..=256).contains(&threads))
        {
            return invalid("data.reading.threads", "must be between 1 and 256");
        }
        if self.read_ahead > 64 {
            return invalid("data.reading.readAhead", "must be at most 64");
        }
        super::no_climbing("data.reading.cacheDir", self.cache_dir.as_deref())
    }
}
