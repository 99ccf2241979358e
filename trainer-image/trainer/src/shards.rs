//! Weights that are sharded over the processes of a replica: stages 2 and 3 of `ZeRO` (Rajbhandari
//! et al., 2020).
//!
//! The weights of each segment lie one after the other in a vector, which is cut into equal parts.
//! Each process has one part of each vector. With stage 2 it also has the vectors, but the
//! gradients of its parts alone.
//!
//! The experts of a layer can be a vector of their own, whose parts have whole experts and are
//! never gathered.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use roundhouse_c10d::Sharding;
use roundhouse_elastic::state::layout::Sharing;
use tch::{Device, TchError, Tensor};

use crate::experts::ExpertParallel;
use crate::group::C10dGroup;
use crate::parameters::Parameters;
use crate::sync::{Exchange, SyncError};
use crate::update::Piece;

mod cut;
mod experts;
#[cfg(test)]
mod tests;

pub(crate) use cut::{ShardOptions, absent};

/// The weights of a segment, or of the experts of a layer.
#[derive(Debug)]
struct Unit {
    /// The places of the weights, and where each starts in the vector.
    places: Vec<usize>,
    starts: Vec<i64>,
    /// The part of this process, a leaf.
    own: Tensor,
    /// With stage 2: the vector.
    whole: Option<Tensor>,
}

/// All sharded weights of a model.
#[derive(Debug)]
pub(crate) struct Shards {
    sharding: Sharding,
    group: Arc<C10dGroup>,
    sharing: Sharing,
    units: Vec<Unit>,
    /// The unit of each place.
    of_places: HashMap<usize, usize>,
    /// Where the experts are, if the processes have different ones.
    expert_parallel: Option<Arc<ExpertParallel>>,
    /// Number of units of experts, which come first.
    num_layers_of_experts: usize,
}

impl Shards {
    /// The unit with the weights of a segment; `None`: it has no weights.
    pub(crate) fn unit(&self, places: &[usize]) -> Option<usize> {
        let mut known = places.iter().filter_map(|it| self.of_places.get(it));
        let index = *known.next()?;
        let unit = &self.units[index];
        let is_same = unit.places.iter().all(|place| places.contains(place));
        (is_same && known.count() + 1 == unit.places.len()).then_some(index)
    }

    /// Whether the weight at this place is in a unit.
    pub(crate) fn has(&self, place: usize) -> bool {
        self.of_places.contains_key(&place)
    }

    /// Where the experts are; `None`: they are in the segments of their layers.
    pub(crate) const fn expert_parallel(&self) -> Option<&Arc<ExpertParallel>> {
        self.expert_parallel.as_ref()
    }

    /// Those of a segment's places that are not of experts in a unit of their own.
    pub(crate) fn without_experts(&self, places: &[usize]) -> Vec<usize> {
        let places = places.iter().copied();
        places.filter(|place| !self.is_of_expert(*place)).collect()
    }

    fn is_of_expert(&self, place: usize) -> bool {
        let unit = self.of_places.get(&place);
        unit.is_some_and(|unit| *unit < self.num_layers_of_experts)
    }

    /// Whether this process has the whole weight at this place.
    pub(crate) fn has_whole(&self, place: usize) -> bool {
        let unit = self.of_places.get(&place);
        unit.is_none_or(|unit| self.units[*unit].whole.is_some())
    }

    /// The parts of this process, which are leaves, in the order of the units.
    pub(crate) fn own(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.units.iter().map(|unit| &unit.own)
    }

    /// Runs a segment with the weights of a unit: see [`Sharding::apply`].
    pub(crate) fn apply<F>(
        &self,
        unit: usize,
        recomputes: bool,
        x: &Tensor,
        run: F,
    ) -> roundhouse_c10d::Result<Tensor>
    where
        F: FnMut(&Tensor, Vec<Tensor>) -> Result<Tensor, TchError> + Send + 'static,
    {
        self.sharding.apply(unit, recomputes, x, run)
    }

    /// The passes of the replica: see [`Sharding`].
    pub(crate) const fn sharding(&self) -> &Sharding {
        &self.sharding
    }

    /// Takes the gradients of this process' part of a unit: see [`Sharding::gradients`].
    pub(crate) fn gradients(&self, unit: usize) -> Result<Tensor, TchError> {
        let gradients = self.sharding.gradients(unit);
        gradients.map_err(|error| TchError::Torch(error.message))
    }

