//! The interface between the training loop and the model.

use tch::{TchError, Tensor};

use crate::batch::Batch;
use crate::parameters::Parameters;
use crate::ranks::Ranks;

/// The purpose of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A pass of a training step. Random numbers (dropout, masks) are a function of these three
    /// values only, so they do not depend on the number of workers.
    Train {
        /// Seed of the training (`trainer.seed`).
        seed: u64,
        /// Number of the step, from 1.
        step: u64,
        /// Index of the fixed part of the global batch that this pass computes, from 0.
        slice: u64,
    },
    /// A pass of an evaluation: without dropout, and with running statistics.
    Evaluate,
}

/// Sums over the samples of a batch. The training loop adds the sums of all parts and divides by
/// the number of samples of the global batch, so the result does not depend on how the batch is
/// split.
#[derive(Debug)]
pub struct LossSum {
    /// Sum of the samples' losses: a scalar, with a graph if the mode is [`Mode::Train`]. The loss
    /// of a sample with many targets (a sequence) is the mean over its targets.
    pub loss: Tensor,
    /// Counts of an evaluation, such as `("top1", number of correct samples)`, as scalars on the
    /// device. Empty while training. Classifiers count `top1` and `top5`. Language models count
    /// `nll`, the sum of the negative log-likelihoods of all targets, and `tokens`, the number of
    /// targets: the perplexity is exp(nll / tokens).
    pub counts: Vec<(&'static str, Tensor)>,
}

/// A model with its loss.
///
/// # Guarantees of an implementation
/// `loss` is a function of the parameters, the batch and the mode: it changes nothing, and it draws
/// random numbers only as [`Mode::Train`] requires. An empty batch has a loss of 0 and gradients
/// of 0.
pub trait Task: std::fmt::Debug {
    /// Computes the sum of the losses of a batch.
    ///
    /// # Errors
    /// The batch does not have the shape of the model.
    fn loss(&self, batch: &Batch, mode: Mode) -> Result<LossSum, TchError>;

    /// Number of consecutive places over which the model computes statistics. The ranks' parts and
    /// their passes are cut at multiples of it. 1: samples do not depend on each other.
    fn group_size(&self) -> u64 {
        1
    }

    /// Sets the ranks that compute each step together. The training loop calls it at the start of
    /// each generation, before the first pass. `None` means a process that trains alone, or that
    /// the next pass computes this rank's own gradients. Only models whose loss is a function of
    /// the whole batch need it, such as a model with batch normalization over all ranks.
    ///
    /// A model that sums over the ranks must do so in every pass of [`Mode::Train`], in the same
    /// order on all ranks, also for an empty batch, and in no pass of [`Mode::Evaluate`]. It needs
    /// each batch in one pass, so the configuration must have neither `microBatchSize` nor
    /// `slices`.
    fn train_among(&mut self, _ranks: Option<Ranks>) {}

    /// Floating-point operations of a training step for one sample, forward and backward, by a
    /// formula in the model's documentation. A multiply-add counts as two operations. Used for the
    /// model FLOPs utilization (Chowdhery et al. 2022, appendix B). `None`: unknown.
    fn flops_per_sample(&self) -> Option<f64> {
        None
    }

    /// The complete state of the model, in a fixed order: weights and running statistics.
    fn parameters(&self) -> &Parameters;

    /// The parameters, for changes by an update or a broadcast.
    fn parameters_mut(&mut self) -> &mut Parameters;
}
