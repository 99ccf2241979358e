//! Tensor parallelism (Shoeybi et al. 2019): the processes of a replica compute the same samples,
//! and each has a part of most weights.
//!
//! A layer whose outputs are cut computes some of them in each process. The next layer, whose
//! inputs are cut, computes a part of a sum in each process. So a pair of layers needs two sums
//! over the processes: of the second layer's outputs in the forward pass, and of the gradient of
//! the first layer's input in the backward pass. Weights that are not cut are equal in all
//! processes, and so are their gradients. PyTorch calls the two layers column-wise and row-wise
//! parallel, and Megatron-LM the two operations f and g.

use std::sync::Arc;

use roundhouse_c10d::ReduceOp;
use roundhouse_elastic::state::layout::Sharing;
use tch::{Device, Kind, TchError, Tensor};

use crate::group::C10dGroup;
use crate::parameters::Parameters;
use crate::sync::SyncError;

mod part;
mod vocabulary;

pub(crate) use part::{Cut, Part};
pub(crate) use vocabulary::Vocabulary;

/// The parts of the parameters that this process of a replica has.
#[derive(Debug)]
pub(crate) struct TensorParallel {
    group: Arc<C10dGroup>,
    sharing: Sharing,
    /// The part of each parameter; `None`: all processes have all of it.
    parts: Vec<Option<Part>>,
}

impl TensorParallel {
    /// Cuts the parameters. All processes pass equal ones. Moves what this process has to the
    /// device.
    ///
    /// # Errors
    /// There is too little memory.
    pub(crate) fn divide(
        parameters: &mut Parameters,
        device: Device,
        group: Arc<C10dGroup>,
        sharing: Sharing,
    ) -> Result<(), TchError> {
        let cuts = parameters.cuts().to_vec();
        let mut parts = Vec::new();
        for (tensor, cut) in parameters.tensors_mut().iter_mut().zip(cuts) {
            let process = (sharing.shard.into(), sharing.num_shards.into());
            let part = cut.map(|cut| Part::new(&tensor.size(), cut, process));
            if let Some(part) = &part {
                let own = part.of(&tensor.f_detach()?)?;
                *tensor = own.f_set_requires_grad(true)?;
            }
            parts.push(part);
        }
        parameters.move_to(device)?;
        parameters.set_tensor_parallel(Self {
            group,
            sharing,
            parts,
        });
        Ok(())
    }

    /// The place of this process in its replica.
    pub(crate) const fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// The part of a parameter; `None`: all processes have all of it.
    pub(crate) fn part(&self, place: usize) -> Option<&Part> {
        self.parts.get(place)?.as_ref()
    }

    /// The input of layers whose outputs are cut.
    pub(crate) fn sum_gradients(&self, x: &Tensor) -> Result<Tensor, TchError> {
        self.in_pass(self.group.process_group().sum_gradients(x))
    }

    /// The output of a layer whose inputs are cut.
    pub(crate) fn sum_values(&self, own: &Tensor) -> Result<Tensor, TchError> {
        self.in_pass(self.group.process_group().sum_values(own))
    }

    /// The largest values of all processes, without a graph.
    fn max(&self, own: &Tensor) -> Result<Tensor, TchError> {
        let mut most = own.f_detach()?.f_contiguous()?;
        let group = self.group.process_group();
        let result = group.all_reduce(&mut most, ReduceOp::Max);
        self.in_pass(result.map(|()| most))
    }

    fn in_pass(&self, result: roundhouse_c10d::Result<Tensor>) -> Result<Tensor, TchError> {
        result.map_err(|error| self.group.failed_in_pass(error))
    }

    /// The error of the first sum that has failed in a forward pass.
    pub(crate) fn failure(&self) -> Option<String> {
        Some(self.group.failed_sum()?.to_string())
    }

    /// All tensors with their whole values, on the CPU; empty unless `keeps`. A collective of the
    /// replica.
    ///
    /// # Errors
    /// Another process of the replica is lost, or there is too little memory.
    pub(crate) fn whole(
        &self,
        parameters: &Parameters,
        keeps: bool,
    ) -> Result<Parameters, SyncError> {
        let mut all = Parameters::default();
        let tensors = parameters.iter().zip(parameters.roles()).zip(&self.parts);
        for (((name, tensor), role), part) in tensors {
            let own = tensor.f_detach()?;
            let value = match part {
                None => own,
                Some(part) => match self.whole_of(part, &own, keeps)? {
                    Some(value) => value,
                    None => continue,
                },
            };
            if keeps {
                all.push_on_cpu(name, *role, &value)?;
            }
        }
        Ok(all)
    }

    fn whole_of(
        &self,
        part: &Part,
        own: &Tensor,
        keeps: bool,
    ) -> Result<Option<Tensor>, SyncError> {
        let number = self.sharing.num_shards;
        let parts: Vec<Part> = (0..number)
            .map(|process| part.of_process((process.into(), number.into())))
            .collect();
        let mut values = Vec::new();
        for (process, part) in (0..).zip(&parts) {
            values.push(if process == self.sharing.shard {
                own.f_contiguous()?
            } else {
                Tensor::f_empty(part.shape(), (Kind::Float, own.device()))?
            });
        }
        let sent = self.group.process_group().broadcast_each(&mut values);
        sent.map_err(SyncError::Replica)?;
        if !keeps {
            return Ok(None);
        }
        let whole = Tensor::f_empty(part.whole_shape(), (Kind::Float, own.device()))?;
        for (part, value) in parts.iter().zip(&values) {
            part.copy_to(&whole, value)?;
        }
        Ok(Some(whole))
    }
}
