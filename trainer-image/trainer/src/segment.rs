//! Blocks of a model that can compute their activations again in the backward pass instead of keeping them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::channel;

use tch::{TchError, Tensor};

use crate::parameters::Parameters;

/// A block of a model, and the places of its parameters.
#[derive(Debug)]
pub struct Segment<B> {
    block: Arc<B>,
    places: Range<usize>,
}

impl<B: Send + Sync + 'static> Segment<B> {
    /// `block` uses the parameters at these places, and no others.
    #[must_use]
    pub fn new(block: B, places: Range<usize>) -> Self {
        Self {
            block: Arc::new(block),
            places,
        }
    }

    /// The block that `build` makes; it adds the block's parameters to those that it is given.
    ///
    /// # Errors
    /// Those of `build`.
    pub fn build(
        parameters: &mut Parameters,
        build: impl FnOnce(&mut Parameters) -> Result<B, TchError>,
    ) -> Result<Self, TchError> {
        let first = parameters.tensors().len();
        let block = build(parameters)?;
        Ok(Self::new(block, first..parameters.tensors().len()))
    }

    /// The output of `run` for the input `x`, and what else it gives, such as statistics.
    ///
    /// With `recomputes` (activation checkpointing, Chen et al. 2016) only `x` is kept. `run` then also runs in the
    /// backward pass, under the same autocast, and only the gradients of that run's output are used. So `run` must be a
    /// function of its arguments: no other tensor that needs a gradient, random numbers as
    /// [`Mode::Train`](crate::Mode::Train) says, nothing changed in place that it was given. The parameters that it is
    /// given have the block's places alone, and neither names nor roles. Losses and gradients are bit for bit those
    /// without recomputation, where kernels are deterministic.
    ///
    /// # Errors
    /// Those of `run`. An error of the run in the backward pass is an error of that pass.
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
        if !recomputes {
            return run(&self.block, parameters, x);
        }
        let (block, first) = (Arc::clone(&self.block), self.places.start);
        let (sender, rest_of_first_run) = channel();
        let mut sender = Some(sender);
        let output =
            roundhouse_c10d::recompute(x, parameters.in_places(&self.places), move |x, tensors| {
                let (output, rest) = run(&block, &Parameters::window(first, tensors), x)?;
                if let Some(sender) = sender.take() {
                    let _ = sender.send(rest);
                }
                Ok(output)
            });
        let torch = |message| TchError::Torch(message);
        let output = output.map_err(|error| torch(error.message))?;
        let rest = rest_of_first_run.try_recv();
        Ok((output, rest.map_err(|error| torch(error.to_string()))?))
    }
}
