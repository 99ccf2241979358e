//! What a process of a replica has of the parameters.

use std::sync::Arc;

use roundhouse_elastic::state::layout::Sharing;
use tch::{TchError, Tensor};

use super::{Parameters, Role};
use crate::experts::ExpertParallel;
use crate::pipeline::{Layer, Pipeline};
use crate::sync::SyncError;
use crate::tensor_parallel::{Cut, TensorParallel, Vocabulary};

/// What this process has of layers that the processes of a replica divide.
#[derive(Clone, Debug, Default)]
pub(crate) struct Division {
    /// Where the experts are; `None`: this process has all of them.
    pub(crate) expert_parallel: Option<Arc<ExpertParallel>>,
    /// The parts of cut tensors; `None`: this process has all of each tensor.
    pub(crate) tensor_parallel: Option<Arc<TensorParallel>>,
    /// The layers of this process; `None`: it has all layers.
    pub(crate) pipeline: Option<Arc<Pipeline>>,
}

/// Which processes of the replica hold a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// This one alone has it, or this part of it.
    Alone,
    /// Others have it, too.
    ByOthers,
    /// It is in a unit of [`Shards`](crate::shards::Shards).
    InUnit,
    /// Only others have it.
    Absent,
}

impl Parameters {
    /// A window whose block uses layers that are divided.
    pub(crate) fn with_division(self, division: Division) -> Self {
        Self { division, ..self }
    }

    pub(crate) const fn division(&self) -> &Division {
        &self.division
    }

    /// With tensor parallelism the processes cut a dimension of the tensor at this place, which
    /// consists of `groups` equal groups: see [`Cut`].
    pub(crate) fn cut(&mut self, place: usize, dim: usize, groups: i64) {
        self.cuts[place] = Some(Cut { dim, groups });
    }

    /// How tensor parallelism cuts each tensor.
    pub(crate) fn cuts(&self) -> &[Option<Cut>] {
        &self.cuts
    }

    /// Puts parts of tensors in place of whole ones.
    pub(crate) fn set_tensor_parallel(&mut self, tensors: TensorParallel) {
        self.division.tensor_parallel = Some(Arc::new(tensors));
    }

    /// Assigns the tensor at this place to a layer of a pipeline.
    pub(crate) fn assign_one(&mut self, place: usize, layer: Layer) {
        self.layers[place] = Some(layer);
    }

    /// Assigns all tensors so far that are in no layer to this one.
    pub(crate) fn assign(&mut self, layer: Layer) {
        let unassigned = self.layers.iter_mut().filter(|it| it.is_none());
        unassigned.for_each(|it| *it = Some(layer));
    }

    /// [`Self::assign`] to the block with this index.
    pub(crate) fn assign_block(&mut self, block: i64) {
        self.assign(Layer::Block(usize::try_from(block).unwrap_or_default()));
    }

    /// The layer of each tensor in a pipeline.
    pub(crate) fn layers(&self) -> &[Option<Layer>] {
        &self.layers
    }

    pub(crate) fn set_pipeline(&mut self, pipeline: Pipeline) {
        self.division.pipeline = Some(Arc::new(pipeline));
    }

    pub(crate) fn pipeline(&self) -> Option<&Arc<Pipeline>> {
        self.division.pipeline.as_ref()
    }

    /// The part of the vocabulary of an embedding `[V, W]` at this place; `None`: this process has
    /// all of it.
    pub(crate) fn vocabulary(&self, place: usize) -> Option<Vocabulary> {
        Vocabulary::of(self.division.tensor_parallel.as_ref()?, place)
    }

    /// The input of layers whose outputs are cut. Equal in all processes.
    pub(crate) fn input_of_colwise(&self, x: &Tensor) -> Result<Tensor, TchError> {
        match &self.division.tensor_parallel {
            None => Ok(x.shallow_clone()),
            Some(tensors) => tensors.sum_gradients(x),
        }
    }

    /// The output of a row-wise layer, from this process' part of the sum. Equal in all processes.
    pub(crate) fn output_of_rowwise(
        &self,
        part: &Tensor,
        bias: Option<usize>,
    ) -> Result<Tensor, TchError> {
        let sum = match &self.division.tensor_parallel {
            None => part.shallow_clone(),
            Some(tensor_parallel) => tensor_parallel.sum_values(part)?,
        };
        match bias {
            Some(place) => sum.f_add(self.at(place)),
            None => Ok(sum),
        }
    }

