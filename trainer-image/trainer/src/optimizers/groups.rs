//! Groups the tensors of a model by how an optimizer updates them.

use tch::{TchError, Tensor};

use super::kernels::{self, Select};
use crate::parameters::{Parameters, Role};

/// The tensors of a model, grouped by how they are updated.
#[derive(Debug)]
pub(super) struct Groups {
    weights: Vec<Group>,
    /// Places of running statistics, grouped by the weight of the newest batch.
    statistics: Vec<(f64, Vec<usize>)>,
}

/// Weights that the optimizer updates in the same way.
#[derive(Debug)]
pub(super) struct Group {
    places: Vec<usize>,
    /// Whether weight decay and rates per tensor apply to the group.
    pub(super) decays: bool,
}

/// The tensors of a group in one step. They share their memory with the parameters.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) weights: Vec<Tensor>,
    pub(super) gradients: Vec<Tensor>,
}

impl Groups {
    /// Groups parameters. Weights with more than one dimension decay. Weights with at most one
    /// dimension (biases, parameters of normalization layers) decay if `decays_norm_and_bias`.
    pub(super) fn new(parameters: &Parameters, decays_norm_and_bias: bool) -> Self {
        let mut groups = Self {
            weights: [true, false]
                .map(|decays| Group {
                    places: Vec::new(),
                    decays,
                })
                .into(),
            statistics: Vec::new(),
        };
        let tensors = parameters.tensors().iter().zip(parameters.roles());
        for (place, (tensor, role)) in tensors.enumerate() {
            match role {
                Role::Weight if decays_norm_and_bias || tensor.dim() > 1 => {
                    groups.weights[0].places.push(place);
                }
                Role::Weight => groups.weights[1].places.push(place),
                Role::Statistic { momentum } => groups.add_statistic(place, *momentum),
            }
        }
        groups.weights.retain(|group| !group.places.is_empty());
        groups
    }

    fn add_statistic(&mut self, place: usize, momentum: f64) {
        let same = |(known, _): &&mut (f64, _)| known.to_bits() == momentum.to_bits();
        match self.statistics.iter_mut().find(same) {
            Some((_, places)) => places.push(place),
            None => self.statistics.push((momentum, vec![place])),
        }
    }

    pub(super) fn weights(&self) -> &[Group] {
        &self.weights
    }

    /// Moves the running statistics towards the statistics of the batch, which are in their
    /// gradients.
    pub(super) fn update_statistics(
        &self,
        parameters: &Parameters,
        select: &Select,
    ) -> Result<(), TchError> {
        for (momentum, places) in &self.statistics {
            let own: Vec<Tensor> = places
                .iter()
                .map(|place| parameters.tensors()[*place].shallow_clone())
                .collect();
            let of_batch = places.iter().map(|place| gradient(parameters, *place));
            let of_batch = of_batch.collect::<Result<Vec<_>, _>>()?;
            kernels::average_small(&own, &of_batch, *momentum, select)?;
        }
        Ok(())
    }
}

impl Group {
    /// The group's weights and their gradients.
    pub(super) fn members(&self, parameters: &Parameters) -> Result<Members, TchError> {
        let places = self.places.iter();
        Ok(Members {
            weights: self.select(parameters.tensors()),
            gradients: places
                .map(|place| gradient(parameters, *place))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Selects the group's tensors from a list with one tensor per parameter.
    pub(super) fn select(&self, tensors: &[Tensor]) -> Vec<Tensor> {
        let places = self.places.iter();
        places
            .map(|place| tensors[*place].shallow_clone())
            .collect()
    }

    /// The weight decay of the group: 0 if it does not decay.
    pub(super) fn decay(&self, weight_decay: f64) -> f64 {
        if self.decays { weight_decay } else { 0.0 }
    }
}

impl Members {
    /// Returns the members with gradients divided by the divisor, if there is one.
    pub(super) fn divided(self, divisor: Option<&Tensor>) -> Result<Self, TchError> {
        let gradients = kernels::divided(&self.gradients, divisor)?;
        Ok(Self { gradients, ..self })
    }
}

/// The gradient of the parameter at a place.
pub(super) fn gradient(parameters: &Parameters, place: usize) -> Result<Tensor, TchError> {
    let name = || parameters.iter().nth(place).map_or("", |(name, _)| name);
    kernels::gradient(&parameters.tensors()[place], name)
}
