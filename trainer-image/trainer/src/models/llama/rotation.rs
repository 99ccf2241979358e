//! Rotary positions (Su et al. 2021), in the layout of Transformers: element i of a head is rotated
//! with element i + D / 2.

use tch::{Device, Kind, TchError, Tensor};

/// Cosines and sines `[T, D / 2]` of the angles of T places.
#[derive(Debug)]
pub(super) struct Rotation {
    cos_td: Tensor,
    sin_td: Tensor,
}

impl Rotation {
    /// The angle of pair i at place t is `t · theta^(-2i / D)`. D is even.
    pub(super) fn new(
        length: i64,
        head_size: i64,
        theta: f64,
        device: Device,
    ) -> Result<Self, TchError> {
        let options = (Kind::Float, device);
        let exponents_d =
            Tensor::f_arange_start_step(0, head_size, 2, options)?.f_div_scalar(head_size)?;
        let frequencies_d = Tensor::f_pow_scalar(theta, &exponents_d)?.f_reciprocal()?;
        let angles_td = Tensor::f_arange(length, options)?.f_outer(&frequencies_d)?;
        Ok(Self {
            cos_td: angles_td.f_cos()?,
            sin_td: angles_td.f_sin()?,
        })
    }

    /// The same tensors, for another owner.
    pub(super) fn share(&self) -> Self {
        Self {
            cos_td: self.cos_td.shallow_clone(),
            sin_td: self.sin_td.shallow_clone(),
        }
    }

    /// Rotates queries or keys `[B, H, T, D]`.
    pub(super) fn apply(&self, x_bhtd: &Tensor) -> Result<Tensor, TchError> {
        let halves = x_bhtd.f_chunk(2, -1)?;
        let (a, b) = (&halves[0], &halves[1]);
        let (cos, sin) = (&self.cos_td, &self.sin_td);
        let rotated = [
            a.f_mul(cos)?.f_sub(&b.f_mul(sin)?)?,
            b.f_mul(cos)?.f_add(&a.f_mul(sin)?)?,
        ];
        Tensor::f_cat(&rotated, -1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_rotate_by_the_angle_of_their_place() {
        let rotation = Rotation::new(3, 4, 100.0, Device::Cpu).unwrap();
        let x = Tensor::from_slice(&[1.0_f32, 1.0, 0.0, 0.0]).expand([1, 1, 3, 4], false);
        let y = rotation.apply(&x).unwrap();
        for place in 0..3 {
            let angles = [f64::from(place), f64::from(place) / 10.0];
            for (pair, angle) in (0..).zip(angles) {
                let at = |element| y.double_value(&[0, 0, place.into(), element]);
                assert!((at(pair) - angle.cos()).abs() < 1e-6, "place {place}");
                assert!((at(pair + 2) - angle.sin()).abs() < 1e-6, "place {place}");
            }
        }
    }
}
