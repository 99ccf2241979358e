//! Initial values, as PyTorch, torchvision and Transformers choose them. They are drawn from libtorch's generator.

use tch::{Device, Kind, TchError, Tensor};

const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

/// A constant.
pub(super) fn constant(shape: &[i64], value: f64) -> Result<Tensor, TchError> {
    Tensor::f_full(shape, value, CPU)
}

/// Normal with mean 0.
pub(super) fn normal(shape: &[i64], deviation: f64) -> Result<Tensor, TchError> {
    Tensor::f_zeros(shape, CPU)?.f_normal_(0.0, deviation)
}

/// Normal with the variance 2 / fan-out, which keeps the size of gradients through `ReLU` (He et al. 2015), for a
/// convolution `[out, in, kH, kW]`.
pub(super) fn kaiming_fan_out(shape: &[i64]) -> Result<Tensor, TchError> {
    let fan_out = shape[0] * shape.iter().skip(2).product::<i64>();
    normal(shape, (2.0 / fan_out as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::seeded;

    #[test]
    fn a_convolution_has_the_variance_two_over_its_fan_out() {
        let weight = seeded(1, || kaiming_fan_out(&[64, 32, 3, 3])).unwrap();
        let deviation = weight.std(false).double_value(&[]);
        let expected = (2.0_f64 / (64.0 * 9.0)).sqrt();
        assert!((deviation / expected - 1.0).abs() < 0.02, "{deviation}");
    }
}
