//! Layers. Each layer stores the places of its weights in [`Parameters`].

use tch::{TchError, Tensor};

use super::init;
use crate::parameters::{Parameters, Role};

/// `x · Wᵀ`, or `x · Wᵀ + b`, with a weight `[out, in]`.
#[derive(Debug)]
pub(super) struct Linear {
    weight: usize,
    bias: Option<usize>,
}

impl Linear {
    /// Initialized as `torch.nn.Linear`: uniform in ±1/√in.
    pub(super) fn uniform(
        parameters: &mut Parameters,
        name: &str,
        num_inputs: i64,
        num_outputs: i64,
    ) -> Result<Self, TchError> {
        let weight = parameters.tensors().len();
        parameters.add_layer(name, &[num_outputs, num_inputs])?;
        Ok(Self {
            weight,
            bias: Some(weight + 1),
        })
    }

    /// Initialized as in Transformers: a normal weight and a bias of 0.
    pub(super) fn normal(
        parameters: &mut Parameters,
        name: &str,
        num_inputs: i64,
        num_outputs: i64,
    ) -> Result<Self, TchError> {
        let without_bias = Self::without_bias(parameters, name, num_inputs, num_outputs)?;
        let bias = constant(parameters, format!("{name}.bias"), num_outputs, 0.0)?;
        Ok(Self {
            bias: Some(bias),
            ..without_bias
        })
    }

    /// Initialized as in Transformers: a normal weight.
    pub(super) fn without_bias(
        parameters: &mut Parameters,
        name: &str,
        num_inputs: i64,
        num_outputs: i64,
    ) -> Result<Self, TchError> {
        Self::normal_without_bias(parameters, name, num_inputs, num_outputs, 0.02)
    }

    /// A layer without a bias. The weight is normal with this standard deviation.
    pub(super) fn normal_without_bias(
        parameters: &mut Parameters,
        name: &str,
        num_inputs: i64,
        num_outputs: i64,
        deviation: f64,
    ) -> Result<Self, TchError> {
        let weight = init::normal(&[num_outputs, num_inputs], deviation)?;
        Ok(Self {
            weight: parameters.push(format!("{name}.weight"), Role::Weight, &weight)?,
            bias: None,
        })
    }

    /// With tensor parallelism each process has some of the outputs.
    pub(super) fn colwise(self, parameters: &mut Parameters) -> Self {
        for place in [Some(self.weight), self.bias].into_iter().flatten() {
            parameters.cut(place, 0, 1);
        }
        self
    }

    /// With tensor parallelism each process has some of the inputs: see [`Self::apply_rowwise`].
    pub(super) fn rowwise(self, parameters: &mut Parameters) -> Self {
        parameters.cut(self.weight, 1, 1);
        self
    }

    pub(super) fn apply(&self, parameters: &Parameters, x: &Tensor) -> Result<Tensor, TchError> {
        let bias = self.bias.map(|place| parameters.at(place));
        x.f_linear(parameters.at(self.weight), bias)
    }

    /// The outputs for all inputs, of which each process has some.
    pub(super) fn apply_rowwise(
        &self,
        parameters: &Parameters,
        x: &Tensor,
    ) -> Result<Tensor, TchError> {
        if parameters.division().tensor_parallel.is_none() {
            return self.apply(parameters, x);
        }
        let part = x.f_linear(parameters.at(self.weight), None::<Tensor>)?;
        parameters.output_of_rowwise(&part, self.bias)
    }
}

/// The vectors of tokens from an embedding `[V, W]`. The lookup of `padding` has no gradient; -1:
/// there is no such token.
pub(super) fn embed(
    parameters: &Parameters,
    place: usize,
    tokens: &Tensor,
    padding: i64,
) -> Result<Tensor, TchError> {
    let vectors = parameters.at(place);
    match parameters.vocabulary(place) {
        Some(part) => part.embed(vectors, tokens, padding),
        None => Tensor::f_embedding(vectors, tokens, padding, false, false),
    }
}

/// A 2-dimensional convolution over square patches, padded so that a stride of 1 keeps the size.
#[derive(Debug)]
pub(super) struct Conv {
    weight: usize,
    bias: Option<usize>,
    stride: i64,
    padding: i64,
}

impl Conv {
    /// A convolution with a bias, initialized as `torch.nn.Conv2d`; the shape is (out, in, kernel
    /// size).
    pub(super) fn uniform(
        parameters: &mut Parameters,
        name: &str,
        [num_outputs, num_inputs, side]: [i64; 3],
    ) -> Result<Self, TchError> {
        let weight = parameters.tensors().len();
        parameters.add_layer(name, &[num_outputs, num_inputs, side, side])?;
        Ok(Self {
            weight,
            bias: Some(weight + 1),
            stride: 1,
            padding: side / 2,
        })
    }

    /// A convolution without a bias, initialized as in torchvision's residual networks; the shape
    /// is (out, in, kernel size).
    pub(super) fn kaiming(
        parameters: &mut Parameters,
        name: &str,
        [num_outputs, num_inputs, side]: [i64; 3],
        stride: i64,
    ) -> Result<Self, TchError> {
        let weight = init::kaiming_fan_out(&[num_outputs, num_inputs, side, side])?;
        Ok(Self {
            weight: parameters.push(format!("{name}.weight"), Role::Weight, &weight)?,
            bias: None,
            stride,
            padding: side / 2,
        })
    }

    pub(super) fn apply(&self, parameters: &Parameters, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_conv2d(
            parameters.at(self.weight),
            self.bias.map(|place| parameters.at(place)),
            [self.stride, self.stride],
            [self.padding, self.padding],
            [1, 1],
            1,
        )
    }
}

/// Normalization over the last dimension (Ba et al. 2016).
#[derive(Debug)]
pub(super) struct LayerNorm {
    weight: usize,
    bias: usize,
    epsilon: f64,
}

impl LayerNorm {
    pub(super) fn new(
        parameters: &mut Parameters,
        name: &str,
        width: i64,
        epsilon: f64,
    ) -> Result<Self, TchError> {
        Ok(Self {
            weight: constant(parameters, format!("{name}.weight"), width, 1.0)?,
            bias: constant(parameters, format!("{name}.bias"), width, 0.0)?,
            epsilon,
        })
    }

    pub(super) fn apply(&self, parameters: &Parameters, x: &Tensor) -> Result<Tensor, TchError> {
        let (weight, bias) = (parameters.at(self.weight), parameters.at(self.bias));
        x.f_layer_norm(weight.size(), Some(weight), Some(bias), self.epsilon, true)
    }
}

/// Division by the root of the mean of squares over the last dimension (Zhang and Sennrich 2019).
#[derive(Debug)]
pub(super) struct RmsNorm {
    weight: usize,
    epsilon: f64,
}

impl RmsNorm {
    pub(super) fn new(
        parameters: &mut Parameters,
        name: &str,
        width: i64,
        epsilon: f64,
    ) -> Result<Self, TchError> {
        Ok(Self {
            weight: constant(parameters, format!("{name}.weight"), width, 1.0)?,
            epsilon,
        })
    }

    pub(super) fn apply(&self, parameters: &Parameters, x: &Tensor) -> Result<Tensor, TchError> {
        let weight = parameters.at(self.weight);
        x.f_rms_norm(weight.size(), Some(weight), self.epsilon)
    }
}

/// Adds a vector whose elements have one value, and returns its place.
pub(super) fn constant(
    parameters: &mut Parameters,
    name: String,
    size: i64,
    value: f64,
) -> Result<usize, TchError> {
    parameters.push(name, Role::Weight, &init::constant(&[size], value)?)
}
