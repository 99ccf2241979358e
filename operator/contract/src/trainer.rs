//! The trainer's configuration: `spec.trainer` of the job and, as JSON, the file that every process
//! reads. `kubectl explain` shows the doc comments of the fields.

use serde::{Deserialize, Serialize};

use crate::scale::ScaleBatch;

pub mod activations;
pub mod data;
pub mod ddp;
pub mod model;
pub mod numerics;
pub mod optimizer;
pub mod options;
pub mod parallel;

pub use activations::ActivationCheckpointing;
pub use data::{Data, DataFormat, DataVolume};
pub use ddp::{Compression, Ddp, PowerSgd};
pub use model::{InitFrom, Model, ModelName};
pub use numerics::{LossScaling, OnNonFinite, Precision};
pub use optimizer::{
    BatchGrowth, DecayShape, Ema, Optimizer, OptimizerName, Schedule, ScheduleName,
};
pub use options::{Options, OptionsInvalid};
pub use parallel::{Parallel, Shard};

/// The schema repeats this bound as a number, because it needs literals.
const MAX_EPOCHS: u32 = 1_000_000;

/// The built-in trainer: model, data, optimizer and duration of training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrainerConfig {
    /// The model and its size.
    pub model: Model,
    /// The training and test data.
    pub data: Data,
    /// The optimizer and its parameters.
    #[serde(default)]
    pub optimizer: Optimizer,
    /// Schedule of the learning rate and the batch.
    #[serde(default)]
    pub schedule: Schedule,
    /// Samples per optimizer step, over all workers together. It does not change with the number of
    /// workers, unless `elastic.onScale` says so.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 16_777_216)))]
    pub global_batch_size: u32,
    /// Most samples that one process computes at once; it bounds the memory. Default: no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 16_777_216)))]
    pub micro_batch_size: Option<u32>,
    /// Number of fixed slices of each global batch. Each slice is computed in its own pass, and the
    /// results are summed in a fixed order, so that weights and losses are equal bit for bit for
    /// every number of processes. More processes than slices are idle. Default: the order of sums
    /// depends on the number of processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 4_096)))]
    pub slices: Option<u32>,
    /// Number format in which a step computes. Weights, gradients and the optimizer's
    /// state stay 32-bit floats.
    #[serde(default, skip_serializing_if = "Precision::is_default")]
    pub precision: Precision,
    /// What happens to a step whose loss or summed gradient is not a finite number. `Fail`:
    /// training fails. `Skip`: the step is committed without an update; its samples count as used,
    /// and weights and the optimizer's state stay as they are.
    #[serde(default, skip_serializing_if = "OnNonFinite::is_default")]
    pub on_non_finite: OnNonFinite,
    /// Factor of the loss with `precision: fp16`.
    #[serde(default, skip_serializing_if = "LossScaling::is_default")]
    pub loss_scaling: LossScaling,
    /// Training fails when more steps than this in a row are not finite.
    #[serde(
        default = "default_max_consecutive_skips",
        skip_serializing_if = "is_default_max_consecutive_skips"
    )]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 1_000_000)))]
    pub max_consecutive_skips: u32,
    /// Which activations are computed again in the backward pass, so that the step needs less
    /// memory and more time (Chen et al. 2016). `Blocks`: each block of a `gpt2`, `bert`, `llama`
    /// or `switch` and each residual block of a `resnet18` or `resnet50` keeps only its input. On
    /// CPUs losses and weights are the same bit for bit. Default: `None`.
    #[serde(default, skip_serializing_if = "ActivationCheckpointing::is_default")]
    pub activation_checkpointing: ActivationCheckpointing,
    /// Stores images and the weights of convolutions with channels last (NHWC), which tensor cores
    /// and many CPUs process faster. Checkpoints and exported weights keep the usual layout.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub channels_last: bool,
    /// Uses only kernels whose result does not depend on timing; an operation without such a
    /// kernel is an error. On GPUs it costs speed; on CPUs all kernels are deterministic for a
    /// given number of threads.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deterministic: bool,
    /// Whether cuDNN measures its convolution kernels when a shape occurs for the first time, and
    /// uses the fastest. It needs memory while it measures. On CPUs it has no effect. Default:
    /// true, unless `deterministic` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cudnn_benchmark: Option<bool>,
    /// Peak number of floating-point operations per second of the device of one process, such as
    /// `989e12` for an H100 in bf16; for the metric of model FLOPs utilization. Default: that of
    /// well-known NVIDIA GPUs, otherwise unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1)))]
    pub peak_flops: Option<f64>,
    /// Passes over the training data. Set this or `steps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 1_000_000)))]
    pub epochs: Option<u32>,
    /// Optimizer steps of `globalBatchSize` samples. Set this or `epochs`. With
    /// `elastic.onScale: ScaleBatch` training ends after the number of samples that these steps
    /// have.
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
    /// How gradients are synchronized between processes.
    #[serde(default)]
    pub ddp: Ddp,
    /// How the processes of a worker divide the state. It needs `workers.procsPerWorker` of at
    /// least 2.
    #[serde(default, skip_serializing_if = "Parallel::is_default")]
    pub parallel: Parallel,
    /// When the test split is evaluated.
    #[serde(default)]
    pub eval: Eval,
    /// Settings for a program of your own: any keys and values, at most 64 KiB as JSON and 32
    /// levels deep. Only with `model.name: custom` or `data.format: custom`.
    #[serde(default, skip_serializing_if = "Options::is_empty")]
    #[cfg_attr(feature = "schemars", schemars(schema_with = "options::schema"))]
    pub options: Options,
    /// Writes event files for `TensorBoard` to the directory `tensorboard` beside the checkpoints:
    /// loss, learning rate, gradient norm and throughput at most once a second, and each
    /// evaluation. Needs `spec.checkpoint`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tensorboard: bool,
    /// How batch and learning rate follow the number of workers; `None` if they do not. Only in the
    /// file that the processes read: in a job it is `spec.elastic.scaleBatch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(skip))]
    pub scale_batch: Option<ScaleBatch>,
}

