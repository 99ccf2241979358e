//! The interface between the training loop and the optimizer.

use std::ops::Range;

use roundhouse_elastic::state::layout::Sharing;
use tch::{TchError, Tensor};

use crate::parameters::Parameters;
use crate::sync::SyncError;

/// The learning rate and the number of an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Learning rate of this update.
    pub learning_rate: f64,
    /// Number of this update, from 1, for bias corrections. Skipped steps do not count.
    pub step: u64,
}

/// Inputs that an update reads on the device, so the host does not wait for them. Both are scalar
/// 32-bit floats on the device of the parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Signals<'a> {
    /// If it is not 0, nothing changes: neither weights and statistics nor the update's state, even
    /// if gradients are not finite. `None`: the update is applied.
    pub skip: Option<&'a Tensor>,
    /// The divisor of the weights' gradients, such as [`crate::clip::divisor`]. Statistics are not
    /// divided. The update may divide gradients in place. `None`: 1.
    pub divisor: Option<&'a Tensor>,
}

/// Consecutive elements of a parameter, in the logical order of its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Place of the parameter.
    pub place: usize,
    /// The elements, at least one.
    pub elements: Range<i64>,
    /// Whether all processes of the replica have and update these elements.
    pub is_replicated: bool,
}

impl Piece {
    /// The elements of a parameter with this number of elements, which starts at `start` of a
    /// vector, that are in a part of the vector; `None` if there is none.
    pub(crate) fn in_part(
        place: usize,
        length: i64,
        start: i64,
        part: &Range<i64>,
    ) -> Option<Self> {
        let at = |element: i64| (element - start).clamp(0, length);
        let elements = at(part.start)..at(part.end);
        (!elements.is_empty()).then_some(Self {
            place,
            elements,
            is_replicated: false,
        })
    }

    /// These elements of the parameter, its gradient or its state, without a graph. If the tensor
    /// is contiguous, they share its memory. The result has one row if the tensor has several
    /// dimensions, and otherwise one dimension.
    ///
    /// # Errors
    /// The tensor has fewer elements.
    pub fn of(&self, tensor: &Tensor) -> Result<Tensor, TchError> {
        let Range { start, end } = self.elements;
        let flat = tensor.f_detach()?.f_contiguous()?.f_view([-1])?;
        Self::like(tensor, &flat.f_narrow(0, start, end - start)?)
    }

    /// Elements of `tensor` in the form that [`Self::of`] gives them. So optimizers that treat
    /// vectors differently treat a piece like the whole.
    pub(crate) fn like(tensor: &Tensor, elements: &Tensor) -> Result<Tensor, TchError> {
        if tensor.dim() > 1 {
            elements.f_unsqueeze(0)
        } else {
            Ok(elements.shallow_clone())
        }
    }
}

/// The part of the parameters that this process of a replica updates.
#[derive(Clone, Copy, Debug)]
pub struct Pieces<'a> {
    /// The place of this process in its replica.
    pub sharing: Sharing,
    /// What the process updates, in the order of the parameters.
    pub pieces: &'a [Piece],
    /// The memory of the pieces.
    pub tensors: &'a [Tensor],
    /// For each parameter: whether the process also has the elements that others update.
    pub has_whole: &'a [bool],
}

/// Updates weights in place.
pub trait Update: std::fmt::Debug {
    /// Applies the gradients that the parameters hold. It runs no collective and does not wait.
    ///
    /// # Errors
    /// A parameter has no gradient.
    fn apply(
        &mut self,
        parameters: &mut Parameters,
        rate: Rate,
        signals: Signals<'_>,
    ) -> Result<(), TchError>;

    /// Completes the weights after [`Self::apply`], with the parts that other processes of the
    /// replica have updated. A collective of the replica.
    ///
    /// # Errors
    /// Another process of the replica is lost.
    fn complete(&mut self) -> Result<(), SyncError> {
        Ok(())
    }

    /// The part of the parameters that this process updates; `None` if it updates all of them.
    fn pieces(&self) -> Option<Pieces<'_>> {
        None
    }

    /// The state between steps, except their number: by name, one tensor for each parameter, in the
    /// order of the parameters, or one for each of [`Self::pieces`].
    fn state(&self) -> Vec<(&'static str, &[Tensor])>;

    /// Averages of the parameters, in their order, if the update keeps them. Evaluations and
    /// exports use them.
    fn averages(&self) -> Option<&[Tensor]> {
        None
    }
}
