//! Initial values as in PyTorch, torchvision and Transformers, drawn from libtorch's generator.

use tch::{Device, Kind, TchError, Tensor};

const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

pub(super) fn constant(shape: &[i64], value: f64) -> Result<Tensor, TchError> {
    Tensor::f_full(shape, value, CPU)
}

/// Normal distribution with mean 0 and the given standard deviation.
pub(super) fn normal(shape: &[i64], deviation: f64) -> Result<Tensor, TchError> {
    Tensor::f_zeros(shape, CPU)?.f_normal_(0.0, deviation)
}

/// Normal distribution with the variance 2 / fan-out for a convolution `[out, in, kH, kW]`. It
/// keeps the magnitude of gradients through `ReLU` (He et al. 2015).
pub(super) fn kaiming_fan_out(shape: &[i64]) -> Result<Tensor, TchError> {
    let fan_out = shape[0] * shape.iter().skip(2).product::<i64>();
    normal(shape, (2.0 / fan_out as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::seeded;

    #[test]
    fn convolution_variance_is_two_over_fan_out() {
        let weight = seeded(1, || kaiming_fan_out(&[64, 32, 3, 3])).unwrap();
        let deviation = weight.std(false).double_value(&[]);
        let expected = (2.0_f64 / (64.0 * 9.0)).sqrt();
        assert!((deviation / expected - 1.0).abs() < 0.02, "{deviation}");
    }
}
