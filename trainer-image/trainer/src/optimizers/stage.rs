//! The update of a stage of a pipeline: each process updates the parameters of its layers.

use roundhouse_elastic::state::layout::Sharing;
use tch::{TchError, Tensor};

use crate::parameters::Parameters;
use crate::pipeline::Pipeline;
use crate::update::{Piece, Pieces, Rate, Signals, Update};

/// An update of the parameters of this process by another update.
#[derive(Debug)]
pub(crate) struct StageUpdate {
    inner: Box<dyn Update>,
    sharing: Sharing,
    /// What this process updates, the same tensors as those of the parameters.
    own: Parameters,
    pieces: Vec<Piece>,
    /// The list of [`Pieces::has_whole`].
    has_whole: Vec<bool>,
}

impl StageUpdate {
    /// Creates the update of this process' parameters by `inner`.
    ///
    /// # Errors
    /// There is too little memory.
    pub(crate) fn new(
        parameters: &Parameters,
        pipeline: &Pipeline,
        inner: impl FnOnce(&Parameters) -> Result<Box<dyn Update>, TchError>,
    ) -> Result<Self, TchError> {
        let (mut pieces, mut own) = (Vec::new(), Parameters::default());
        let tensors = parameters.iter().zip(parameters.roles());
        for (place, ((name, tensor), role)) in tensors.enumerate() {
            let length: i64 = tensor.size().iter().product();
            if !pipeline.has(place) || length == 0 {
                continue;
            }
            own.push_shared(name.to_owned(), *role, tensor);
            pieces.push(Piece {
                place,
                elements: 0..length,
                is_replicated: pipeline.is_shared(place),
            });
        }
        Ok(Self {
            inner: inner(&own)?,
            sharing: pipeline.sharing(),
            own,
            pieces,
            has_whole: vec![false; parameters.tensors().len()],
        })
    }
}

impl Update for StageUpdate {
    fn apply(
        &mut self,
        _: &mut Parameters,
        rate: Rate,
        signals: Signals<'_>,
    ) -> Result<(), TchError> {
        self.inner.apply(&mut self.own, rate, signals)
    }

    fn state(&self) -> Vec<(&'static str, &[Tensor])> {
        self.inner.state()
    }

    fn pieces(&self) -> Option<Pieces<'_>> {
        Some(Pieces {
            sharing: self.sharing,
            pieces: &self.pieces,
            tensors: self.own.tensors(),
            has_whole: &self.has_whole,
        })
    }
}
