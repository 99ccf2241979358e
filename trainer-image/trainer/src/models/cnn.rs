//! Convolutional network: 3×3 convolutions, each followed by `ReLU` and a 2×2 max-pool, and a
//! linear layer.

use tch::{TchError, Tensor};

use super::layers::{Conv, Linear};
use super::{ImageShape, Network, Pass};
use crate::parameters::Parameters;
use crate::segment::Segment;

/// The layers `conv1`, `conv2`, … and `fc`.
#[derive(Debug)]
pub struct Cnn {
    convolutions: Vec<Segment<Conv>>,
    fc: Segment<Linear>,
    multiply_adds: f64,
}

/// Checks that images are large enough to be halved by each convolution.
///
/// # Errors
/// The images are too small; the message says what to change.
pub(super) fn fits(channels: &[u32], shape: &ImageShape) -> Result<(), String> {
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
    /// Creates a convolution for each number of channels. Each convolution halves the image.
    ///
    /// # Errors
    /// The weights exceed the memory.
    pub fn new(
        parameters: &mut Parameters,
        channels: &[u32],
        shape: &ImageShape,
    ) -> Result<Self, TchError> {
        let mut convolutions = Vec::new();
        let (mut num_inputs, mut height, mut width) =
            (shape.num_channels, shape.height, shape.width);
        let mut multiply_adds = 0.0;
        for (layer, num_outputs) in (1..).zip(channels.iter().copied().map(i64::from)) {
            let name = format!("conv{layer}");
            convolutions.push(Segment::build(parameters, |p| {
                Conv::uniform(p, &name, [num_outputs, num_inputs, 3])
            })?);
            multiply_adds += (num_inputs * num_outputs * 9 * height * width) as f64;
            (num_inputs, height, width) = (num_outputs, height / 2, width / 2);
        }
        let num_features = num_inputs * height * width;
        multiply_adds += (num_features * shape.num_classes) as f64;
        Ok(Self {
            convolutions,
            fc: Segment::build(parameters, |p| {
                Linear::uniform(p, "fc", num_features, shape.num_classes)
            })?,
            multiply_adds,
        })
    }
}

impl Network for Cnn {
    fn scores(
        &self,
        parameters: &Parameters,
        images_bchw: &Tensor,
        _pass: &mut Pass,
    ) -> Result<Tensor, TchError> {
        let mut activations_bchw = images_bchw.shallow_clone();
        for convolution in &self.convolutions {
            activations_bchw = convolution
                .apply_alone(parameters, &activations_bchw, Conv::apply)?
                .f_relu()?
                .f_max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false)?;
        }
        let features_bf = activations_bchw.f_flatten(1, -1)?;
        self.fc.apply_alone(parameters, &features_bf, Linear::apply)
    }

    fn multiply_adds(&self) -> f64 {
        self.multiply_adds
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;
    use crate::models::Classifier;
    use crate::random::seeded;
    use crate::task::{Mode, Task};

    const SHAPE: ImageShape = ImageShape {
        num_channels: 1,
        height: 4,
        width: 5,
        num_classes: 3,
    };

    #[test]
    fn cnn_refuses_more_halvings_than_the_image_allows() {
        assert_eq!(fits(&[8, 8], &SHAPE), Ok(()));
        let message = fits(&[8, 8, 8], &SHAPE).unwrap_err();
        assert!(message.contains("at most 2"), "{message}");
    }

    #[test]
    fn scores_are_those_computed_by_hand() {
        let mut model = seeded(1, || Classifier::new(0.0, |p| Cnn::new(p, &[1], &SHAPE))).unwrap();
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
        let scores = model.scores(&images, Mode::Evaluate).unwrap();
        // Maxima of the 2x2 blocks: 6, 8, 16, 18; the fifth column is left over.
        let sum = (6 + 8 + 16 + 18) as f32 * 2.0 + 4.0;
        assert_eq!(
            Vec::<f32>::try_from(scores.flatten(0, -1)).unwrap(),
            [sum, sum + 1.0, sum + 2.0]
        );
        // 9 weights at 20 pixels, and 4 features for 3 classes.
        assert_eq!(model.flops_per_sample(), Some(6.0 * (9.0 * 20.0 + 12.0)));
    }
}
