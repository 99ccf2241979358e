//! Blocks of a model that can recompute their activations in the backward pass instead of keeping
//! them.

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
    /// Wraps a block that uses the parameters at these places and no others.
    #[must_use]
    pub fn new(block: B, places: Range<usize>) -> Self {
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
        Ok(Self::new(block, first..parameters.tensors().len()))
    }

    /// Returns the output of `run` for the input `x`, and its other results, such as statistics.
    ///
    /// With `recomputes` (activation checkpointing, Chen et al. 2016) only `x` is kept. The
    /// backward pass calls `run` again, under the same autocast, and uses only the gradients of
    /// that second call. So `run` must be a function of its arguments: it uses no other tensor that
    /// needs a gradient, draws random numbers as [`Mode::Train`](crate::Mode::Train) requires, and
    /// changes no argument in place. Its parameters have only the block's places, and neither names
    /// nor roles. If kernels are deterministic, losses and gradients are bit for bit equal to those
    /// without recomputation.
    ///
    /// # Errors
    /// `run` fails. An error of the second call is an error of the backward pass.
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
