//! An image classifier as a task: a network, cross entropy, and the number of correct samples.

use tch::{TchError, Tensor};

use super::Pass;
use crate::batch::Batch;
use crate::loss;
use crate::parameters::Parameters;
use crate::ranks::Ranks;
use crate::task::{LossSum, Mode, Task};

/// Computes one score per class from images. The weights are in [`Parameters`]; a network stores
/// their places.
pub trait Network: std::fmt::Debug {
    /// Scores `[B, num_classes]` of images `[B, C, H, W]`, B > 0 unless [`Self::sums_over_ranks`].
    ///
    /// # Errors
    /// The images do not have the shape of the network.
    fn scores(
        &self,
        parameters: &Parameters,
        images_bchw: &Tensor,
        pass: &mut Pass,
    ) -> Result<Tensor, TchError>;

    /// Whether training sums over the ranks that compute a pass: see [`Task::train_among`]. If so,
    /// a rank without samples also calls [`Self::scores`], with B = 0.
    fn sums_over_ranks(&self) -> bool {
        false
    }

    /// Number of multiply-adds of a forward pass for one image.
    fn multiply_adds(&self) -> f64;
}

/// A network with the cross entropy as its loss.
#[derive(Debug)]
pub struct Classifier {
    parameters: Parameters,
    network: Box<dyn Network>,
    label_smoothing: f64,
    group_size: u64,
    /// The ranks, if the network sums over them.
    ranks: Option<Ranks>,
}

impl Classifier {
    /// A classifier with the network that `build` creates. `build` adds the weights to the
    /// parameters.
    ///
    /// # Errors
    /// The weights exceed the memory.
    pub fn new<N: Network + 'static>(
        label_smoothing: f64,
        build: impl FnOnce(&mut Parameters) -> Result<N, TchError>,
    ) -> Result<Self, TchError> {
        let mut parameters = Parameters::default();
        let network = Box::new(build(&mut parameters)?);
        Ok(Self {
            parameters,
            network,
            label_smoothing,
            group_size: 1,
            ranks: None,
        })
    }

    /// Sets the number of places of a group; see [`Task::group_size`].
    #[must_use]
    pub fn in_groups_of(self, group_size: u64) -> Self {
        Self { group_size, ..self }
    }

    /// Scores `[B, num_classes]` of images `[B, C, H, W]`.
    ///
    /// # Errors
    /// The images do not have the shape of the network.
    pub fn scores(&self, images_bchw: &Tensor, mode: Mode) -> Result<Tensor, TchError> {
        let mut pass = Pass::new(mode);
        self.network
            .scores(&self.parameters, images_bchw, &mut pass)
    }
}

impl Task for Classifier {
    fn loss(&self, batch: &Batch, mode: Mode) -> Result<LossSum, TchError> {
        let mut pass = Pass::new(mode).among(self.ranks.clone());
        // The other ranks wait for this rank in their sums, even if it has no samples.
        let is_awaited = pass.trains() && pass.ranks().is_some();
        if batch.num_samples == 0 && !is_awaited {
            return Ok(LossSum {
                loss: self.parameters.no_loss()?,
                counts: Vec::new(),
            });
        }
        let scores_bk = self
            .network
            .scores(&self.parameters, &batch.inputs, &mut pass)?;
        if !pass.trains() {
            return Ok(LossSum {
                loss: loss::of_classes(&scores_bk, &batch.targets, 0.0)?,
                counts: loss::count_classes(&scores_bk, &batch.targets)?,
            });
        }
        let loss = loss::of_classes(&scores_bk, &batch.targets, self.label_smoothing)?;
        let loss = match pass.statistics_term(&self.parameters)? {
            Some(term) => loss.f_add(&term)?,
            None => loss,
        };
        Ok(LossSum {
            loss,
            counts: Vec::new(),
        })
    }

    /// Two operations per multiply-add. The backward pass costs twice the forward pass: one product
    /// for the gradient of the inputs, and one for the gradient of the weights.
    fn flops_per_sample(&self) -> Option<f64> {
        Some(3.0 * 2.0 * self.network.multiply_adds())
    }

    fn group_size(&self) -> u64 {
        self.group_size
    }

    fn train_among(&mut self, ranks: Option<Ranks>) {
        self.ranks = ranks.filter(|_| self.network.sums_over_ranks());
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }
}
