//! A block of Llama: attention and a perceptron with a gate, each with a shortcut and preceded by a
//! normalization.

use roundhouse_contract::trainer::model::Model as ModelConfig;
use tch::{TchError, Tensor};

use super::super::layers::{Linear, RmsNorm};
use super::super::transformer::Dropout;
use super::attention::Attention;
use super::rotation::Rotation;
use crate::parameters::Parameters;

/// Sizes of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) num_heads: i64,
    pub(super) num_key_value_heads: i64,
    pub(super) width: i64,
    pub(super) inner_width: i64,
    /// Constant that normalizations add to the mean of squares.
    pub(super) epsilon: f64,
}

impl Shape {
    pub(super) fn of(config: &ModelConfig) -> Self {
        Self {
            num_heads: config.heads().into(),
            num_key_value_heads: config.num_key_value_heads().into(),
            width: config.width().into(),
            inner_width: config.inner_width().into(),
            epsilon: config.norm_epsilon(),
        }
    }

    pub(super) const fn head_size(self) -> i64 {
        self.width / self.num_heads
    }

    /// Width of the keys, and of the values, of all heads.
    pub(super) const fn key_value_width(self) -> i64 {
        self.num_key_value_heads * self.head_size()
    }

    /// Number of weights in the matrices of a block.
    pub(super) const fn num_weights(self) -> i64 {
        self.width * (2 * self.width + 2 * self.key_value_width() + 3 * self.inner_width)
    }
}

#[derive(Debug)]
pub(super) struct Block {
    attention_norm: RmsNorm,
    attention: Attention,
    mlp_norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Block {
    pub(super) fn new(p: &mut Parameters, layer: i64, shape: Shape) -> Result<Self, TchError> {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let Shape {
            width,
            inner_width,
            epsilon,
            ..
        } = shape;
        Ok(Self {
            attention: Attention::new(p, &name("self_attn"), shape)?,
            gate: Linear::without_bias(p, &name("mlp.gate_proj"), width, inner_width)?.colwise(p),
            up: Linear::without_bias(p, &name("mlp.up_proj"), width, inner_width)?.colwise(p),
            down: Linear::without_bias(p, &name("mlp.down_proj"), inner_width, width)?.rowwise(p),
            attention_norm: RmsNorm::new(p, &name("input_layernorm"), width, epsilon)?,
            mlp_norm: RmsNorm::new(p, &name("post_attention_layernorm"), width, epsilon)?,
        })
    }

    pub(super) fn apply(
        &self,
        p: &Parameters,
        x_btw: &Tensor,
        rotation: &Rotation,
        dropout: &mut Dropout,
    ) -> Result<Tensor, TchError> {
        let normal_btw = self.attention_norm.apply(p, x_btw)?;
        let out_btw = self.attention.apply(p, &normal_btw, rotation, dropout)?;
        let x_btw = x_btw.f_add(&out_btw)?;
        let normal_btw = self.mlp_norm.apply(p, &x_btw)?;
        let normal_btw = p.input_of_colwise(&normal_btw)?;
        let gate_btf = self.gate.apply(p, &normal_btw)?.f_silu()?;
        let inner_btf = gate_btf.f_mul(&self.up.apply(p, &normal_btw)?)?;
        x_btw.f_add(&self.down.apply_rowwise(p, &inner_btf)?)
    }
}
