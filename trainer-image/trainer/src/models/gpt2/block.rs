//! A block of GPT-2: attention and a perceptron, each with a shortcut and preceded by a
//! normalization.

use tch::{TchError, Tensor};

use super::super::init;
use super::super::layers::{LayerNorm, constant};
use super::super::transformer::Dropout;
use super::EPSILON;
use crate::parameters::{Parameters, Role};

/// `x · W + b` with a weight `[in, out]`, the orientation of `Conv1D` in the published files.
#[derive(Debug)]
struct Conv1D {
    weight: usize,
    bias: usize,
}

impl Conv1D {
    fn new(
        parameters: &mut Parameters,
        name: &str,
        shape: [i64; 2],
        deviation: f64,
    ) -> Result<Self, TchError> {
        let weight = init::normal(&shape, deviation)?;
        Ok(Self {
            weight: parameters.push(format!("{name}.weight"), Role::Weight, &weight)?,
            bias: constant(parameters, format!("{name}.bias"), shape[1], 0.0)?,
        })
    }

    fn apply(&self, parameters: &Parameters, x_bti: &Tensor) -> Result<Tensor, TchError> {
        let (weight, bias) = (parameters.at(self.weight), parameters.at(self.bias));
        let mut size = x_bti.size();
        size[2] = weight.size()[1];
        bias.f_addmm(&x_bti.f_flatten(0, 1)?, weight)?
            .f_reshape(size)
    }
}

#[derive(Debug)]
pub(super) struct Block {
    attention_norm: LayerNorm,
    attention: Conv1D,
    attention_out: Conv1D,
    mlp_norm: LayerNorm,
    mlp: Conv1D,
    mlp_out: Conv1D,
}

impl Block {
    pub(super) fn new(
        parameters: &mut Parameters,
        layer: i64,
        num_layers: i64,
        width: i64,
    ) -> Result<Self, TchError> {
        let name = |part: &str| format!("transformer.h.{layer}.{part}");
        // Two layers of each block add to the residual stream; this scale keeps the variance of the
        // sum.
        let scaled = 0.02 / (2.0 * num_layers as f64).sqrt();
        let inner = 4 * width;
        Ok(Self {
            attention_norm: LayerNorm::new(parameters, &name("ln_1"), width, EPSILON)?,
            attention: Conv1D::new(parameters, &name("attn.c_attn"), [width, 3 * width], 0.02)?,
            attention_out: Conv1D::new(parameters, &name("attn.c_proj"), [width, width], scaled)?,
            mlp_norm: LayerNorm::new(parameters, &name("ln_2"), width, EPSILON)?,
            mlp: Conv1D::new(parameters, &name("mlp.c_fc"), [width, inner], 0.02)?,
            mlp_out: Conv1D::new(parameters, &name("mlp.c_proj"), [inner, width], scaled)?,
        })
    }

    pub(super) fn apply(
        &self,
        parameters: &Parameters,
        x_btw: &Tensor,
        num_heads: i64,
        dropout: &mut Dropout,
    ) -> Result<Tensor, TchError> {
        let width = x_btw.size()[2];
        let normal_btw = self.attention_norm.apply(parameters, x_btw)?;
        let qkv = self
            .attention
            .apply(parameters, &normal_btw)?
            .f_split(width, 2)?;
        let mixed_btw = dropout.attention([&qkv[0], &qkv[1], &qkv[2]], num_heads, true)?;
        let out_btw = self.attention_out.apply(parameters, &mixed_btw)?;
        let x_btw = x_btw.f_add(&dropout.apply(out_btw)?)?;
        let normal_btw = self.mlp_norm.apply(parameters, &x_btw)?;
        let inner_btf = self.mlp.apply(parameters, &normal_btw)?.f_gelu("tanh")?;
        let out_btw = self.mlp_out.apply(parameters, &inner_btf)?;
        x_btw.f_add(&dropout.apply(out_btw)?)
    }
}
