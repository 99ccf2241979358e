//! The seam between the training loop and what is trained.

use tch::{TchError, Tensor};

use crate::batch::Batch;
use crate::parameters::Parameters;
use crate::ranks::Ranks;

/// What a pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A pass of a training step. Random numbers (dropout, masks) are a function of these three and of nothing
    /// else, so that they do not depend on the number of workers.
    Train {
        /// Seed of the training.
        seed: u64,
        /// The step, from 1.
        step: u64,
        /// Which fixed part of the global batch this pass computes, from 0.
        slice: u64,
    },
    /// A pass of an evaluation: no dropout, running statistics.
    Evaluate,
}

/// Sums over the samples of a batch. Sums, because sums of parts add up whatever the parts are; the loop divides
/// by the number of samples of the global batch.
#[derive(Debug)]
pub struct LossSum {
    /// Sum of the samples' losses: a scalar with a graph when the mode is [`Mode::Train`]. A sample with many
    /// targets (a sequence) counts with their mean.
    pub loss: Tensor,
    /// Sums of what an evaluation counts, such as `("top1", number of right samples)`, as scalars on the device.
    /// Empty while training. Classifiers count `top1` and `top5`; language models count `nll`, the sum of the
    /// negative log-likelihoods of all targets, and `tokens`, their number, so that the perplexity is
    /// exp(nll / tokens).
    pub counts: Vec<(&'static str, Tensor)>,
}

/// A model and its loss.
///
/// # Guarantees the implementor gives
/// `loss` of a batch is a function of the parameters, the batch and the mode: it changes nothing, and it draws
/// random numbers only as [`Mode::Train`] says. An empty batch gives a loss of 0 and gradients of 0.
pub trait Task: std::fmt::Debug {
    /// Computes the sum of the losses of a batch.
    ///
    /// # Errors
    /// The batch does not have the shape that the model was built for.
    fn loss(&self, batch: &Batch, mode: Mode) -> Result<LossSum, TchError>;

    /// A batch is computed in groups of so many consecutive places, over which statistics are taken: the ranks' parts
    /// and their passes are cut at multiples of it. 1: samples do not depend on each other.
    fn group_size(&self) -> u64 {
        1
    }

    /// Told at the start of each generation, before its first pass: the ranks that compute each step together, or
    /// `None` for a process alone, and before a pass whose gradients are to be this rank's own. For a model whose loss
    /// is a function of the whole batch, such as one with batch normalization over all ranks; others have no use for
    /// it.
    ///
    /// A model that sums over the ranks does so in every pass of [`Mode::Train`], in the same order on all ranks,
    /// also for an empty batch, and never in one of [`Mode::Evaluate`]. It must keep a batch in one pass:
    /// the configuration has neither `microBatchSize` nor `slices`.
    fn train_among(&mut self, _ranks: Option<Ranks>) {}

    /// Floating-point operations of a training step for one sample, forward and backward, as the formula of the
    /// model's documentation says; a multiplication and an addition are two. For the model FLOPs utilization
    /// (Chowdhery et al. 2022, appendix B). `None`: unknown.
    fn flops_per_sample(&self) -> Option<f64> {
        None
    }

    /// Everything that the model remembers, in a fixed order: weights, and running statistics.
    fn parameters(&self) -> &Parameters;

    /// The same, to be changed by an update or a broadcast.
    fn parameters_mut(&mut self) -> &mut Parameters;
}