const DEFAULT_MAX_CONSECUTIVE_SKIPS: u32 = 100;

const fn default_max_consecutive_skips() -> u32 {
    DEFAULT_MAX_CONSECUTIVE_SKIPS
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_default_max_consecutive_skips(value: &u32) -> bool {
    *value == DEFAULT_MAX_CONSECUTIVE_SKIPS
}

/// When the test split is evaluated. It is always evaluated at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Eval {
    /// Number of epochs between evaluations; 0: only at the end.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 1_000_000)))]
    pub every_epochs: u32,
    /// Number of steps between additional evaluations. Default: only epochs count.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 1_000_000_000)))]
    pub every_steps: Option<u32>,
}

impl Default for Eval {
    fn default() -> Self {
        Self {
            every_epochs: 1,
            every_steps: None,
        }
    }
}

/// Why a configuration cannot run: the field, and what to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigInvalid {
    /// Path of the field below `trainer`, such as `optimizer.learningRate`.
    pub field: &'static str,
    /// What to change in the field.
    pub message: String,
}

impl std::fmt::Display for ConfigInvalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "trainer.{}: {}", self.field, self.message)
    }
}

impl std::error::Error for ConfigInvalid {}

fn invalid<T>(field: &'static str, message: impl Into<String>) -> Result<T, ConfigInvalid> {
    Err(ConfigInvalid {
        field,
        message: message.into(),
    })
}

impl TrainerConfig {
    /// Checks what the types of the fields cannot express. The API server's schema refuses the same
    /// values; this function is for configurations from another source.
    ///
    /// # Errors
    /// Fails with the first invalid field, and what to change.
    pub fn validate(&self) -> Result<(), ConfigInvalid> {
        if self.eval.every_steps == Some(0) {
            return invalid(
                "eval.everySteps",
                "must be at least 1; leave it out to count epochs only",
            );
        }
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
        if self.max_consecutive_skips == 0 {
            return invalid("maxConsecutiveSkips", "must be at least 1");
        }
        let is_peak = |peak: f64| peak.is_finite() && peak >= 1.0;
        if self.peak_flops.is_some_and(|peak| !is_peak(peak)) {
            return invalid("peakFlops", "must be at least 1");
        }
        if self.ddp.bucket_cap_mib == 0 || self.ddp.first_bucket_mib == 0 {
            return invalid("ddp", "bucket sizes must be at least 1 MiB");
        }
        let is_rank = |rank| (1..=PowerSgd::MAX_RANK).contains(&rank);
        if self.ddp.power_sgd.is_some_and(|it| !is_rank(it.rank)) {
            return invalid(
                "ddp.powerSGD.rank",
                format!("must be between 1 and {}", PowerSgd::MAX_RANK),
            );
        }
        if self
            .scale_batch
            .is_some_and(|scale| scale.reference_replicas == 0)
        {
            return invalid("scaleBatch.referenceReplicas", "must be at least 1");
        }
        self.loss_scaling.validate()?;
        self.refuse_fields_without_effect()?;
        self.model.validate()?;
        Model::validate_passes(self)?;
        self.data.validate()?;
        data::validate_model(self)?;
        options::validate(self)?;
        activations::validate(self)?;
        parallel::validate(self)?;
        self.optimizer.validate()?;
        self.schedule.validate()
    }

    /// Whether cuDNN measures its convolution kernels. Which kernel is the
    /// fastest depends on timing.
    #[must_use]
    pub fn has_cudnn_benchmark(&self) -> bool {
        self.cudnn_benchmark.unwrap_or(!self.deterministic)
    }

    /// Refuses fields that have no effect because of another field.
    fn refuse_fields_without_effect(&self) -> Result<(), ConfigInvalid> {
        let is_narrow = self.precision == Precision::Fp16;
        if !is_narrow && !self.loss_scaling.is_default() {
            return invalid(
                "lossScaling",
                "is for precision fp16: remove it, or set precision to fp16",
            );
        }
        let skips = is_narrow || self.on_non_finite == OnNonFinite::Skip;
        if !skips && !is_default_max_consecutive_skips(&self.max_consecutive_skips) {
            return invalid(
                "maxConsecutiveSkips",
                "counts skipped steps: set onNonFinite to Skip, or remove it",
            );
        }
        if self.slices.is_some() && self.ddp.compression != Compression::None {
            return invalid(
                "ddp.compression",
                "has no effect with slices, which sum 32-bit gradients: remove one of them",
            );
        }
        if self.deterministic && self.cudnn_benchmark == Some(true) {
            return invalid(
                "cudnnBenchmark",
                "chooses kernels by their time, which deterministic excludes: remove one of them",
            );
        }
        if self.ddp.power_sgd.is_some() && self.ddp.compression != Compression::PowerSgd {
            return invalid(
                "ddp.powerSGD",
                "is for compression PowerSGD: remove it, or set ddp.compression to PowerSGD",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
