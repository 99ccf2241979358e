//! What of the gradients travels between ranks: all of them, rounded ones, or matrices of low rank.

use std::ffi::c_int;

use tch::Tensor;

use crate::ffi;

/// What of the gradients travels between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommHook {
    /// All of them, in their own type.
    #[default]
    None,
    /// Rounded to bf16, divided by the number of ranks, summed in bf16: half the bytes, 8 bits of precision.
    Bf16,
    /// As [`Self::Bf16`] in fp16: 11 bits of precision, but gradients above 65,504 overflow.
    Fp16,
    /// Each large matrix as a product of two narrow ones.
    PowerSgd(PowerSgd),
}

/// `PowerSGD` (Vogels et al., `NeurIPS` 2019) with error feedback and warm start, as `powerSGD_hook` of `PyTorch`.
///
/// A gradient of `n` rows and `m` columns (the elements of a row of a tensor of more dimensions) travels as `P` (n × r)
/// and then `Q` (m × r): `P` is the sum of `M·Q` over the ranks, made orthonormal; `Q` the mean of `Mᵀ·P`; all ranks go
/// on with `P·Qᵀ`. What that lacks of a rank's own `M` is added to its `M` of the next pass, and `Q` is where the next pass
/// begins. Both are of one Reducer: a new one begins with errors of 0 and with random numbers in `Q`, the same on all
/// ranks. So the gradients depend on which ranks there were, and since when.
///
/// Vectors, matrices that would not shrink enough, tensors that are neither f32 nor f64, and those of
/// [`ReducerOptions::whole`](crate::ReducerOptions::whole) travel whole.
///
/// The ranks' gradients are equal bit for bit: what each computes from the sums does not depend on its number of threads
/// or on its vector unit. The exception is a 64-bit sum so near to a border between two 32-bit numbers that ranks round it
/// to different ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerSgd {
    /// Most columns of `P` and `Q`: r is at most this, `n` and `m`.
    pub rank: u32,
    /// A matrix is compressed if `(n + m) · r` elements, this many times, are less than its `n · m`. At least 1.
    pub min_compression_rate: u32,
    /// In so many passes of a Reducer all gradients travel whole.
    pub plain_passes: u64,
    /// Of the numbers with which `Q` begins; the same on all ranks.
    pub seed: u64,
}

impl Default for PowerSgd {
    /// As `PyTorch`, but compressed from the first pass on.
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
    /// How many columns `P` and `Q` of a gradient of this shape have; `None`: it travels whole.
    #[must_use]
    pub fn columns(&self, shape: &[i64]) -> Option<u64> {
        let (&[rows, ref row @ ..], true) = (shape, shape.len() > 1) else {
            return None;
        };
        let (rank, rate) = (self.rank.into(), self.min_compression_rate.into());
        // SAFETY: a function of numbers.
        let columns = unsafe { ffi::rh_power_sgd_columns(rows, row.iter().product(), rank, rate) };
        u64::try_from(columns).ok().filter(|columns| *columns > 0)
    }

    /// How many numbers a gradient of this shape travels as.
    fn num_sent(&self, shape: &[i64]) -> u64 {
        let size = |dimensions: &[i64]| dimensions.iter().product::<i64>().unsigned_abs();
        match (self.columns(shape), shape) {
            (Some(columns), [rows, row @ ..]) => columns * (rows.unsigned_abs() + size(row)),
            _ => size(shape),
        }
    }
}

impl CommHook {
    /// How many bytes of gradients a rank gives to collectives in a pass, for parameters of f32. Of
    /// [`Self::PowerSgd`]: after its plain passes. On the wire a ring moves `2·(W - 1)/W` times as many.
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

    /// As the bridge tells hooks apart.
    pub(super) const fn code(&self) -> c_int {
        match self {
            Self::None => 0,
            Self::Bf16 => 1,
            Self::Fp16 => 2,
            Self::PowerSgd(_) => 3,
        }
    }

    /// What the bridge reads with the code of [`Self::PowerSgd`].
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
            // One column or row has nothing that a product would save.
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
        // As many columns as the matrix has rows would be more numbers than it has.
        assert_eq!(narrow.columns(&[16, 4096]), None);
        assert_eq!(narrow.columns(&[4096, 4096]), Some(64));
    }

    #[test]
    fn a_hook_tells_how_many_bytes_travel() {
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
