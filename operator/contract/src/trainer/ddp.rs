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
    /// Compression of gradients between processes: none (`none`), 16-bit numbers (`bf16`, `fp16`),
    /// or a product of two narrow matrices for each large one (`PowerSGD`, Vogels et al. 2019).
    /// With `PowerSGD` the weights depend on the number of workers and on when it changed.
    #[serde(skip_serializing_if = "Compression::is_default")]
    pub compression: Compression,
    /// Settings of `compression: PowerSGD`.
    #[serde(rename = "powerSGD", skip_serializing_if = "Option::is_none")]
    pub power_sgd: Option<PowerSgd>,
    /// Declares that each step uses the same tensors in the same way, so that the first pass of a
    /// generation can plan the later ones. This holds for all built-in models.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub static_graph: bool,
}

/// Compression of gradients between processes. A single process sends none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Gradients are sent as 32-bit floats.
    #[default]
    None,
    /// Gradients are rounded to bfloat16 and summed in it: half the bytes, 8 bits of precision.
    Bf16,
    /// Gradients are rounded to 16-bit floats and summed in them: half the bytes, 11 bits of
    /// precision. A gradient above 65,504 is not finite.
    Fp16,
    /// Each large matrix is sent as a product of two narrow ones (`PowerSGD`, Vogels et al. 2019):
    /// many times fewer bytes. Each process adds the remaining error to its next gradient, and
    /// drops it when the number of workers changes or a worker is replaced. So the weights depend
    /// on the number of workers and on when it changed.
    #[serde(rename = "PowerSGD")]
    PowerSgd,
}

/// Settings of `compression: PowerSGD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PowerSgd {
    /// Number of columns of the narrow matrices. More columns keep more of the gradient and cost
    /// more bytes and time.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 64)))]
    pub rank: u32,
    /// Number of first steps that send whole gradients, since gradients change fast at the start of
    /// training. About a tenth of all steps is usual.
    #[cfg_attr(
        feature = "schemars",
        schemars(range(min = 0, max = 1_000_000_000_000_u64))
    )]
    pub start_step: u64,
}

impl Ddp {
    /// A warning if training ends before its gradients are compressed; `None` if they are
    /// compressed, or need not be.
    #[must_use]
    pub fn ends_before_compression(&self, total_steps: u64) -> Option<String> {
        let start_step = self.power_sgd.unwrap_or_default().start_step;
        let is_in_vain = self.compression == Compression::PowerSgd && total_steps <= start_step;
        is_in_vain.then(|| {
            format!(
                "nothing is compressed: the training has {total_steps} steps, and ddp.powerSGD.startStep is {start_step}"
            )
        })
    }
}

impl PowerSgd {
    /// Most columns of the narrow matrices.
    pub const MAX_RANK: u32 = 64;
}

impl Default for PowerSgd {
    /// The rank with which the paper trains `resnet18`, and the default start of `PyTorch`.
    fn default() -> Self {
        Self {
            rank: 2,
            start_step: 1_000,
        }
    }
}

impl Compression {
    /// Whether gradients are not compressed.
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
            power_sgd: None,
            static_graph: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_that_ends_before_compression_has_a_warning() {
        let ddp = |compression, start_step| Ddp {
            compression,
            power_sgd: Some(PowerSgd {
                start_step,
                ..PowerSgd::default()
            }),
            ..Ddp::default()
        };
        let short = ddp(Compression::PowerSgd, 100).ends_before_compression(100);
        assert!(short.is_some_and(|words| words.contains("startStep is 100")));
        for ddp in [ddp(Compression::PowerSgd, 99), ddp(Compression::Bf16, 100)] {
            assert_eq!(ddp.ends_before_compression(100), None);
        }
    }
}
