//! Cuts the weights of a model into shards.

use std::collections::HashMap;
use std::sync::Arc;

use roundhouse_c10d::Sharding;
use roundhouse_contract::trainer::Shard;
use roundhouse_elastic::state::layout::Sharing;
use tch::{Device, Kind, TchError, Tensor};

use super::{Shards, Unit, length_of};
use crate::group::C10dGroup;
use crate::parameters::{Parameters, Role};
use crate::sync::SyncError;

/// How weights are sharded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardOptions {
    /// The stage of `ZeRO`: 2 or 3.
    pub(crate) shard: Shard,
    /// Whether only the sums of the gradients of all processes are used.
    pub(crate) sums: bool,
    /// Whether each process has different experts.
    pub(crate) spreads_experts: bool,
}

impl Shards {
    /// Shards the weights of all segments over the processes of a replica, which pass equal
    /// parameters. Moves this process' parts, and all tensors that are not sharded, to the device.
    ///
    /// # Errors
    /// There is too little memory, two segments have only some weights in common, or the experts
    /// cannot be divided.
    pub(crate) fn divide(
        parameters: &mut Parameters,
        device: Device,
        group: Arc<C10dGroup>,
        sharing: Sharing,
        how: ShardOptions,
    ) -> Result<(), SyncError> {
        let ShardOptions {
            shard,
            sums,
            spreads_experts,
        } = how;
        let keeps_whole = shard != Shard::Zero3;
        let mut shards = Self {
            sharding: Sharding::new(group.process_group(), keeps_whole, sums)?,
            group,
            sharing,
            units: Vec::new(),
            of_places: HashMap::new(),
            expert_parallel: None,
            num_layers_of_experts: 0,
        };
        if spreads_experts {
            shards.spread_experts(parameters, device)?;
        }
        for places in parameters.segments().to_vec() {
            let is_weight = |place: &usize| parameters.roles()[*place] == Role::Weight;
            let mut places = shards.without_experts(&places);
            places.retain(is_weight);
            if places.is_empty() || shards.is_known(&places)? {
                continue;
            }
            let unit = shards.cut(parameters, places, device, keeps_whole)?;
            shards.push(unit);
        }
        parameters.move_to(device)?;
        parameters.set_shards(shards);
        Ok(())
    }

    pub(super) fn push(&mut self, unit: Unit) {
        let index = self.units.len();
        let known = unit.places.iter().map(|place| (*place, index));
        self.of_places.extend(known);
        self.units.push(unit);
    }

    /// Whether these places are a unit.
    fn is_known(&self, places: &[usize]) -> Result<bool, TchError> {
        let known = places.iter().any(|place| self.has(*place));
        if known && self.unit(places).is_none() {
            let words = "segments with a common weight must have the same weights";
            return Err(TchError::Shape(words.to_owned()));
        }
        Ok(known)
    }

    /// Moves the weights at these places into a unit.
    fn cut(
        &self,
        parameters: &mut Parameters,
        places: Vec<usize>,
        device: Device,
        keeps_whole: bool,
    ) -> Result<Unit, SyncError> {
        let like: Vec<Tensor> = places
            .iter()
            .map(|it| parameters.at(*it).shallow_clone())
            .collect();
        let (starts, end) = Parameters::starts(&like);
        let size = i64::from(self.sharing.num_shards);
        let part = end.cast_unsigned().div_ceil(size.cast_unsigned());
        let part = part.next_multiple_of(Parameters::BLOCK).cast_signed();
        let from = if keeps_whole { device } else { Device::Cpu };
        let whole = Tensor::f_zeros([part * size], (Kind::Float, from))?;
        for (tensor, start) in like.iter().zip(&starts) {
            let mut place = whole.f_narrow(0, *start, length_of(tensor))?;
            place.f_copy_(&tensor.f_detach()?.f_reshape([-1])?)?;
        }
        let cut = whole.f_narrow(0, i64::from(self.sharing.shard) * part, part)?;
        let own = if keeps_whole {
            cut
        } else {
            let mut copy = cut.f_empty_like()?;
            copy.f_copy_(&cut)?;
            copy.f_to_device(device)?
        };
        let own = own.f_detach()?.f_set_requires_grad(true)?;
        let whole = keeps_whole.then_some(whole);
        self.sharding.add(&like, &starts, &own, whole.as_ref())?;
        for ((place, tensor), start) in places.iter().zip(&like).zip(&starts) {
            let shape = tensor.size();
            let in_place = match &whole {
                Some(whole) => whole
                    .f_narrow(0, *start, length_of(tensor))?
                    .f_view(&*shape)?,
                None => absent(&shape, device)?,
            };
            parameters.tensors_mut()[*place] = in_place;
        }
        Ok(Unit {
            places,
            starts,
            own,
            whole,
        })
    }
}

/// A tensor of this shape without memory.
pub(crate) fn absent(shape: &[i64], device: Device) -> Result<Tensor, TchError> {
    Tensor::f_full([], f64::NAN, (Kind::Float, device))?.f_expand(shape, false)
}
