//! Attention whose heads of queries share heads of keys and values (Ainslie et al. 2023).

use tch::{TchError, Tensor};

use super::super::layers::Linear;
use super::super::transformer::{Dropout, in_heads};
use super::block::Shape;
use super::rotation::Rotation;
use crate::parameters::Parameters;

#[derive(Debug)]
pub(super) struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    num_heads: i64,
    num_key_value_heads: i64,
}

impl Attention {
    pub(super) fn new(p: &mut Parameters, name: &str, shape: Shape) -> Result<Self, TchError> {
        let width = shape.width;
        let linear = |p: &mut Parameters, part: &str, num_outputs: i64| {
            Linear::without_bias(p, &format!("{name}.{part}"), width, num_outputs)
        };
        let key_value_width = shape.key_value_width();
        Ok(Self {
            query: linear(p, "q_proj", width)?.colwise(p),
            key: linear(p, "k_proj", key_value_width)?.colwise(p),
            value: linear(p, "v_proj", key_value_width)?.colwise(p),
            out: linear(p, "o_proj", width)?.rowwise(p),
            num_heads: shape.num_heads,
            num_key_value_heads: shape.num_key_value_heads,
        })
    }

    pub(super) fn apply(
        &self,
        p: &Parameters,
        x_btw: &Tensor,
        rotation: &Rotation,
        dropout: &mut Dropout,
    ) -> Result<Tensor, TchError> {
        let x_btw = p.input_of_colwise(x_btw)?;
        let tensor_size = i64::from(p.tensor_size());
        let heads = |linear: &Linear, num_heads| {
            in_heads(&linear.apply(p, &x_btw)?, num_heads / tensor_size)
        };
        let q = rotation.apply(&heads(&self.query, self.num_heads)?)?;
        let k = rotation.apply(&heads(&self.key, self.num_key_value_heads)?)?;
        let v = heads(&self.value, self.num_key_value_heads)?;
        let (k, v) = (self.repeat(&k)?, self.repeat(&v)?);
        let mixed_btw = dropout.attention_of_heads([&q, &k, &v], true)?;
        self.out.apply_rowwise(p, &mixed_btw)
    }

    /// Repeats each head of keys or values for its heads of queries. Not every kernel of attention
    /// takes fewer heads of keys than of queries.
    fn repeat(&self, x_bgtd: &Tensor) -> Result<Tensor, TchError> {
        let num_repeats = self.num_heads / self.num_key_value_heads;
        x_bgtd
            .f_unsqueeze(2)?
            .f_expand([-1, -1, num_repeats, -1, -1], false)?
            .f_flatten(1, 2)
    }
}
