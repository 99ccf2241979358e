//! The state of a model: named tensors in a fixed order, each with a role.

use std::ops::Range;
use std::rc::Rc;

use roundhouse_c10d::format::{self, MemoryFormat};
use tch::{Device, Kind, TchError, Tensor};

use crate::pipeline::Layer;
use crate::shards::Shards;
use crate::tensor_parallel::Cut;

mod division;

pub(crate) use division::Division;

/// How a tensor's gradient is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// An optimizer turns it into an update of the weights.
    Weight,
    /// A running statistic, such as the mean of a batch normalization. Its "gradient" is the
    /// statistic of the global batch: the model adds
    /// `(tensor - tensor.detach()) · statistic · samples` to its loss, where `samples` is the
    /// number of samples over which the statistic was computed. This term is 0, and its gradient is
    /// the statistic weighted by samples. So the ranks reduce the statistic in the same buckets as
    /// the gradients and divide it by the samples of the global batch, and it is the same for every
    /// number of workers and passes. The update is
    /// `tensor = (1 - momentum) · tensor + momentum · gradient`, without decay, clipping or
    /// learning rate.
    Statistic {
        /// Weight of the newest batch, from 0 to 1.
        momentum: f64,
    },
}

/// Named 32-bit float tensors that require gradients. A checkpoint contains only these of a model,
/// and a rank that joins receives only these. A model must keep no other state between steps.
/// Constant tensors belong to the model itself, and each rank builds them; a counter can be derived
/// from the step in [`crate::Mode::Train`].
#[derive(Debug, Default)]
pub struct Parameters {
    /// The places of the tensors in a window; `None`: they count from 0.
    places: Option<Vec<usize>>,
    names: Vec<String>,
    roles: Vec<Role>,
    tensors: Vec<Tensor>,
    /// The places of each segment of the model.
    segments: Vec<Vec<usize>>,
    /// The places of the experts of each layer.
    experts: Vec<Vec<Range<usize>>>,
    /// How the processes of a replica divide each tensor with tensor parallelism.
    cuts: Vec<Option<Cut>>,
    /// The layer of each tensor in a pipeline.
    layers: Vec<Option<Layer>>,
    /// What this process has of layers.
    division: Division,
    /// The weights that are sharded over the processes of a replica.
    shards: Option<Rc<Shards>>,
}

impl Parameters {
    /// Number of elements at whose multiples a tensor may be cut for computations by element.
    /// Kernels for CPUs compute the last elements of a tensor one by one, which rounds otherwise
    /// than their vectors of up to 32 elements. So the bits of a piece are those of the whole.
    pub(crate) const BLOCK: u64 = 64;

    /// Adds `<name>.weight` of the given shape `[out, in, …]` and `<name>.bias` `[out]`, both
    /// uniform in ±1/√fan-in, as `PyTorch` initializes linear layers and convolutions.
    ///
    /// # Errors
    /// A size is negative or exceeds the memory.
    pub fn add_layer(&mut self, name: &str, shape: &[i64]) -> Result<(), TchError> {
        let fan_in: i64 = shape.iter().skip(1).product();
        let bound = 1.0 / (fan_in.max(1) as f64).sqrt();
        let mut add = |name: String, shape: &[i64]| {
            let value = Tensor::f_zeros(shape, (Kind::Float, Device::Cpu))?;
            self.push(name, Role::Weight, &{ value }.f_uniform_(-bound, bound)?)
        };
        add(format!("{name}.weight"), shape)?;
        add(format!("{name}.bias"), &shape[..shape.len().min(1)])?;
        Ok(())
    }

    /// Adds a tensor with its initial value, and returns its place.
    ///
    /// # Errors
    /// The tensor is not of a floating-point type.
    pub fn push(
        &mut self,
        name: impl Into<String>,
        role: Role,
        value: &Tensor,
    ) -> Result<usize, TchError> {
        let tensor = value.f_detach()?.f_set_requires_grad(true)?;
        self.names.push(name.into());
        self.roles.push(role);
        self.tensors.push(tensor);
        self.cuts.push(None);
        self.layers.push(None);
        Ok(self.tensors.len() - 1)
    }

    /// The tensor at a place that [`Self::push`] returned.
    ///
    /// # Panics
    /// The place is not one of these parameters. Or `trainer.parallel.shard` shards this weight or
    /// its gradient, so only its segment may use it: see [`Segment::apply`](crate::Segment::apply).
    pub fn at(&self, place: usize) -> &Tensor {
        if let Some(shards) = &self.shards {
            assert!(
                !shards.has(place),
                "{} is used outside of its segment",
                self.names[place]
            );
        }
        match &self.places {
            None => &self.tensors[place],
            Some(places) => &self.tensors[places.binary_search(&place).unwrap_or(usize::MAX)],
        }
    }

    /// Parameters at these places, in ascending order, for [`Self::at`] only: without names and
    /// roles.
    pub(crate) fn window(places: Vec<usize>, tensors: Vec<Tensor>) -> Self {
        Self {
            places: Some(places),
            tensors,
            ..Self::default()
        }
    }

