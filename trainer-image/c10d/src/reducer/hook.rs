//! The form in which gradients are sent between ranks: uncompressed, rounded, or as matrices of low
//! rank.

use std::ffi::c_int;

use tch::Tensor;

use crate::ffi;

/// The form in which gradients are sent between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommHook {
    /// Uncompressed, in their own type.
    #[default]
    None,
    /// Rounded to bf16, divided by the number of ranks, and summed in bf16: half the bytes, 8 bits
    /// of precision.
    Bf16,
    /// Like [`Self::Bf16`], but in fp16: 11 bits of precision, but gradients above 65,504 overflow.
    Fp16,
    /// Each large matrix as a product of two narrow matrices.
    PowerSgd(PowerSgd),
}

/// `PowerSGD` (Vogels et al., `NeurIPS` 2019) with error feedback and warm start, as
/// `powerSGD_hook` of `PyTorch`.
///
/// A gradient `M` of `n` rows and `m` columns (the elements of a row, for tensors with more
/// dimensions) is sent as `P` (n × r) and then `Q` (m × r). `P` is the sum of `M·Q` over the ranks,
/// made orthonormal; `Q` is the mean of `Mᵀ·P`; all ranks use `P·Qᵀ` as the gradient. The
/// difference between a rank's own `M` and `P·Qᵀ` is its compression error, which it adds to its
/// `M` of the next pass. The next pass starts with this `Q`. Errors and `Q` belong to one Reducer:
/// a new Reducer starts with errors of 0 and random numbers in `Q`, the same on all ranks. So the
/// gradients depend on the history of process groups.
///
/// Vectors, matrices that would not shrink enough, tensors that are neither f32 nor f64, and the
/// parameters in [`ReducerOptions::whole`](crate::ReducerOptions::whole) are sent uncompressed.
///
/// The ranks' gradients are equal bit for bit: their computation from the sums does not depend on
/// the number of threads or on the vector unit. The exception is a 64-bit sum so near to the middle
/// between two 32-bit numbers that ranks round it differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerSgd {
    /// Largest number of columns r of `P` and `Q`; r is also at most `n` and `m`.
    pub rank: u32,
    /// A matrix is compressed if `(n + m) · r` times this rate is less than `n · m`. At least 1.
    pub min_compression_rate: u32,
    /// Number of first passes of a Reducer in which all gradients are sent uncompressed.
    pub plain_passes: u64,
    /// Seed of the initial numbers in `Q`; it must be the same on all ranks.
    pub seed: u64,
}

impl Default for PowerSgd {
    /// The defaults of `PyTorch`, but compression starts with the first pass.
    fn default() -> Self {
        Self {
            rank: 1,
            min_compression_rate: 2,
            plain_passes: 0,
            seed: 0,
        }
    }
}

impl PowerSgd {
    /// Number of columns of `P` and `Q` for a gradient of this shape; `None`: it is sent
    /// uncompressed.
    #[must_use]
    pub fn columns(&self, shape: &[i64]) -> Option<u64> {
        let (&[rows, ref row @ ..], true) = (shape, shape.len() > 1) else {
            return None;
        };
        let (rank, rate) = (self.rank.into(), self.min_compression_rate.into());
        // SAFETY: the call only computes with numbers.
        let columns = unsafe { ffi::rh_power_sgd_columns(rows, row.iter().product(), rank, rate) };
        u64::try_from(columns).ok().filter(|columns| *columns > 0)
    }

    /// Number of elements that are sent for a gradient of this shape.
    fn num_sent(&self, shape: &[i64]) -> u64 {
        let size = |dimensions: &[i64]| dimensions.iter().product::<i64>().unsigned_abs();
        match (self.columns(shape), shape) {
            (Some(columns), [rows, row @ ..]) => columns * (rows.unsigned_abs() + size(row)),
            _ => size(shape),
        }
    }
}

impl CommHook {
    /// Number of bytes of gradients that a rank passes to collectives in a pass, for parameters of
    /// f32. For [`Self::PowerSgd`] this is after its uncompressed passes. A ring all-reduce sends
    /// `2·(W - 1)/W` times as many bytes.
    #[must_use]
    pub fn payload_bytes(&self, parameters: &[Tensor]) -> u64 {
        let shapes = parameters.iter().map(Tensor::size);
        let whole = |shape: Vec<i64>| shape.iter().product::<i64>().unsigned_abs();
        match self {
            Self::None => shapes.map(|shape| 4 * whole(shape)).sum(),
            Self::Bf16 | Self::Fp16 => shapes.map(|shape| 2 * whole(shape)).sum(),
            Self::PowerSgd(settings) => shapes.map(|shape| 4 * settings.num_sent(&shape)).sum(),
        }
    }

    /// The number by which the bridge identifies the hook.
    pub(super) const fn code(&self) -> c_int {
        match self {
            Self::None => 0,
            Self::Bf16 => 1,
            Self::Fp16 => 2,
            Self::PowerSgd(_) => 3,
        }
    }

    /// The settings that the bridge reads for [`Self::PowerSgd`].
    pub(super) fn power_sgd(&self) -> ffi::RhPowerSgd {
        let Self::PowerSgd(settings) = *self else {
            return ffi::RhPowerSgd::default();
        };
        let PowerSgd {
            rank,
            min_compression_rate,
            plain_passes,
            seed,
        } = settings;
        ffi::RhPowerSgd {
            rank: rank.into(),
            min_compression_rate: min_compression_rate.into(),
            plain_passes,
            seed,
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    const SETTINGS: PowerSgd = PowerSgd {
        rank: 2,
        min_compression_rate: 2,
        plain_passes: 0,
        seed: 0,
    };

    #[test]
    fn only_matrices_that_shrink_enough_are_compressed() {
        for (shape, columns) in [
            (&[][..], None),
            (&[1_000_000], None),
            (&[64, 64], Some(2)),
            (&[64, 64, 3, 3], Some(2)),
            // (8 + 8) · 2 · 2 = 8 · 8.
            (&[8, 8], None),
            (&[8, 9], Some(2)),
            // A product would not save elements of a single column or row.
            (&[1_000, 1], None),
            (&[1, 1_000], None),
            (&[10, 512], Some(2)),
            (&[4, 512], None),
            (&[0, 512], None),
        ] {
            assert_eq!(SETTINGS.columns(shape), columns, "{shape:?}");
        }
        let narrow = PowerSgd {
            rank: 64,
            min_compression_rate: 1,
            ..SETTINGS
        };
        // With as many columns as the matrix has rows, the factors would have more elements.
        assert_eq!(narrow.columns(&[16, 4096]), None);
        assert_eq!(narrow.columns(&[4096, 4096]), Some(64));
    }

    #[test]
    fn hook_computes_the_number_of_bytes_sent() {
        let parameters =
            [[64, 96], [4, 4]].map(|shape| Tensor::zeros(shape, (Kind::Float, Device::Cpu)));
        for (hook, bytes) in [
            (CommHook::None, 4 * (64 * 96 + 16)),
            (CommHook::Bf16, 2 * (64 * 96 + 16)),
            (CommHook::Fp16, 2 * (64 * 96 + 16)),
            (CommHook::PowerSgd(SETTINGS), 4 * (2 * (64 + 96) + 16)),
        ] {
            assert_eq!(hook.payload_bytes(&parameters), bytes, "{hook:?}");
        }
    }
}
