//! Gives each process of a replica different experts.

use std::ops::Range;
use std::sync::Arc;

use tch::{Device, Kind, TchError, Tensor};

use super::{Shards, Unit, absent, length_of};
use crate::experts::ExpertParallel;
use crate::parameters::{Parameters, Role};
use crate::sync::SyncError;

impl Shards {
    /// Moves the experts of each layer into a unit. The number of processes divides their number.
    pub(super) fn spread_experts(
        &mut self,
        parameters: &mut Parameters,
        device: Device,
    ) -> Result<(), SyncError> {
        let handle = roundhouse_c10d::Experts::of(&self.sharding)?;
        let (index, size) = (self.sharing.shard, self.sharing.num_shards);
        let mut expert_parallel = ExpertParallel::new(handle, (index as usize, size as usize));
        for experts in parameters.experts().to_vec() {
            expert_parallel.add(&experts, self.units.len());
            let unit = self.spread_layer(parameters, &experts, device)?;
            self.push(unit);
        }
        self.num_layers_of_experts = self.units.len();
        self.expert_parallel = Some(Arc::new(expert_parallel));
        Ok(())
    }

    /// Moves the experts with these places into a unit.
    fn spread_layer(
        &self,
        parameters: &mut Parameters,
        experts: &[Range<usize>],
        device: Device,
    ) -> Result<Unit, SyncError> {
        let (index, size) = (
            self.sharing.shard as usize,
            self.sharing.num_shards as usize,
        );
        let mut all = experts.iter().cloned().flatten();
        if all.any(|place| parameters.roles()[place] != Role::Weight) {
            let words = "an expert has running statistics, which processes with different experts cannot sum: \
                         remove parallel.expert, or the statistics";
            return Err(TchError::Shape(words.to_owned()).into());
        }
        if experts.is_empty() || !experts.len().is_multiple_of(size) {
            let words = format!("{} experts for {size} processes", experts.len());
            return Err(TchError::Shape(words).into());
        }
        let tensors_of = |places: &[usize]| -> Vec<Tensor> {
            let tensors = places.iter();
            tensors
                .map(|it| parameters.at(*it).shallow_clone())
                .collect()
        };
        let of_processes = experts.chunks(experts.len() / size);
        let places: Vec<Vec<usize>> = of_processes
            .map(|it| it.iter().cloned().flatten().collect())
            .collect();
        let lengths = places
            .iter()
            .map(|it| Parameters::starts(&tensors_of(it)).1);
        let part = lengths.max().unwrap_or_default();
        let own_tensors = tensors_of(&places[index]);
        let (own_starts, _) = Parameters::starts(&own_tensors);
        let own = Tensor::f_zeros([part], (Kind::Float, Device::Cpu))?;
        for (tensor, start) in own_tensors.iter().zip(&own_starts) {
            let mut place = own.f_narrow(0, *start, length_of(tensor))?;
            place.f_copy_(&tensor.f_detach()?.f_reshape([-1])?)?;
        }
        let own = own
            .f_to_device(device)?
            .f_detach()?
            .f_set_requires_grad(true)?;
        self.sharding.add(&own_tensors, &own_starts, &own, None)?;
        let mut starts = Vec::new();
        for (first, places) in (0..).map(|process| process * part).zip(&places) {
            let (within, _) = Parameters::starts(&tensors_of(places));
            starts.extend(within.into_iter().map(|start| first + start));
        }
        let places = places.concat();
        for place in &places {
            let shape = parameters.at(*place).size();
            parameters.tensors_mut()[*place] = absent(&shape, device)?;
        }
        Ok(Unit {
            places,
            starts,
            own,
            whole: None,
        })
    }
}
