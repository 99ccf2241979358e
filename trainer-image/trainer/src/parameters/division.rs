//! What a process of a replica has of the parameters.

use std::sync::Arc;

use roundhouse_elastic::state::layout::Sharing;
use tch::{TchError, Tensor};

use super::{Parameters, Role};
use crate::experts::Spread;
use crate::sync::SyncError;
use crate::tensor_parallel::{Cut, TensorParallel, Vocabulary};

/// What this process has of layers that the processes of a replica divide.
#[derive(Clone, Debug, Default)]
pub(crate) struct Division {
    /// Where the experts are; `None`: this process has all of them.
    pub(crate) experts: Option<Arc<Spread>>,
    /// The parts of cut tensors; `None`: this process has all of each tensor.
    pub(crate) tensors: Option<Arc<TensorParallel>>,
}

impl Parameters {
    /// A window whose block uses layers that are divided.
    pub(crate) fn with_division(self, division: Division) -> Self {
        Self { division, ..self }
    }

    pub(crate) const fn division(&self) -> &Division {
        &self.division
    }

    /// With tensor parallelism the processes cut a dimension of the tensor at this place, which has
    /// so many equal groups: see [`Cut`].
    pub(crate) fn cut(&mut self, place: usize, dim: usize, groups: i64) {
        self.cuts[place] = Some(Cut { dim, groups });
    }

    /// How tensor parallelism cuts each tensor.
    pub(crate) fn cuts(&self) -> &[Option<Cut>] {
        &self.cuts
    }

    /// Puts parts of tensors in place of whole ones.
    pub(crate) fn set_tensor_parallel(&mut self, tensors: TensorParallel) {
        self.division.tensors = Some(Arc::new(tensors));
    }

    /// The part of the vocabulary of an embedding `[V, W]` at this place; `None`: this process has
    /// all of it.
    pub(crate) fn vocabulary(&self, place: usize) -> Option<Vocabulary> {
        Vocabulary::of(self.division.tensors.as_ref()?, place)
    }

    /// The input of layers whose outputs are cut. Equal in all processes.
    pub(crate) fn for_parts(&self, x: &Tensor) -> Result<Tensor, TchError> {
        match &self.division.tensors {
            None => Ok(x.shallow_clone()),
            Some(tensors) => tensors.sum_gradients(x),
        }
    }

    /// Number of processes that have parts of a layer.
    pub(crate) fn num_parts(&self) -> u32 {
        let tensors = self.division.tensors.as_ref();
        tensors.map_or(1, |it| it.sharing().num_shards)
    }

    /// Index of this process among those that have parts of a layer.
    pub(crate) fn part(&self) -> u32 {
        let tensors = self.division.tensors.as_ref();
        tensors.map_or(0, |it| it.sharing().shard)
    }

    /// The place of this process in its replica; `None`: it has all weights and gradients.
    pub(crate) fn sharing(&self) -> Option<Sharing> {
        let tensors = self.division.tensors.as_ref().map(|it| it.sharing());
        tensors.or_else(|| Some(self.shards.as_ref()?.sharing()))
    }

    /// Whether a pass needs all processes of the replica, because each has only a part of the
    /// weights.
    pub(crate) fn gathers(&self) -> bool {
        self.division.tensors.is_some() || self.shards.as_ref().is_some_and(|it| it.gathers())
    }

    /// What has failed in a pass with the other processes of the replica.
    pub(crate) fn failure_in_pass(&self) -> Option<String> {
        let tensors = self.division.tensors.as_ref();
        let tensors = tensors.and_then(|it| it.failure());
        tensors.or_else(|| self.shards.as_ref()?.sharding().failure())
    }

    /// All tensors with their whole values, on the CPU, if the processes of a replica have only
    /// parts; empty unless `keeps`. A collective of the replica.
    ///
    /// # Errors
    /// Another process of the replica is lost, or there is too little memory.
    pub(crate) fn whole(&self, keeps: bool) -> Result<Option<Self>, SyncError> {
        if let Some(tensors) = &self.division.tensors {
            return tensors.whole(self, keeps).map(Some);
        }
        let shards = self.shards.as_ref().filter(|_| self.gathers());
        shards.map(|it| it.whole(self, keeps)).transpose()
    }

    /// The tensors with gradients that this process updates. First come those that it alone has,
    /// and their number is also returned.
    pub(crate) fn leaves(&self) -> (Self, usize) {
        let mut leaves = Self::default();
        if let Some(shards) = &self.shards {
            for shard in shards.own() {
                leaves.push_shared(String::new(), Role::Weight, shard);
            }
        }
        let is_cut = |place: usize| {
            let tensors = self.division.tensors.as_ref();
            tensors.is_some_and(|it| it.part(place).is_some())
        };
        let is_sharded = |place: usize| self.shards.as_ref().is_some_and(|it| it.has(place));
        let mut num_own = leaves.tensors.len();
        for of_cut in [true, false] {
            for (place, ((name, tensor), role)) in self.iter().zip(&self.roles).enumerate() {
                if is_cut(place) == of_cut && !is_sharded(place) {
                    leaves.push_shared(name.to_owned(), *role, tensor);
                }
            }
            if of_cut {
                num_own = leaves.tensors.len();
            }
        }
        (leaves, num_own)
    }
}
