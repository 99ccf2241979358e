//! Batch normalization that can give the same result for every number of workers.

use roundhouse_contract::trainer::model::{BatchNorm as OverConfig, Model as ModelConfig};
use tch::{TchError, Tensor};

use super::{Pass, init};
use crate::parameters::{Parameters, Role};

mod synced;

use synced::Synced;

/// Weight of the newest batch in the running statistics, as in `PyTorch`.
const MOMENTUM: f64 = 0.1;
/// Constant that is added to the variance, as in `PyTorch`.
const EPSILON: f64 = 1e-5;

/// The samples over which a batch normalization computes its mean and variance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Groups {
    /// Ghost batches (Hoffer et al. 2017): fixed groups of this number of consecutive places of the
    /// *global* batch. The caller cuts the global batch only between groups, so a pass has whole
    /// groups; only the last group of the global batch may be smaller. The result is a function of
    /// the global batch, and does not depend on how it is divided among ranks and passes.
    Of(i64),
    /// All samples of the global batch (`SyncBatchNorm`): the ranks sum their statistics in each
    /// pass. The result is a function of the global batch up to the rounding of these sums. A
    /// process that trains alone uses the samples of its pass.
    Batch,
    /// All samples of a pass, as PyTorch's `BatchNorm2d` in each process. The result depends on the
    /// number of workers and on the size of a pass.
    Pass,
}

impl Groups {
    /// The groups that a valid configuration of a model selects.
    #[must_use]
    pub fn from_config(config: &ModelConfig) -> Self {
        match (config.batch_norm(), config.ghost_batch()) {
            (Some(OverConfig::Sync), _) => Self::Batch,
            (Some(OverConfig::Ghost), Some(size)) => Self::Of(size.into()),
            (Some(OverConfig::Ghost | OverConfig::PerRank) | None, _) => Self::Pass,
        }
    }
}

/// Normalization of each channel of `[B, C, H, W]` (Ioffe and Szegedy 2015).
///
/// Training uses the statistics of each group. It updates the running statistics with their mean
/// over groups, weighted by samples. Evaluation uses the running statistics.
#[derive(Debug)]
pub struct BatchNorm {
    weight: usize,
    bias: usize,
    running_mean: usize,
    running_var: usize,
    groups: Groups,
}

impl BatchNorm {
    /// Adds `<name>.weight`, `.bias`, `.running_mean` and `.running_var`, each `[C]`.
    ///
    /// # Errors
    /// The tensors exceed the memory.
    pub fn new(
        parameters: &mut Parameters,
        name: &str,
        num_channels: i64,
        gain: f64,
        groups: Groups,
    ) -> Result<Self, TchError> {
        let statistic = Role::Statistic { momentum: MOMENTUM };
        let mut add = |field: &str, role, value| {
            let value = init::constant(&[num_channels], value)?;
            parameters.push(format!("{name}.{field}"), role, &value)
        };
        Ok(Self {
            weight: add("weight", Role::Weight, gain)?,
            bias: add("bias", Role::Weight, 0.0)?,
            running_mean: add("running_mean", statistic, 0.0)?,
            running_var: add("running_var", statistic, 1.0)?,
            groups,
        })
    }

    /// Normalizes `[B, C, H, W]`.
    ///
    /// # Errors
    /// The tensor has another number of channels.
    pub fn apply(
        &self,
        parameters: &Parameters,
        x_bchw: &Tensor,
        pass: &mut Pass,
    ) -> Result<Tensor, TchError> {
        let at = |place| parameters.at(place);
        if !pass.trains() {
            let (mean, var) = (
                at(self.running_mean).f_detach()?,
                at(self.running_var).f_detach()?,
            );
            return self.normalize(parameters, x_bchw, [&mean, &var], false);
        }
        let (y_bchw, [mean, var]) = match (self.groups, pass.ranks()) {
            (Groups::Batch, Some(ranks)) => {
                let parts = [self.weight, self.bias].map(at);
                let Synced { y_bchw, sums } = synced::normalize(x_bchw, parts, ranks)?;
                (y_bchw, sums)
            }
            (Groups::Of(size), _) => self.by_groups(parameters, x_bchw, size)?,
            (Groups::Batch | Groups::Pass, _) => {
                self.by_groups(parameters, x_bchw, x_bchw.size()[0])?
            }
        };
        pass.note(self.running_mean, mean);
        pass.note(self.running_var, var);
        Ok(y_bchw)
    }

    /// Normalizes each group of `group_size` samples by its own statistics. Also returns the sums
    /// of the statistics, weighted by samples.
    fn by_groups(
        &self,
        parameters: &Parameters,
        x_bchw: &Tensor,
        group_size: i64,
    ) -> Result<(Tensor, [Tensor; 2]), TchError> {
        // Splitting is a view. One call of libtorch's own kernel per group takes 49 to 52 ms for
        // [64, 64, 32, 32]. One call with the groups as channels needs two transposing copies and
        // takes 53 to 55 ms.
        let parts = if group_size < x_bchw.size()[0] {
            x_bchw.f_split(group_size, 0)?
        } else {
            vec![x_bchw.shallow_clone()]
        };
        let mut sums = [self.zeros(parameters)?, self.zeros(parameters)?];
        let mut outputs = Vec::with_capacity(parts.len());
        for part in &parts {
            let statistics = [self.zeros(parameters)?, self.zeros(parameters)?];
            let [mean, var] = &statistics;
            outputs.push(self.normalize(parameters, part, [mean, var], true)?);
            add_weighted(&mut sums, &statistics, part)?;
        }
        let y_bchw = match outputs.len() {
            1 => outputs.remove(0),
            _ => Tensor::f_cat(&outputs, 0)?,
        };
        Ok((y_bchw, sums))
    }

    /// Normalizes samples by their own statistics. With a momentum of 1, libtorch writes the mean
    /// and the unbiased variance of these samples to the statistics.
    fn normalize(
        &self,
        parameters: &Parameters,
        x_bchw: &Tensor,
        [mean, var]: [&Tensor; 2],
        training: bool,
    ) -> Result<Tensor, TchError> {
        x_bchw.f_batch_norm(
            Some(parameters.at(self.weight)),
            Some(parameters.at(self.bias)),
            Some(mean),
            Some(var),
            training,
            1.0,
            EPSILON,
            true,
        )
    }

    fn zeros(&self, parameters: &Parameters) -> Result<Tensor, TchError> {
        let weight = parameters.at(self.weight);
        Tensor::f_zeros(weight.size(), (weight.kind(), weight.device()))
    }
}

/// Adds a group's statistics, each multiplied by the group's number of samples. The unbiased
/// variance of a single value is undefined and counts as 0.
fn add_weighted(
    sums: &mut [Tensor; 2],
    statistics: &[Tensor; 2],
    part_bchw: &Tensor,
) -> Result<(), TchError> {
    let size = part_bchw.size();
    let num_samples = size[0];
    let num_values = num_samples * size.iter().skip(2).product::<i64>();
    let num_statistics = if num_values > 1 { 2 } else { 1 };
    for (sum, statistic) in sums.iter_mut().zip(statistics).take(num_statistics) {
        let _ = sum.f_add_(&statistic.f_mul_scalar(num_samples)?)?;
    }
    Ok(())
}
