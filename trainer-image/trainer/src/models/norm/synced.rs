//! Batch normalization over all samples of a pass that several ranks compute together.
//!
//! ```text
//! mean = Σ x / n                a sum over the ranks of [Σ x, number of samples]
//! var  = Σ (x - mean)² / n      another one: E[x²] - E[x]² would cancel
//! y    = (x - mean) / √(var + ε) · weight + bias
//! ```
//! There are two collectives in the forward pass and two in the backward pass. Every rank must run
//! the same operations whatever its number of samples is, so no branch may depend on that number.

use tch::{TchError, Tensor};

use super::EPSILON;
use crate::ranks::Ranks;

/// The result of a normalization over several ranks.
pub(super) struct Synced {
    /// The normalized samples of this rank, `[B, C, H, W]`.
    pub(super) y_bchw: Tensor,
    /// Mean and unbiased variance of the batch, each `[C]` and multiplied by this rank's number of
    /// samples.
    pub(super) sums: [Tensor; 2],
}

/// Normalizes this rank's samples `[B, C, H, W]`; B may be 0. Computes in the weight's type.
pub(super) fn normalize(
    x_bchw: &Tensor,
    [weight_c, bias_c]: [&Tensor; 2],
    ranks: &Ranks,
) -> Result<Synced, TchError> {
    const ALL_BUT_CHANNELS: &[i64] = &[0, 2, 3];
    let (num_samples, num_channels, height, width) = x_bchw.size4()?;
    let kind = weight_c.kind();
    let by_channel = |values_c: &Tensor| values_c.f_view([1, num_channels, 1, 1]);
    let summed =
        |values_bchw: &Tensor| values_bchw.f_sum_dim_intlist(ALL_BUT_CHANNELS, false, kind);

    let wide_bchw = x_bchw.f_to_kind(kind)?;
    // Count samples, not values: 32-bit floats represent integers up to 2^24 exactly.
    let num_own = Tensor::f_full([1], num_samples, (kind, x_bchw.device()))?;
    let sums = ranks.sum(&Tensor::f_cat(&[summed(&wide_bchw)?, num_own], 0)?)?;
    let num_all = sums.f_detach()?.f_narrow(0, num_channels, 1)?;
    let num_values = num_all.f_mul_scalar(height * width)?;
    let mean_c = sums.f_narrow(0, 0, num_channels)?.f_div(&num_values)?;

    let centered_bchw = wide_bchw.f_sub(&by_channel(&mean_c)?)?;
    let squares_c = ranks.sum(&summed(&centered_bchw.f_square()?)?)?;
    let var_c = squares_c.f_div(&num_values)?;
    let gain_c = var_c.f_add_scalar(EPSILON)?.f_rsqrt()?.f_mul(weight_c)?;
    let y_bchw = by_channel(bias_c)?.f_addcmul(&centered_bchw, &by_channel(&gain_c)?)?;

    // The unbiased variance of a single value is undefined. Its sum of squares is 0, so it counts
    // as 0.
    let num_free = num_values.f_sub_scalar(1)?.f_clamp_min(1)?;
    let unbiased_c = squares_c.f_detach()?.f_div(&num_free)?;
    let of_samples = |statistic_c: Tensor| statistic_c.f_mul_scalar(num_samples);
    Ok(Synced {
        y_bchw: y_bchw.f_to_kind(x_bchw.kind())?,
        sums: [of_samples(mean_c.f_detach()?)?, of_samples(unbiased_c)?],
    })
}
