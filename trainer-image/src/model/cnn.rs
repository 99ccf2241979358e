//! Convolutional network: 3×3 convolutions, each with `ReLU` and a 2×2 max-pool, and a linear layer.

use tch::{TchError, Tensor};

use super::{Model, Parameters};
use crate::data::Shape;

/// The layers `conv1`, `conv2`, … and `fc`.
#[derive(Debug)]
pub struct Cnn {
    parameters: Parameters,
}

/// Whether images survive as many halvings as there are convolutions.
///
/// # Errors
/// What to change if they do not.
pub fn fits(channels: &[u32], shape: &Shape) -> Result<(), String> {
    let smaller_side = shape.height.min(shape.width);
    let most = smaller_side.max(1).ilog2() as usize;
    if channels.len() <= most {
        return Ok(());
    }
    Err(format!(
        "{} convolutions halve images of {}x{} to nothing; give at most {most}",
        channels.len(),
        shape.height,
        shape.width
    ))
}

impl Cnn {
    /// A convolution for each number of channels. The shape has to [`fits`].
    ///
    /// # Errors
    /// The weights exceed the memory.
    pub fn new(channels: &[u32], shape: &Shape) -> Result<Self, TchError> {
        let mut parameters = Parameters::default();
        let (mut num_inputs, mut height, mut width) =
            (shape.num_channels, shape.height, shape.width);
        for (layer, num_outputs) in (1..).zip(channels.iter().copied().map(i64::from)) {
            parameters.add_layer(&format!("conv{layer}"), &[num_outputs, num_inputs, 3, 3])?;
            (num_inputs, height, width) = (num_outputs, height / 2, width / 2);
        }
        parameters.add_layer("fc", &[shape.num_classes, num_inputs * height * width])?;
        Ok(Self { parameters })
    }
}

impl Model for Cnn {
    fn forward(&self, images_bchw: &Tensor) -> Result<Tensor, TchError> {
        let mut activations_bchw = images_bchw.shallow_clone();
        let mut layers = self.parameters.tensors().chunks_exact(2).peekable();
        while let Some(pair) = layers.next() {
            let (weight, bias) = (&pair[0], Some(&pair[1]));
            if layers.peek().is_none() {
                return activations_bchw.f_flatten(1, -1)?.f_linear(weight, bias);
            }
            activations_bchw = activations_bchw
                .f_conv2d(weight, bias, [1, 1], [1, 1], [1, 1], 1)?
                .f_relu()?
                .f_max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false)?;
        }
        Ok(activations_bchw)
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    const SHAPE: Shape = Shape {
        num_channels: 1,
        height: 4,
        width: 5,
        num_classes: 3,
    };

    #[test]
    fn more_halvings_than_the_image_has_are_refused() {
        assert_eq!(fits(&[8, 8], &SHAPE), Ok(()));
        let message = fits(&[8, 8, 8], &SHAPE).unwrap_err();
        assert!(message.contains("at most 2"), "{message}");
    }

    #[test]
    fn scores_are_those_computed_by_hand() {
        let mut model = Cnn::new(&[1], &SHAPE).unwrap();
        // The convolution doubles the pixel (only its middle weight is set) and adds one; the
        // class weights are all one, so each score is the sum of the pooled maxima and its bias.
        tch::no_grad(|| {
            let [conv, conv_bias, fc, fc_bias] = model.parameters_mut().tensors_mut() else {
                panic!("four tensors");
            };
            let _ = conv.zero_();
            let _ = conv.get(0).get(0).get(1).get(1).fill_(2.0);
            let _ = conv_bias.fill_(1.0);
            let _ = fc.fill_(1.0);
            fc_bias.copy_(&Tensor::from_slice(&[0.0_f32, 1.0, 2.0]));
        });
        let images = Tensor::arange(20, (Kind::Float, Device::Cpu)).reshape([1, 1, 4, 5]);
        let scores: Vec<f32> =
            Vec::try_from(model.forward(&images).unwrap().flatten(0, -1)).unwrap();
        // Maxima of the 2x2 blocks: 6, 8, 16, 18; the fifth column is left over.
        let sum = (6 + 8 + 16 + 18) as f32 * 2.0 + 4.0;
        assert_eq!(scores, [sum, sum + 1.0, sum + 2.0]);
    }

    #[test]
    fn an_empty_batch_gives_zero_gradients() {
        let model = Cnn::new(&[2, 3], &SHAPE).unwrap();
        let images = Tensor::zeros([0, 1, 4, 5], (Kind::Float, Device::Cpu));
        model.forward(&images).unwrap().sum(Kind::Float).backward();
        assert!(model.parameters().gradient_norm().unwrap().abs() < f64::EPSILON);
    }
}