    /// Adds a segment of the model: see [`Segment`](crate::Segment).
    pub(crate) fn add_segment(&mut self, places: &[usize]) {
        self.segments.push(places.to_vec());
    }

    /// The places of each segment of the model. Several segments may have the same places.
    pub(crate) fn segments(&self) -> &[Vec<usize>] {
        &self.segments
    }

    /// Adds the experts of a layer: see [`Experts`](crate::Experts).
    pub(crate) fn add_experts(&mut self, places: &[Range<usize>]) {
        self.experts.push(places.to_vec());
    }

    /// The places of the experts of each layer.
    pub(crate) fn experts(&self) -> &[Vec<Range<usize>>] {
        &self.experts
    }

    /// The weights that are sharded over the processes of a replica.
    pub(crate) fn shards(&self) -> Option<&Rc<Shards>> {
        self.shards.as_ref()
    }

    /// Puts sharded weights in place of whole ones.
    pub(crate) fn set_shards(&mut self, shards: Shards) {
        self.division.expert_parallel = shards.expert_parallel().cloned();
        self.shards = Some(Rc::new(shards));
    }

    /// Adds a handle of a tensor, with its gradient.
    pub(crate) fn push_shared(&mut self, name: String, role: Role, tensor: &Tensor) {
        self.names.push(name);
        self.roles.push(role);
        self.tensors.push(tensor.shallow_clone());
        self.cuts.push(None);
        self.layers.push(None);
    }

    /// Adds a tensor with its value on the CPU.
    pub(crate) fn push_on_cpu(
        &mut self,
        name: &str,
        role: Role,
        value: &Tensor,
    ) -> Result<(), TchError> {
        let value = value.f_to_device(Device::Cpu)?;
        self.push_shared(name.to_owned(), role, &value);
        Ok(())
    }

    /// Discards all gradients, also those of passes that have failed.
    ///
    /// # Errors
    /// libtorch refuses an operation.
    pub(crate) fn forget_gradients(&mut self) -> Result<(), roundhouse_c10d::Error> {
        if let Some(shards) = &self.shards {
            shards.forget_gradients()?;
        }
        roundhouse_c10d::zero_grad(&mut self.tensors)
    }

    /// A loss of 0 whose gradient is 0 for every tensor: the loss of an empty batch.
    ///
    /// # Errors
    /// libtorch refuses an operation.
    pub fn no_loss(&self) -> Result<Tensor, TchError> {
        let mut loss = Tensor::f_zeros([], (Kind::Float, self.device()))?;
        for tensor in &self.tensors {
            // A sum over no element. A product with 0 would be NaN for a weight that is infinite.
            let nothing = tensor.f_flatten(0, -1)?.f_narrow(0, 0, 0)?;
            loss = loss.f_add(&nothing.f_sum(Kind::Float)?)?;
        }
        Ok(loss)
    }

    /// The device of the tensors; the CPU if there are none.
    #[must_use]
    pub fn device(&self) -> Device {
        self.tensors.first().map_or(Device::Cpu, Tensor::device)
    }

    /// Moves all tensors to a device. They have no gradients afterwards.
    ///
    /// # Errors
    /// The device has too little memory.
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

    /// Converts all tensors of four dimensions to the memory format channels last. Names, shapes
    /// and values do not change.
    ///
    /// # Errors
    /// The device has too little memory.
    pub fn lay_channels_last(&mut self) -> Result<(), TchError> {
        format::convert(&mut self.tensors, MemoryFormat::ChannelsLast)
            .map_err(|error| TchError::Torch(error.message))
    }

    /// Moves all tensors into one vector, in the order of their places, and returns the vector and
    /// the start of each tensor. Starts and length are multiples of [`Self::BLOCK`]; the gaps are
    /// 0.
    ///
    /// # Errors
    /// There is too little memory, or the tensors are on several devices.
    pub(crate) fn lay_in_one_vector(&mut self) -> Result<(Tensor, Vec<i64>), TchError> {
        let (starts, end) = Self::starts(&self.tensors);
        let vector = Tensor::f_zeros([end], (Kind::Float, self.device()))?;
        for (tensor, start) in self.tensors.iter_mut().zip(&starts) {
            let shape = tensor.size();
            let length = shape.iter().product();
            let mut place = vector.f_narrow(0, *start, length)?.f_view(&*shape)?;
            place.f_copy_(&tensor.f_detach()?)?;
            tensor.f_set_data(&place)?;
        }
        Ok((vector, starts))
    }

    /// The start of each tensor in one vector, and the length of the vector: multiples of
    /// [`Self::BLOCK`].
    pub(crate) fn starts(tensors: &[Tensor]) -> (Vec<i64>, i64) {
        let (mut starts, mut end) = (Vec::new(), 0);
        for tensor in tensors {
            starts.push(end);
            let length: i64 = tensor.size().iter().product();
            end += (length.cast_unsigned().next_multiple_of(Self::BLOCK)).cast_signed();
        }
        (starts, end)
    }

