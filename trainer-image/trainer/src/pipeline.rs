//! Pipelines (Huang et al. 2019): the processes of a replica compute the same samples, and each has
//! some layers.
//!
//! A model has a number of blocks. The first process also has what comes before them, and the last
//! one what follows. A tied embedding is in both.

use std::sync::Arc;

use roundhouse_c10d::{Exchange, Pipe};
use roundhouse_elastic::state::layout::Sharing;
use tch::{Device, TchError, Tensor};

use crate::group::C10dGroup;
use crate::parameters::Parameters;
use crate::shards::absent;
use crate::sync::SyncError;

/// The part of a model to which a parameter belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    /// What comes before the blocks.
    First,
    /// The block with this index.
    Block(usize),
    /// What follows the blocks.
    Last,
    /// Both ends use it.
    Ends,
}

/// Where a process is in the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stage {
    pub(crate) index: usize,
    pub(crate) number: usize,
    num_blocks: usize,
}

impl Stage {
    pub(crate) const fn is_first(self) -> bool {
        self.index == 0
    }

    pub(crate) const fn is_last(self) -> bool {
        self.index + 1 == self.number
    }

    /// The blocks of this process.
    pub(crate) fn blocks(self) -> std::ops::Range<usize> {
        self.start_of(self.index)..self.start_of(self.index + 1)
    }

    const fn start_of(self, index: usize) -> usize {
        self.num_blocks * index / self.number
    }

    /// Whether this process has a layer.
    pub(crate) fn has(self, layer: Layer) -> bool {
        match layer {
            Layer::First => self.is_first(),
            Layer::Block(block) => self.blocks().contains(&block),
            Layer::Last => self.is_last(),
            Layer::Ends => self.is_first() || self.is_last(),
        }
    }

    /// The first process that has a layer.
    fn owner_of(self, layer: Layer) -> usize {
        let at = |index: &usize| Self {
            index: *index,
            ..self
        };
        let mut all = 0..self.number;
        all.find(|index| at(index).has(layer)).unwrap_or_default()
    }
}

/// The layers of this process of a replica.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pipe: Pipe,
    group: Arc<C10dGroup>,
    /// The same processes, for gradients.
    up: Arc<C10dGroup>,
    sharing: Sharing,
    stage: Stage,
    layers: Vec<Layer>,
}

impl Pipeline {
    /// Keeps the parameters of this process' layers, and moves them to the device. `up` has the
    /// same processes as `group`.
    ///
    /// # Errors
    /// There is too little memory, or the model names no layers.
    pub(crate) fn divide(
        parameters: &mut Parameters,
        device: Device,
        (group, up): (Arc<C10dGroup>, Arc<C10dGroup>),
        sharing: Sharing,
    ) -> Result<(), SyncError> {
        let layers: Option<Vec<Layer>> = parameters.layers().iter().copied().collect();
        let layers = layers.ok_or_else(|| {
            TchError::Shape("the model has parameters that are in no layer".to_owned())
        })?;
        let block = |layer: &Layer| match layer {
            Layer::Block(block) => block + 1,
            Layer::First | Layer::Last | Layer::Ends => 0,
        };
        let stage = Stage {
            index: sharing.shard as usize,
            number: sharing.num_shards as usize,
            num_blocks: layers.iter().map(block).max().unwrap_or_default(),
        };
        let tensors = parameters.tensors_mut().iter_mut();
        for (tensor, layer) in tensors.zip(&layers) {
            *tensor = if stage.has(*layer) {
                let own = tensor.f_detach()?.f_to_device(device)?;
                own.f_set_requires_grad(true)?
            } else {
                absent(&tensor.size(), device)?
            };
        }
        let pipe = Pipe::new(group.process_group(), up.process_group())?;
        parameters.set_pipeline(Self {
            pipe,
            group,
            up,
            sharing,
            stage,
            layers,
        });
        Ok(())
    }

    pub(crate) const fn sharing(&self) -> Sharing {
        self.sharing
    }