    /// Number of processes that have parts of a layer.
    pub(crate) fn tensor_size(&self) -> u32 {
        let tensors = self.division.tensor_parallel.as_ref();
        tensors.map_or(1, |it| it.sharing().num_shards)
    }

    /// Index of this process among those that have parts of a layer.
    pub(crate) fn tensor_rank(&self) -> u32 {
        let tensors = self.division.tensor_parallel.as_ref();
        tensors.map_or(0, |it| it.sharing().shard)
    }

    /// The place of this process in its replica; `None`: it has all weights and gradients.
    pub(crate) fn sharing(&self) -> Option<Sharing> {
        self.alike()
            .or_else(|| Some(self.shards.as_ref()?.sharing()))
    }

    /// The place of this process in a replica that computes the same samples in all processes.
    fn alike(&self) -> Option<Sharing> {
        let tensors = self
            .division
            .tensor_parallel
            .as_ref()
            .map(|it| it.sharing());
        tensors.or_else(|| Some(self.pipeline()?.sharing()))
    }

    /// The place of a rank among the shares of a batch, and their number. Processes that divide
    /// layers compute the same share.
    pub(crate) fn share_of(&self, rank: u32, world_size: u32) -> (u32, u32) {
        let num_alike = self.alike().map_or(1, |it| it.num_shards);
        (rank / num_alike, world_size / num_alike)
    }

    /// Whether the losses of this process count, or those of another one for the same samples.
    pub(crate) fn counts_losses(&self) -> bool {
        match (&self.division.tensor_parallel, self.pipeline()) {
            (Some(tensors), _) => tensors.sharing().shard == 0,
            (None, Some(pipeline)) => pipeline.stage().is_last(),
            (None, None) => true,
        }
    }

    /// Whether a pass needs all processes of the replica, because each has only a part of the
    /// weights.
    pub(crate) fn needs_replica(&self) -> bool {
        self.alike().is_some() || self.shards.as_ref().is_some_and(|it| it.needs_replica())
    }

    /// What has failed in a pass with the other processes of the replica.
    pub(crate) fn failure_in_pass(&self) -> Option<String> {
        let tensors = self.division.tensor_parallel.as_ref();
        let tensors = tensors.and_then(|it| it.failure());
        let pipeline = || self.pipeline()?.failure();
        tensors
            .or_else(pipeline)
            .or_else(|| self.shards.as_ref()?.sharding().failure())
    }

    /// All tensors with their whole values, on the CPU, if the processes of a replica have only
    /// parts; empty unless `keeps`. A collective of the replica.
    ///
    /// # Errors
    /// Another process of the replica is lost, or there is too little memory.
    pub(crate) fn whole(&self, keeps: bool) -> Result<Option<Self>, SyncError> {
        if let Some(tensors) = &self.division.tensor_parallel {
            return tensors.whole(self, keeps).map(Some);
        }
        if let Some(pipeline) = self.pipeline() {
            return pipeline.whole(self, keeps).map(Some);
        }
        let shards = self.shards.as_ref().filter(|_| self.needs_replica());
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
        let mut num_own = leaves.tensors.len();
        for which in [Held::Alone, Held::ByOthers] {
            for (place, ((name, tensor), role)) in self.iter().zip(&self.roles).enumerate() {
                if self.held(place) == which {
                    leaves.push_shared(name.to_owned(), *role, tensor);
                }
            }
            if which == Held::Alone {
                num_own = leaves.tensors.len();
            }
        }
        (leaves, num_own)
    }

    /// How this process holds the tensor at a place.
    fn held(&self, place: usize) -> Held {
        if self.shards.as_ref().is_some_and(|it| it.has(place)) {
            return Held::InUnit;
        }
        let is_alone = match (&self.division.tensor_parallel, self.pipeline()) {
            (Some(tensors), _) => tensors.part(place).is_some(),
            (None, Some(pipeline)) if !pipeline.has(place) => return Held::Absent,
            (None, Some(pipeline)) => !pipeline.is_shared(place),
            (None, None) => false,
        };
        if is_alone {
            Held::Alone
        } else {
            Held::ByOthers
        }
    }
}
