//! Segments of a model: they can recompute their activations in the backward pass instead of
//! keeping them, and the processes of a replica can hold their weights together.

use std::sync::Arc;
use std::sync::mpsc::channel;

use tch::{TchError, Tensor};

use crate::parameters::{Parameters, Role};

/// A segment of a model, such as a block or the embedding, and the places of its parameters.
///
/// Only weights of segments are sharded by `trainer.parallel.shard: Zero2` and `Zero3`. Weights
/// outside of segments, and their gradients, stay whole in each process. Several segments may use
/// the same weights, as a tied embedding does; they must then have the same places.
#[derive(Debug)]
pub struct Segment<B> {
    block: Arc<B>,
    places: Vec<usize>,
}

impl<B: Send + Sync + 'static> Segment<B> {
    /// Wraps a block that uses the parameters at these places and no others.
    #[must_use]
    pub fn new(
        parameters: &mut Parameters,
        block: B,
        places: impl IntoIterator<Item = usize>,
    ) -> Self {
        let mut places: Vec<usize> = places.into_iter().collect();
        places.sort_unstable();
        places.dedup();
        parameters.add_segment(&places);
        Self {
            block: Arc::new(block),
            places,
        }
    }

    /// Wraps the block that `build` creates; `build` adds the block's parameters to `parameters`.
    ///
    /// # Errors
    /// `build` returns an error.
    pub fn build(
        parameters: &mut Parameters,
        build: impl FnOnce(&mut Parameters) -> Result<B, TchError>,
    ) -> Result<Self, TchError> {
        let first = parameters.tensors().len();
        let block = build(parameters)?;
        let end = parameters.tensors().len();
        Ok(Self::new(parameters, block, first..end))
    }

    /// Returns the output of `run` for the input `x`, and its other results, such as statistics.
    /// `run` must be a function of its arguments: it uses no other tensor that needs a gradient.
    ///
    /// With `recomputes` (activation checkpointing, Chen et al. 2016) only `x` is kept. The
    /// backward pass calls `run` again, under the same autocast, and uses only the gradients of
    /// that second call. So `run` draws random numbers as [`Mode::Train`](crate::Mode::Train)
    /// requires, and changes no argument in place. Its parameters have only the block's places, and
    /// neither names nor roles. If kernels are deterministic, losses and gradients are bit for bit
    /// equal to those without recomputation.
    ///
    /// If the weights are sharded, `run` gets the whole weights, and their memory is freed after
    /// it. So neither the block nor the other results may keep a handle of a weight.
    ///
    /// # Errors
    /// `run` fails, or another process of the replica is lost. An error of the second call is an
    /// error of the backward pass.
    pub fn apply<T, R>(
        &self,
        recomputes: bool,
        parameters: &Parameters,
        x: &Tensor,
        run: R,
    ) -> Result<(Tensor, T), TchError>
    where
        T: Send + 'static,
        R: Fn(&B, &Parameters, &Tensor) -> Result<(Tensor, T), TchError> + Send + 'static,
    {
        let shards = parameters.shards();
        let places = shards.map(|shards| shards.without_experts(&self.places));
        let places = places.unwrap_or_else(|| self.places.clone());
        let unit = shards.and_then(|shards| Some((shards, shards.unit(&places)?)));
        let division = parameters.division().clone();
        let own = |places: &[usize]| {
            let own = places.iter();
            own.map(|place| parameters.at(*place).shallow_clone())
                .collect::<Vec<_>>()
        };
        // A node that computes again would not run experts that lead to none of its inputs.
        let has_experts = places.len() < self.places.len();
        if unit.is_none() && (!recomputes || has_experts) {
            let own = own(&places);
            let window = Parameters::window(places, own).with_division(division);
            return run(&self.block, &window, x);
        }
        let (block, in_window) = (Arc::clone(&self.block), places.clone());
        let (sender, rest_of_first_run) = channel();
        let mut sender = Some(sender);
        let run_with = move |x: &Tensor, tensors: Vec<Tensor>| {
            let window = Parameters::window(in_window.clone(), tensors);
            let window = window.with_division(division.clone());
            let (output, rest) = run(&block, &window, x)?;
            if let Some(sender) = sender.take() {
                let _ = sender.send(rest);
            }
            Ok(output)
        };
        let output = match unit {
            None => roundhouse_c10d::recompute(x, &own(&places), run_with),
            Some((shards, unit)) => {
                let statistics = statistics_among(&places, parameters)?;
                shards.apply(unit, recomputes, x, with_others(statistics, run_with))
            }
        };
        let torch = |message| TchError::Torch(message);
        let output = output.map_err(|error| torch(error.message))?;
        let rest = rest_of_first_run.try_recv();
        Ok((output, rest.map_err(|error| torch(error.to_string()))?))
    }

    /// [`Self::apply`] without recomputation, for a `run` without other results.
    ///
    /// # Errors
    /// The same as [`Self::apply`].
    pub fn apply_alone<R>(
        &self,
        parameters: &Parameters,
        x: &Tensor,
        run: R,
    ) -> Result<Tensor, TchError>
    where
        R: Fn(&B, &Parameters, &Tensor) -> Result<Tensor, TchError> + Send + 'static,
    {
        let run = move |block: &B, parameters: &Parameters, x: &Tensor| {
            Ok((run(block, parameters, x)?, ()))
        };
        Ok(self.apply(false, parameters, x, run)?.0)
    }
}

/// Running statistics, which are whole in each process, and where they are among the places.
fn statistics_among(
    places: &[usize],
    parameters: &Parameters,
) -> Result<Vec<(usize, Tensor)>, TchError> {
    let mut found = Vec::new();
    for (index, place) in places.iter().enumerate() {
        if parameters.roles()[*place] != Role::Weight {
            found.push((index, parameters.at(*place).f_detach()?));
        }
    }
    Ok(found)
}

/// Inserts other tensors at their indices before each run.
fn with_others<R>(
    others: Vec<(usize, Tensor)>,
    mut run: R,
) -> impl FnMut(&Tensor, Vec<Tensor>) -> Result<Tensor, TchError> + Send + 'static
where
    R: FnMut(&Tensor, Vec<Tensor>) -> Result<Tensor, TchError> + Send + 'static,
{
    move |x, mut tensors| {
        for (index, other) in &others {
            tensors.insert(*index, other.shallow_clone());
        }
        run(x, tensors)
    }
}