    /// The concatenated chunks of all processes of the replica.
    ///
    /// # Errors
    /// Another process of the replica is lost.
    pub(crate) fn all_gather(&self, chunk: &Tensor) -> Result<Tensor, SyncError> {
        let gathered = self.group.all_gather(chunk);
        gathered.map_err(|error| match error {
            SyncError::Group(error) => SyncError::Replica(error),
            other => other,
        })
    }

    /// The place of this process in its replica.
    pub(crate) const fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Whether a pass needs all processes of the replica, because each has only a part of the
    /// weights.
    pub(crate) fn needs_replica(&self) -> bool {
        self.units.iter().any(|unit| unit.whole.is_none())
    }

    /// The memory of a piece in the part of this process.
    pub(crate) fn weights_of(&self, piece: &Piece) -> Result<Tensor, TchError> {
        let unit = &self.units[self.of_places[&piece.place]];
        self.narrow(unit, piece, &unit.own.f_detach()?)
    }

    /// The memory of the gradient of a piece in the part of this process.
    pub(crate) fn gradient_of(&self, piece: &Piece) -> Result<Tensor, TchError> {
        let unit = &self.units[self.of_places[&piece.place]];
        self.narrow(unit, piece, &unit.own.f_grad()?)
    }

    fn narrow(&self, unit: &Unit, piece: &Piece, own: &Tensor) -> Result<Tensor, TchError> {
        let index = unit.places.iter().position(|place| *place == piece.place);
        let start = unit.starts[index.unwrap_or(usize::MAX)] - self.part(&unit.own).start;
        let Range { start: first, end } = piece.elements;
        own.f_narrow(0, start + first, end - first)
    }

    /// The elements of each weight that are in the parts of this process.
    pub(crate) fn pieces(&self, parameters: &Parameters) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for unit in &self.units {
            let part = self.part(&unit.own);
            for (place, start) in unit.places.iter().zip(&unit.starts) {
                let length = length_of(&parameters.tensors()[*place]);
                pieces.extend(Piece::in_part(*place, length, *start, &part));
            }
        }
        pieces
    }

    /// The part of this process in the vector of a unit.
    fn part(&self, own: &Tensor) -> Range<i64> {
        let length = length_of(own);
        let start = i64::from(self.sharing.shard) * length;
        start..start + length
    }

    /// Discards all gradients, also those of passes that have failed.
    pub(crate) fn forget_gradients(&self) -> roundhouse_c10d::Result<()> {
        self.sharding.abandon()?;
        let mut own: Vec<Tensor> = self.own().map(Tensor::shallow_clone).collect();
        roundhouse_c10d::zero_grad(&mut own)
    }

    /// With stage 2: sends the updated parts to all processes. A collective of the replica.
    ///
    /// # Errors
    /// Another process of the replica is lost.
    pub(crate) fn send_parts(&self) -> Result<(), SyncError> {
        for whole in self.units.iter().filter_map(|unit| unit.whole.as_ref()) {
            let mut parts = whole.f_chunk(self.sharing.num_shards.into(), 0)?;
            let sent = self.group.process_group().broadcast_each(&mut parts);
            sent.map_err(SyncError::Replica)?;
        }
        Ok(())
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
        let values = parameters.tensors().iter();
        let mut values: Vec<Tensor> = values.map(Tensor::shallow_clone).collect();
        for unit in &self.units {
            let own = unit.own.f_detach()?;
            let whole = self.all_gather(&own)?;
            if !keeps {
                continue;
            }
            let whole = whole.f_to_device(Device::Cpu)?;
            for (place, start) in unit.places.iter().zip(&unit.starts) {
                let shape = values[*place].size();
                let value = whole.f_narrow(0, *start, shape.iter().product())?;
                values[*place] = value.f_view(&*shape)?;
            }
        }
        let mut all = Parameters::default();
        if !keeps {
            return Ok(all);
        }
        for (((name, _), role), value) in parameters.iter().zip(parameters.roles()).zip(values) {
            all.push_on_cpu(name, *role, &value)?;
        }
        Ok(all)
    }
}

fn length_of(tensor: &Tensor) -> i64 {
    tensor.size().iter().product()
}
