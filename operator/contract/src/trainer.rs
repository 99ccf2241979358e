//! The trainer's configuration: `spec.trainer` of the job and, as JSON, the file that every
//! process reads. Doc comments of fields are what `kubectl explain` shows.

use serde::{Deserialize, Serialize};

use crate::scale::ScaleBatch;

pub mod data;
pub mod model;
pub mod optimizer;

pub use data::{Data, DataFormat, DataVolume};
pub use model::{InitFrom, Model, ModelName};
pub use optimizer::{
    BatchGrowth, DecayShape, Ema, Optimizer, OptimizerName, Schedule, ScheduleName,
};

/// Bounds in the schema are written here once more as numbers, because a schema needs literals.
const MAX_EPOCHS: u32 = 1_000_000;

/// The built-in trainer: what to train, on what, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrainerConfig {
    /// The model.
    pub model: Model,
    /// The training and test data.
    pub data: Data,
    /// The optimizer.
    #[serde(default)]
    pub optimizer: Optimizer,
    /// The learning-rate schedule.
    #[serde(default)]
    pub schedule: Schedule,
    /// Samples per optimizer step, over all workers together; it does not change with their
    /// number, unless `elastic.onScale` says so.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 16_777_216)))]
    pub global_batch_size: u32,
    /// Most samples that one process computes at once; bounds its memory. Default: no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 16_777_216)))]
    pub micro_batch_size: Option<u32>,
    /// Cuts each global batch into so many fixed slices, each computed in a pass of its own and summed in a fixed order,
    /// so that weights and losses are equal bit for bit whatever the number of processes is. More processes than slices
    /// are idle. Default: the order of sums depends on the number of processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 4_096)))]
    pub slices: Option<u32>,
    /// In which numbers a step computes. Weights, gradients and the optimizer's state stay 32-bit floats.
    #[serde(default, skip_serializing_if = "Precision::is_default")]
    pub precision: Precision,
    /// Only kernels whose result does not depend on timing; an operation that has none is an error. On GPUs it costs
    /// speed; on CPUs all kernels are deterministic for a given number of threads.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deterministic: bool,
    /// Floating-point operations per second that the device of one process can do at most, such as `989e12` for an
    /// H100 in bf16; for the metric of model FLOPs utilization. Default: that of well-known NVIDIA GPUs, else unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1)))]
    pub peak_flops: Option<f64>,
    /// Passes over the training data. Give this or `steps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 1_000_000)))]
    pub epochs: Option<u32>,
    /// Optimizer steps of `globalBatchSize` samples. Give this or `epochs`. With `elastic.onScale:
    /// ScaleBatch` training ends after as many samples as these have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schemars",
        schemars(range(min = 1, max = 1_000_000_000_000_u64))
    )]
    pub steps: Option<u64>,
    /// Seed of the initial weights and of the order of the samples.
    #[serde(default)]
    #[cfg_attr(
        feature = "schemars",
        schemars(range(min = 0, max = 9_007_199_254_740_991_u64))
    )]
    pub seed: u64,
    /// How gradients are synchronized.
    #[serde(default)]
    pub ddp: Ddp,
    /// When the test split is evaluated.
    #[serde(default)]
    pub eval: Eval,
    /// Writes event files for `TensorBoard` to the directory `tensorboard` beside the checkpoints: loss, learning rate,
    /// gradient norm and throughput at most once a second, and each evaluation. Needs `spec.checkpoint`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tensorboard: bool,
    /// How batch and rate follow the number of workers; `None`: they do not. Only in the file that
    /// the processes read: of a job it is `spec.elastic.scaleBatch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(skip))]
    pub scale_batch: Option<ScaleBatch>,
}

/// In which numbers a step computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floats.
    #[default]
    Fp32,
    /// 32-bit floats, of which the tensor cores of NVIDIA GPUs read 19 bits. On CPUs the same as `fp32`.
    Tf32,
    /// Products, convolutions and attention in bfloat16 (8 bits of precision), all else in 32-bit floats, as
    /// `torch.autocast`.
    Bf16,
}

impl Precision {
    /// Whether it is `fp32`.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

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
}

impl Default for Ddp {
    fn default() -> Self {
        Self {
            bucket_cap_mib: 25,
            first_bucket_mib: 1,
        }
    }
}

/// When the test split is evaluated. It is always evaluated at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Eval {
    /// Evaluate after every so many epochs; 0: only at the end.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 1_000_000)))]
    pub every_epochs: u32,
}

impl Default for Eval {
    fn default() -> Self {
        Self { every_epochs: 1 }
    }
}

/// Why a configuration cannot be run: which field, and what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigInvalid {
    /// Path of the field below `trainer`, such as `optimizer.learningRate`.
    pub field: &'static str,
    /// What to change.
    pub message: String,
}

impl std::fmt::Display for ConfigInvalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "trainer.{}: {}", self.field, self.message)
    }
}

impl std::error::Error for ConfigInvalid {}

/// Shorthand of the checks below.
fn invalid<T>(field: &'static str, message: impl Into<String>) -> Result<T, ConfigInvalid> {
    Err(ConfigInvalid {
        field,
        message: message.into(),
    })
}

impl TrainerConfig {
    /// Says what no field's type can say. The schema refuses the same at the API server; this is
    /// for everybody who comes another way.
    ///
    /// # Errors
    /// The first field that cannot be run, and what to change.
    pub fn validate(&self) -> Result<(), ConfigInvalid> {
        match (self.epochs, self.steps) {
            (None, None) => return invalid("epochs", "give either epochs or steps"),
            (Some(_), Some(_)) => return invalid("steps", "give either epochs or steps, not both"),
            (Some(epochs), None) if epochs == 0 || epochs > MAX_EPOCHS => {
                return invalid("epochs", format!("must be between 1 and {MAX_EPOCHS}"));
            }
            (None, Some(0)) => return invalid("steps", "must be at least 1"),
            (Some(_), None) | (None, Some(_)) => {}
        }
        if self.global_batch_size == 0 {
            return invalid("globalBatchSize", "must be at least 1");
        }
        if self.micro_batch_size == Some(0) {
            return invalid("microBatchSize", "must be at least 1");
        }
        if self.slices == Some(0) {
            return invalid("slices", "must be at least 1");
        }
        let is_peak = |peak: f64| peak.is_finite() && peak >= 1.0;
        if self.peak_flops.is_some_and(|peak| !is_peak(peak)) {
            return invalid("peakFlops", "must be at least 1");
        }
        if self.ddp.bucket_cap_mib == 0 || self.ddp.first_bucket_mib == 0 {
            return invalid("ddp", "bucket sizes must be at least 1 MiB");
        }
        if self
            .scale_batch
            .is_some_and(|scale| scale.reference_replicas == 0)
        {
            return invalid("scaleBatch.referenceReplicas", "must be at least 1");
        }
        self.model.validate()?;
        self.data.validate()?;
        self.optimizer.validate()?;
        self.schedule.validate()
    }
}

#[cfg(test)]
mod tests;
