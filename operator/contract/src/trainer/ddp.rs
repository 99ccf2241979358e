//! How gradients are synchronized between processes.

use serde::{Deserialize, Serialize};

/// How gradients are synchronized between processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Ddp {
    /// Size in MiB of a gradient bucket that is reduced at once.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 4096)))]
    #[serde(rename = "bucketCapMiB")]
    pub bucket_cap_mib: u32,
    /// Size in MiB of the first bucket; a small one lets communication start early.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 4096)))]
    #[serde(rename = "firstBucketMiB")]
    pub first_bucket_mib: u32,
    /// In which type gradients travel between processes.
    #[serde(skip_serializing_if = "Compression::is_default")]
    pub compression: Compression,
    /// Promises that each step uses the same tensors in the same way, so that the first pass of a generation can plan the
    /// later ones. All built-in models do.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub static_graph: bool,
}

/// In which type gradients travel between processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// As they are: 32-bit floats.
    #[default]
    None,
    /// Rounded to bfloat16 and summed in it: half the bytes, 8 bits of precision.
    Bf16,
    /// Rounded to 16-bit floats and summed in them: half the bytes, 11 bits of precision. A gradient above 65,504 is not
    /// finite.
    Fp16,
}

impl Compression {
    /// Whether it is `none`.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for Ddp {
    fn default() -> Self {
        Self {
            bucket_cap_mib: 25,
            first_bucket_mib: 1,
            compression: Compression::None,
            static_graph: false,
        }
    }
}
