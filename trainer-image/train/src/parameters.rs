//! What a model remembers: named tensors in a fixed order, each with a role.

use tch::{Device, Kind, TchError, Tensor};

/// What becomes of a tensor's gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// An optimizer turns it into an update of the weights.
    Weight,
    /// A running statistic, such as the mean of a batch normalization. Its "gradient" is the statistic of the
    /// global batch: the model adds `(tensor - tensor.detach()) · statistic` to its loss, which is 0 and leaves
    /// the sum of the statistics where a gradient would be. So it is reduced over all ranks in the same buckets
    /// as the gradients, and is the same for every number of workers. The update is
    /// `tensor = (1 - momentum) · tensor + momentum · gradient`; no decay, no clipping, no learning rate.
    Statistic {
        /// Weight of the newest batch.
        momentum: f64,
    },
}

/// Named 32-bit float tensors that require gradients.
#[derive(Debug, Default)]
pub struct Parameters {
    names: Vec<String>,
    roles: Vec<Role>,
    tensors: Vec<Tensor>,
}

impl Parameters {
    /// Adds `<name>.weight` of the given shape `[out, in, …]` and `<name>.bias` `[out]`, both
    /// uniform in ±1/√fan-in, as `PyTorch` initializes linear layers and convolutions.
    ///
    /// # Errors
    /// A size is negative or exceeds the memory.
    pub fn add_layer(&mut self, name: &str, shape: &[i64]) -> Result<(), TchError> {
        let fan_in: i64 = shape.iter().skip(1).product();
        let bound = 1.0 / (fan_in.max(1) as f64).sqrt();
        self.add(format!("{name}.weight"), shape, bound)?;
        self.add(format!("{name}.bias"), &shape[..shape.len().min(1)], bound)
    }

    fn add(&mut self, name: String, shape: &[i64], bound: f64) -> Result<(), TchError> {
        let tensor =
            Tensor::f_zeros(shape, (Kind::Float, Device::Cpu))?.f_uniform_(-bound, bound)?;
        self.push(name, Role::Weight, &tensor)
    }

    /// Adds a tensor with its initial value.
    ///
    /// # Errors
    /// It is not of a floating-point type.
    pub fn push(
        &mut self,
        name: impl Into<String>,
        role: Role,
        value: &Tensor,
    ) -> Result<(), TchError> {
        let tensor = value.f_detach()?.f_set_requires_grad(true)?;
        self.names.push(name.into());
        self.roles.push(role);
        self.tensors.push(tensor);
        Ok(())
    }

    /// Moves all tensors to a device; gradients start anew.
    ///
    /// # Errors
    /// The device cannot hold them.
    pub fn move_to(&mut self, device: Device) -> Result<(), TchError> {
        for tensor in &mut self.tensors {
            if tensor.device() != device {
                *tensor = tensor
                    .f_detach()?
                    .f_to_device(device)?
                    .f_set_requires_grad(true)?;
            }
        }
        Ok(())
    }

    /// The tensors.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensors, to be changed in place without gradients.
    pub fn tensors_mut(&mut self) -> &mut [Tensor] {
        &mut self.tensors
    }

    /// What becomes of each tensor's gradient, in their order.
    #[must_use]
    pub fn roles(&self) -> &[Role] {
        &self.roles
    }

    /// Names and tensors.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.names.iter().map(String::as_str).zip(&self.tensors)
    }

    /// Number of weights.
    #[must_use]
    pub fn num_weights(&self) -> usize {
        self.tensors.iter().map(Tensor::numel).sum()
    }

    /// Norm of all gradients taken as one vector; they are read, not copied.
    ///
    /// # Errors
    /// A parameter has no gradient yet.
    pub fn gradient_norm(&self) -> Result<f64, TchError> {
        let norms: Vec<Tensor> = self
            .tensors
            .iter()
            .map(|tensor| tensor.f_grad()?.f_norm())
            .collect::<Result<_, _>>()?;
        Tensor::f_stack(&norms, 0)?.f_norm()?.f_double_value(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_uniform_within_one_over_the_root_of_its_fan_in() {
        let mut parameters = Parameters::default();
        parameters.add_layer("conv1", &[8, 4, 3, 3]).unwrap();
        let names: Vec<_> = parameters.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["conv1.weight", "conv1.bias"]);
        assert_eq!(parameters.tensors()[1].size(), [8]);
        assert_eq!(parameters.num_weights(), 8 * 4 * 9 + 8);
        let highest = parameters.tensors()[0].abs().max().double_value(&[]);
        assert!(highest <= 1.0 / 6.0 && highest > 0.15, "{highest}");
    }

    #[test]
    fn the_gradient_norm_is_that_of_one_long_vector() {
        let mut parameters = Parameters::default();
        parameters.add_layer("fc1", &[1, 2]).unwrap();
        let [weight, bias] = parameters.tensors() else {
            panic!("two tensors");
        };
        (weight.sum(None::<Kind>) * 2.0 + bias.sum(None::<Kind>)).backward();
        let norm = parameters.gradient_norm().unwrap();
        assert!((norm - 3.0).abs() < 1e-6, "{norm}");
    }
}
