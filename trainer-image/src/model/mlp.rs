//! Multi-layer perceptron over the flattened image, `ReLU` between layers.

use tch::{TchError, Tensor};

use super::{Model, Parameters};
use crate::data::Shape;

/// The layers `fc1`, `fc2`, …; the last one gives the scores.
#[derive(Debug)]
pub struct Mlp {
    parameters: Parameters,
}

impl Mlp {
    /// Layers with `hidden` units each, and one with a unit per class.
    ///
    /// # Errors
    /// The weights exceed the memory.
    pub fn new(hidden: &[u32], shape: &Shape) -> Result<Self, TchError> {
        let mut parameters = Parameters::default();
        let mut num_inputs = shape.num_channels * shape.height * shape.width;
        let sizes = hidden
            .iter()
            .copied()
            .map(i64::from)
            .chain([shape.num_classes]);
        for (layer, num_outputs) in (1..).zip(sizes) {
            parameters.add_layer(&format!("fc{layer}"), &[num_outputs, num_inputs])?;
            num_inputs = num_outputs;
        }
        Ok(Self { parameters })
    }
}

impl Model for Mlp {
    fn forward(&self, images_bchw: &Tensor) -> Result<Tensor, TchError> {
        let mut activations_bf = images_bchw.f_flatten(1, -1)?;
        for (layer, pair) in self.parameters.tensors().chunks_exact(2).enumerate() {
            if layer > 0 {
                activations_bf = activations_bf.f_relu()?;
            }
            activations_bf = activations_bf.f_linear(&pair[0], Some(&pair[1]))?;
        }
        Ok(activations_bf)
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
        height: 1,
        width: 2,
        num_classes: 2,
    };

    #[test]
    fn scores_are_those_computed_by_hand() {
        let mut model = Mlp::new(&[2], &SHAPE).unwrap();
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
        let scores: Vec<f32> =
            Vec::try_from(model.forward(&images).unwrap().flatten(0, -1)).unwrap();
        assert_eq!(scores, [11.5, 24.0]);
    }

    #[test]
    fn an_empty_batch_gives_zero_gradients() {
        let model = Mlp::new(&[4], &SHAPE).unwrap();
        let images = Tensor::zeros([0, 1, 1, 2], (Kind::Float, Device::Cpu));
        model.forward(&images).unwrap().sum(Kind::Float).backward();
        assert!(model.parameters().gradient_norm().unwrap().abs() < f64::EPSILON);
    }
}
