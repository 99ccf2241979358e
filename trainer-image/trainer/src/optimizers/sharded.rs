//! The update of stages 2 and 3 of `ZeRO` (Rajbhandari et al., 2020): each process of a replica
//! updates its parts of the weights of each segment.

use std::rc::Rc;

use tch::{TchError, Tensor};

use super::{apply_to, groups};
use crate::parameters::Parameters;
use crate::shards::Shards;
use crate::sync::SyncError;
use crate::update::{Piece, Pieces, Rate, Signals, Update};

/// An update of this process' parts of the weights by another update. Tensors that are not divided
/// are updated by all processes.
///
/// The inner update sees its part of each tensor as a tensor of its own, so it must compute each
/// element by itself: it cannot use the norm of a tensor.
#[derive(Debug)]
pub(crate) struct ShardedUpdate {
    inner: Box<dyn Update>,
    shards: Rc<Shards>,
    /// What this process updates, and where it is in the parameters.
    own: Parameters,
    pieces: Vec<Piece>,
    /// The list of [`Pieces::has_whole`].
    has_whole: Vec<bool>,
}

impl ShardedUpdate {
    /// Creates the update of this process' parts by `inner`.
    ///
    /// # Errors
    /// There is too little memory.
    pub(crate) fn new(
        parameters: &Parameters,
        shards: Rc<Shards>,
        inner: impl FnOnce(&Parameters) -> Result<Box<dyn Update>, TchError>,
    ) -> Result<Self, TchError> {
        let mut pieces = shards.pieces(parameters);
        for (place, tensor) in parameters.tensors().iter().enumerate() {
            let length: i64 = tensor.size().iter().product();
            if !shards.has(place) && length > 0 {
                pieces.push(Piece {
                    place,
                    elements: 0..length,
                    is_replicated: true,
                });
            }
        }
        pieces.sort_by_key(|piece| piece.place);
        let places = 0..parameters.tensors().len();
        let has_whole = places.map(|place| shards.has_whole(place)).collect();
        let names: Vec<&str> = parameters.iter().map(|(name, _)| name).collect();
        let mut own = Parameters::default();
        for piece in &pieces {
            let (name, tensor) = (&names[piece.place], &parameters.tensors()[piece.place]);
            let memory = if piece.is_replicated {
                piece.of(tensor)?
            } else {
                Piece::like(tensor, &shards.weights_of(piece)?)?
            };
            own.push(*name, parameters.roles()[piece.place], &memory)?;
        }
        Ok(Self {
            inner: inner(&own)?,
            shards,
            own,
            pieces,
            has_whole,
        })
    }

    fn gradient(&self, parameters: &Parameters, piece: &Piece) -> Result<Tensor, TchError> {
        if piece.is_replicated {
            return piece.of(&groups::gradient(parameters, piece.place)?);
        }
        let gradient = self.shards.gradient_of(piece)?;
        Piece::like(&parameters.tensors()[piece.place], &gradient)
    }
}

impl Update for ShardedUpdate {
    fn apply(
        &mut self,
        parameters: &mut Parameters,
        rate: Rate,
        signals: Signals<'_>,
    ) -> Result<(), TchError> {
        let gradients = self.pieces.iter().map(|it| self.gradient(parameters, it));
        let gradients: Vec<Tensor> = gradients.collect::<Result<_, _>>()?;
        apply_to(&mut self.own, &gradients, &mut *self.inner, rate, signals)
    }

    fn complete(&mut self) -> Result<(), SyncError> {
        self.shards.send_parts()
    }

    fn state(&self) -> Vec<(&'static str, &[Tensor])> {
        self.inner.state()
    }

    fn pieces(&self) -> Option<Pieces<'_>> {
        Some(Pieces {
            sharing: self.shards.sharing(),
            pieces: &self.pieces,
            tensors: self.own.tensors(),
            has_whole: &self.has_whole,
        })
    }
}