    pub(crate) const fn stage(&self) -> Stage {
        self.stage
    }

    /// Whether this process has the parameter at this place.
    pub(crate) fn has(&self, place: usize) -> bool {
        self.stage.has(self.layers[place])
    }

    /// Whether both ends have the parameter at this place.
    pub(crate) fn is_shared(&self, place: usize) -> bool {
        self.layers[place] == Layer::Ends && self.stage.number > 1
    }

    /// The input of this process' blocks, of this shape: that of the process before.
    pub(crate) fn receive(&self, shape: &[i64], beside: &Tensor) -> Result<Tensor, TchError> {
        let received = self.pipe.receive(shape, beside);
        received.map_err(|error| TchError::Torch(error.message))
    }

    /// Sends the output of this process' blocks. Returns a loss of 0.
    pub(crate) fn send(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let sent = self.pipe.send(x);
        sent.map_err(|error| TchError::Torch(error.message))
    }

    /// Waits until all activations and gradients are sent.
    pub(crate) fn flush(&self) -> roundhouse_c10d::Result<()> {
        self.pipe.flush()
    }

    /// The first error within a pass.
    pub(crate) fn failure(&self) -> Option<String> {
        self.pipe.failure()
    }

    /// The sum of the gradients of a parameter at both ends, in their order.
    pub(crate) fn sum_of_ends(&self, own: &Tensor) -> Result<Tensor, SyncError> {
        let last = self.sharing.num_shards - 1;
        let other = if self.stage.is_first() { last } else { 0 };
        let own = own.f_contiguous()?;
        let mut received = own.f_empty_like()?;
        // On this group both ends have exchanged the same gradients before.
        let group = self.up.process_group();
        let moving = group.exchange(Some((&own, other)), Some((&mut received, other)));
        moving
            .and_then(Exchange::wait)
            .map_err(SyncError::Replica)?;
        Ok(if self.stage.is_first() {
            own.f_add(&received)?
        } else {
            received.f_add(&own)?
        })
    }

    /// All tensors, on the CPU; empty unless `keeps`. A collective of the replica.
    ///
    /// # Errors
    /// Another process of the replica is lost, or there is too little memory.
    pub(crate) fn whole(
        &self,
        parameters: &Parameters,
        keeps: bool,
    ) -> Result<Parameters, SyncError> {
        let mut all = Parameters::default();
        let tensors = parameters.iter().zip(parameters.roles()).zip(&self.layers);
        for (((name, tensor), role), layer) in tensors {
            let owner = self.stage.owner_of(*layer);
            let mut value = if self.stage.index == owner {
                tensor.f_detach()?.f_contiguous()?
            } else {
                // An absent tensor has no memory of its own.
                Tensor::f_empty(tensor.size(), (tensor.kind(), tensor.device()))?
            };
            let root = u32::try_from(owner).unwrap_or_default();
            let sent = self.group.process_group().broadcast(&mut value, root);
            sent.map_err(SyncError::Replica)?;
            if keeps {
                all.push_on_cpu(name, *role, &value)?;
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(number: usize, num_blocks: usize) -> impl Iterator<Item = Stage> {
        (0..number).map(move |index| Stage {
            index,
            number,
            num_blocks,
        })
    }

    #[test]
    fn each_layer_is_in_one_stage_and_a_tied_one_at_both_ends() {
        for (number, num_blocks) in [(1, 3), (2, 3), (3, 3), (4, 7)] {
            let mut blocks = Vec::new();
            for stage in stages(number, num_blocks) {
                assert!(!stage.blocks().is_empty());
                blocks.extend(stage.blocks());
            }
            assert_eq!(blocks, (0..num_blocks).collect::<Vec<_>>());
            let count = |layer| {
                stages(number, num_blocks)
                    .filter(|it| it.has(layer))
                    .count()
            };
            assert_eq!(count(Layer::First), 1);
            assert_eq!(count(Layer::Last), 1);
            assert_eq!(count(Layer::Ends), number.min(2));
        }
    }
}
