//! Linear layers over the flattened image, with `ReLU` between them. One layer is softmax
//! regression.

use tch::{TchError, Tensor};

use super::layers::Linear;
use super::{ImageShape, Network, Pass};
use crate::parameters::Parameters;
use crate::segment::Segment;

/// The layers `fc1`, `fc2`, …, or the single layer `fc`. The last layer computes the scores.
#[derive(Debug)]
pub struct Mlp {
    layers: Vec<Segment<Linear>>,
    multiply_adds: f64,
}

impl Mlp {
    /// Creates a layer for each number of units in `hidden`, and one with a unit per class.
    ///
    /// # Errors
    /// The weights exceed the memory.
    pub fn new(
        parameters: &mut Parameters,
        hidden: &[u32],
        shape: &ImageShape,
    ) -> Result<Self, TchError> {
        let sizes: Vec<i64> = hidden.iter().copied().map(i64::from).collect();
        let names: Vec<String> = (1..=sizes.len() + 1)
            .map(|layer| format!("fc{layer}"))
            .collect();
        Self::with_names(parameters, &names, &sizes, shape)
    }

    /// Creates one linear layer from the image to the scores.
    ///
    /// # Errors
    /// The weights exceed the memory.
    pub fn linear(parameters: &mut Parameters, shape: &ImageShape) -> Result<Self, TchError> {
        Self::with_names(parameters, &["fc".to_owned()], &[], shape)
    }

    fn with_names(
        parameters: &mut Parameters,
        names: &[String],
        hidden: &[i64],
        shape: &ImageShape,
    ) -> Result<Self, TchError> {
        let mut num_inputs = shape.num_channels * shape.height * shape.width;
        let mut layers = Vec::new();
        let mut multiply_adds = 0.0;
        for (name, num_outputs) in names
            .iter()
            .zip(hidden.iter().copied().chain([shape.num_classes]))
        {
            layers.push(Segment::build(parameters, |p| {
                Linear::uniform(p, name, num_inputs, num_outputs)
            })?);
            multiply_adds += num_inputs as f64 * num_outputs as f64;
            num_inputs = num_outputs;
        }
        Ok(Self {
            layers,
            multiply_adds,
        })
    }
}

impl Network for Mlp {
    fn scores(
        &self,
        parameters: &Parameters,
        images_bchw: &Tensor,
        _pass: &mut Pass,
    ) -> Result<Tensor, TchError> {
        let mut activations_bf = images_bchw.f_flatten(1, -1)?;
        for (layer, linear) in self.layers.iter().enumerate() {
            if layer > 0 {
                activations_bf = activations_bf.f_relu()?;
            }
            activations_bf = linear.apply_alone(parameters, &activations_bf, Linear::apply)?;
        }
        Ok(activations_bf)
    }

    fn multiply_adds(&self) -> f64 {
        self.multiply_adds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::Classifier;
    use crate::random::seeded;
    use crate::task::{Mode, Task};

    const SHAPE: ImageShape = ImageShape {
        num_channels: 1,
        height: 1,
        width: 2,
        num_classes: 2,
    };

    fn names(model: &Classifier) -> Vec<&str> {
        model.parameters().iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn scores_are_those_computed_by_hand() {
        let mut model = seeded(1, || Classifier::new(0.0, |p| Mlp::new(p, &[2], &SHAPE))).unwrap();
        assert_eq!(
            names(&model),
            ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
        );
        let values: [&[f32]; 4] = [
            &[1.0, 2.0, -1.0, 0.0],
            &[0.5, 0.0],
            &[1.0, 1.0, 2.0, -1.0],
            &[0.0, 1.0],
        ];
        tch::no_grad(|| {
            for (tensor, values) in model.parameters_mut().tensors_mut().iter_mut().zip(values) {
                tensor.copy_(&Tensor::from_slice(values).reshape(tensor.size()));
            }
        });
        // Hidden: relu(1*3 + 2*4 + 0.5) = 11.5 and relu(-3) = 0.
        let images = Tensor::from_slice(&[3.0_f32, 4.0]).reshape([1, 1, 1, 2]);
        let scores = model.scores(&images, Mode::Evaluate).unwrap();
        assert_eq!(
            Vec::<f32>::try_from(scores.flatten(0, -1)).unwrap(),
            [11.5, 24.0]
        );
    }

    #[test]
    fn linear_model_is_one_layer() {
        let model = Classifier::new(0.0, |p| Mlp::linear(p, &SHAPE)).unwrap();
        assert_eq!(names(&model), ["fc.weight", "fc.bias"]);
        // 2 inputs × 2 classes, 2 operations each, forward and twice that backward.
        assert_eq!(model.flops_per_sample(), Some(24.0));
    }
}