    /// The tensors, in the order of their places.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensors, for changes in place without gradients.
    pub fn tensors_mut(&mut self) -> &mut [Tensor] {
        &mut self.tensors
    }

    /// The role of each tensor, in the order of the tensors.
    #[must_use]
    pub fn roles(&self) -> &[Role] {
        &self.roles
    }

    /// Iterates over names and tensors.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.names.iter().map(String::as_str).zip(&self.tensors)
    }

    /// The tensors that an optimizer updates (without running statistics).
    fn weights(&self) -> impl Iterator<Item = &Tensor> {
        let of_weights = |(role, tensor)| matches!(role, &Role::Weight).then_some(tensor);
        self.roles.iter().zip(&self.tensors).filter_map(of_weights)
    }

    /// Number of weights, without running statistics.
    #[must_use]
    pub fn num_weights(&self) -> usize {
        self.weights().map(Tensor::numel).sum()
    }

    /// L2 norm of the gradients of all weights taken as one vector. It does not copy the gradients.
    ///
    /// # Errors
    /// A parameter has no gradient yet.
    pub fn gradient_norm(&self) -> Result<f64, TchError> {
        let norms: Vec<Tensor> = self
            .weights()
            .map(|tensor| tensor.f_grad()?.f_norm())
            .collect::<Result<_, _>>()?;
        Tensor::f_stack(&norms, 0)?.f_norm()?.f_double_value(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::seeded;

    /// Adds a layer under the generator's lock, because other tests draw from it at the same time.
    fn add_layer(parameters: &mut Parameters, name: &str, shape: &[i64]) {
        seeded(1, || parameters.add_layer(name, shape)).unwrap();
    }

    #[test]
    fn layer_is_uniform_within_its_fan_in_bound() {
        let mut parameters = Parameters::default();
        add_layer(&mut parameters, "conv1", &[8, 4, 3, 3]);
        let names: Vec<_> = parameters.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["conv1.weight", "conv1.bias"]);
        assert_eq!(parameters.tensors()[1].size(), [8]);
        assert_eq!(parameters.num_weights(), 8 * 4 * 9 + 8);
        let highest = parameters.tensors()[0].abs().max().double_value(&[]);
        assert!(highest <= 1.0 / 6.0 && highest > 0.15, "{highest}");
    }

    #[test]
    fn window_has_other_tensors_at_the_same_places() {
        let mut parameters = Parameters::default();
        for layer in ["fc1", "fc2"] {
            add_layer(&mut parameters, layer, &[2, 3]);
        }
        let places = vec![0, 3];
        let others = places.iter().map(|place| parameters.at(*place).detach());
        let window = Parameters::window(places.clone(), others.collect());
        for place in places {
            assert_eq!(window.at(place), parameters.at(place));
            assert!(!window.at(place).requires_grad());
        }
    }

    #[test]
    fn gradient_norm_is_that_of_one_long_vector() {
        let mut parameters = Parameters::default();
        add_layer(&mut parameters, "fc1", &[1, 2]);
        let [weight, bias] = parameters.tensors() else {
            panic!("two tensors");
        };
        (weight.sum(None::<Kind>) * 2.0 + bias.sum(None::<Kind>)).backward();
        let norm = parameters.gradient_norm().unwrap();
        assert!((norm - 3.0).abs() < 1e-6, "{norm}");
    }

    #[test]
    fn running_statistics_do_not_count_in_the_norm() {
        let mut parameters = Parameters::default();
        add_layer(&mut parameters, "fc1", &[1, 1]);
        let role = Role::Statistic { momentum: 0.1 };
        let place = parameters
            .push("bn1.running_mean", role, &Tensor::from_slice(&[5.0_f32]))
            .unwrap();
        parameters
            .tensors()
            .iter()
            .fold(Tensor::from(0.0_f32), |sum, tensor| {
                sum + tensor.sum(None::<Kind>) * 3.0
            })
            .backward();
        assert_eq!(parameters.num_weights(), 2);
        let norm = parameters.gradient_norm().unwrap();
        assert!((norm - 18.0_f64.sqrt()).abs() < 1e-6, "{norm}");
        assert!((parameters.at(place).grad().double_value(&[0]) - 3.0).abs() < 1e-6);
    }

    #[test]
    fn empty_batch_has_zero_gradients_for_infinite_weights() {
        let mut parameters = Parameters::default();
        add_layer(&mut parameters, "fc1", &[2, 3]);
        tch::no_grad(|| {
            let _ = parameters.tensors_mut()[0].fill_(f64::INFINITY);
        });
        let loss = parameters.no_loss().unwrap();
        loss.backward();
        assert!(loss.double_value(&[]).abs() < f64::EPSILON);
        assert!(parameters.gradient_norm().unwrap().abs() < f64::EPSILON);
    }
}
