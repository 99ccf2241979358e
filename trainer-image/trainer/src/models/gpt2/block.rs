//! A block of GPT-2: attention and a perceptron, each with a shortcut and preceded by a
//! normalization.

use roundhouse_contract::trainer::model::Model as ModelConfig;
use tch::{TchError, Tensor};

use super::super::init;
use super::super::layers::{LayerNorm, constant};
use super::super::switch::Mixture;
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

    /// With tensor parallelism each process has some outputs of each of `groups` equal groups.
    fn colwise(self, parameters: &mut Parameters, groups: i64) -> Self {
        parameters.cut(self.weight, 1, groups);
        parameters.cut(self.bias, 0, groups);
        self
    }

    /// With tensor parallelism each process has some of the inputs: see [`Self::apply_rowwise`].
    fn rowwise(self, parameters: &mut Parameters) -> Self {
        parameters.cut(self.weight, 0, 1);
        self
    }

    fn apply(&self, parameters: &Parameters, x_bti: &Tensor) -> Result<Tensor, TchError> {
        let (weight, bias) = (parameters.at(self.weight), parameters.at(self.bias));
        let mut size = x_bti.size();
        size[2] = weight.size()[1];
        bias.f_addmm(&x_bti.f_flatten(0, 1)?, weight)?
            .f_reshape(size)
    }

    /// The outputs for all inputs, of which each process has some.
    fn apply_rowwise(&self, parameters: &Parameters, x_bti: &Tensor) -> Result<Tensor, TchError> {
        if parameters.division().tensor_parallel.is_none() {
            return self.apply(parameters, x_bti);
        }
        let part = x_bti.f_matmul(parameters.at(self.weight))?;
        parameters.output_of_rowwise(&part, Some(self.bias))
    }
}

/// The second half of a block.
#[derive(Debug)]
enum FeedForward {
    Perceptron { mlp: Conv1D, mlp_out: Conv1D },
    Experts(Mixture),
}

#[derive(Debug)]
pub(super) struct Block {
    attention_norm: LayerNorm,
    attention: Conv1D,
    attention_out: Conv1D,
    mlp_norm: LayerNorm,
    feed_forward: FeedForward,
}

impl Block {
    pub(super) fn new(
        parameters: &mut Parameters,
        layer: i64,
        config: &ModelConfig,
    ) -> Result<Self, TchError> {
        let (num_layers, width) = (config.layers(), i64::from(config.width()));
        let name = |part: &str| format!("transformer.h.{layer}.{part}");
        // Two layers of each block add to the residual stream; this scale keeps the variance of the
        // sum.
        let scaled = 0.02 / (2.0 * f64::from(num_layers)).sqrt();
        let inner = 4 * width;
        Ok(Self {
            attention_norm: LayerNorm::new(parameters, &name("ln_1"), width, EPSILON)?,
            attention: Conv1D::new(parameters, &name("attn.c_attn"), [width, 3 * width], 0.02)?
                .colwise(parameters, 3),
            attention_out: Conv1D::new(parameters, &name("attn.c_proj"), [width, width], scaled)?
                .rowwise(parameters),
            mlp_norm: LayerNorm::new(parameters, &name("ln_2"), width, EPSILON)?,
            feed_forward: if config.num_experts() > 0 && layer % 2 == 1 {
                FeedForward::Experts(Mixture::new(parameters, &name("mlp"), width, config)?)
            } else {
                let mlp = Conv1D::new(parameters, &name("mlp.c_fc"), [width, inner], 0.02)?;
                let mlp_out = Conv1D::new(parameters, &name("mlp.c_proj"), [inner, width], scaled)?;
                FeedForward::Perceptron {
                    mlp: mlp.colwise(parameters, 1),
                    mlp_out: mlp_out.rowwise(parameters),
                }
            },
        })
    }

    /// The output for vectors `[B, T, W]`. A block with experts returns `[B, T + 1, W]`: the first
    /// element of the last row is the sequence's loss that balances the experts. The loss is a part
    /// of the output because only the output has a gradient if the backward pass computes the block
    /// again.
    pub(super) fn apply(
        &self,
        parameters: &Parameters,
        x_btw: &Tensor,
        num_heads: i64,
        dropout: &mut Dropout,
    ) -> Result<Tensor, TchError> {
        let width = x_btw.size()[2];
        let normal_btw = self.attention_norm.apply(parameters, x_btw)?;
        let normal_btw = parameters.input_of_colwise(&normal_btw)?;
        let qkv = self
            .attention
            .apply(parameters, &normal_btw)?
            .f_chunk(3, 2)?;
        let num_heads = num_heads / i64::from(parameters.tensor_size());
        let mixed_btw = dropout.attention([&qkv[0], &qkv[1], &qkv[2]], num_heads, true)?;
        let out_btw = self.attention_out.apply_rowwise(parameters, &mixed_btw)?;
        let x_btw = x_btw.f_add(&dropout.apply(out_btw)?)?;
        let normal_btw = self.mlp_norm.apply(parameters, &x_btw)?;
        match &self.feed_forward {
            FeedForward::Perceptron { mlp, mlp_out } => {
                let normal_btw = parameters.input_of_colwise(&normal_btw)?;
                let inner_btf = mlp.apply(parameters, &normal_btw)?.f_gelu("tanh")?;
                let out_btw = mlp_out.apply_rowwise(parameters, &inner_btf)?;
                x_btw.f_add(&dropout.apply(out_btw)?)
            }
            FeedForward::Experts(experts) => {
                let (out_btw, loss_b) = experts.apply(parameters, &normal_btw)?;
                let x_btw = x_btw.f_add(&dropout.apply(out_btw)?)?;
                let loss_b1w = loss_b
                    .f_reshape([-1, 1, 1])?
                    .f_constant_pad_nd([0, width - 1])?;
                Tensor::f_cat(&[x_btw, loss_b1w], 1)
            }
        }
    }
}
