//! A layer of BERT: attention and a perceptron, each with a shortcut and followed by a
//! normalization.

use tch::{TchError, Tensor};

use super::super::layers::{LayerNorm, Linear};
use super::super::transformer::Dropout;
use super::EPSILON;
use crate::parameters::Parameters;

#[derive(Debug)]
pub(super) struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    attention_out: Linear,
    attention_norm: LayerNorm,
    intermediate: Linear,
    out: Linear,
    norm: LayerNorm,
}

impl Layer {
    pub(super) fn new(p: &mut Parameters, layer: i64, width: i64) -> Result<Self, TchError> {
        let name = |part: &str| format!("bert.encoder.layer.{layer}.{part}");
        let inner = 4 * width;
        let attention_norm = name("attention.output.LayerNorm");
        Ok(Self {
            query: Linear::normal(p, &name("attention.self.query"), width, width)?.colwise(p),
            key: Linear::normal(p, &name("attention.self.key"), width, width)?.colwise(p),
            value: Linear::normal(p, &name("attention.self.value"), width, width)?.colwise(p),
            attention_out: Linear::normal(p, &name("attention.output.dense"), width, width)?
                .rowwise(p),
            attention_norm: LayerNorm::new(p, &attention_norm, width, EPSILON)?,
            intermediate: Linear::normal(p, &name("intermediate.dense"), width, inner)?.colwise(p),
            out: Linear::normal(p, &name("output.dense"), inner, width)?.rowwise(p),
            norm: LayerNorm::new(p, &name("output.LayerNorm"), width, EPSILON)?,
        })
    }

    pub(super) fn apply(
        &self,
        p: &Parameters,
        x_btw: &Tensor,
        num_heads: i64,
        dropout: &mut Dropout,
    ) -> Result<Tensor, TchError> {
        let input_btw = p.input_of_colwise(x_btw)?;
        let q_btw = self.query.apply(p, &input_btw)?;
        let k_btw = self.key.apply(p, &input_btw)?;
        let v_btw = self.value.apply(p, &input_btw)?;
        let num_heads = num_heads / i64::from(p.tensor_size());
        let mixed_btw = dropout.attention([&q_btw, &k_btw, &v_btw], num_heads, false)?;
        let out_btw = dropout.apply(self.attention_out.apply_rowwise(p, &mixed_btw)?)?;
        let x_btw = self.attention_norm.apply(p, &out_btw.f_add(x_btw)?)?;
        let inner_btf = self
            .intermediate
            .apply(p, &p.input_of_colwise(&x_btw)?)?
            .f_gelu("none")?;
        let out_btw = dropout.apply(self.out.apply_rowwise(p, &inner_btf)?)?;
        self.norm.apply(p, &out_btw.f_add(&x_btw)?)
    }
}
