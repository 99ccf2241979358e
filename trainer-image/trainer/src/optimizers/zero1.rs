//! `ZeRO` stage 1 (Rajbhandari et al., 2020): each process of a replica updates an equal part of
//! the weights, has the optimizer's state of this part alone, and sends the part to the others.

use std::ops::Range;
use std::sync::Arc;

use roundhouse_elastic::shard::shard_of_groups;
use roundhouse_elastic::state::layout::Sharing;
use tch::{TchError, Tensor};

use super::{apply_to, groups};
use crate::group::C10dGroup;
use crate::parameters::Parameters;
use crate::sync::SyncError;
use crate::update::{Piece, Pieces, Rate, Signals, Update};

/// An update of this process' part of the weights by another update.
///
/// All weights lie one after the other in one vector of `n` elements. Process `r` of `P` updates
/// the elements from `n·r/P` to `n·(r+1)/P`, rounded to whole blocks. So with `s` tensors of
/// optimizer state per weight a process needs memory for `s·n/P` elements instead of `s·n`. The
/// inner update sees its part of each tensor as a tensor of its own, so it must compute each
/// element by itself: it cannot use the norm of a tensor.
#[derive(Debug)]
pub struct Zero1 {
    inner: Box<dyn Update>,
    group: Arc<C10dGroup>,
    sharing: Sharing,
    /// The vector of all weights.
    vector: Tensor,
    /// The parts of the processes in the vector.
    parts: Vec<Range<i64>>,
    /// What this process updates, and where it is in the parameters.
    own: Parameters,
    pieces: Vec<Piece>,
    /// The list of [`Pieces::has_whole`].
    has_whole: Vec<bool>,
}

impl Zero1 {
    /// Moves the parameters into one vector, and creates the update of this process' part by
    /// `inner`. All processes pass equal parameters.
    ///
    /// # Errors
    /// There is too little memory, or a parameter is not contiguous.
    pub fn new(
        parameters: &mut Parameters,
        group: Arc<C10dGroup>,
        sharing: Sharing,
        inner: impl FnOnce(&Parameters) -> Result<Box<dyn Update>, TchError>,
    ) -> Result<Self, TchError> {
        let (vector, starts) = parameters.lay_in_one_vector()?;
        let all = 0..vector.size1()?.cast_unsigned();
        let part = |rank| {
            let Range { start, end } =
                shard_of_groups(&all, rank, sharing.num_shards, Parameters::BLOCK);
            start.cast_signed()..end.cast_signed()
        };
        let parts: Vec<Range<i64>> = (0..sharing.num_shards).map(part).collect();
        let (pieces, own) = own_part(parameters, &starts, &parts[sharing.shard as usize])?;
        Ok(Self {
            inner: inner(&own)?,
            group,
            sharing,
            vector,
            parts,
            own,
            pieces,
            has_whole: vec![true; parameters.tensors().len()],
        })
    }
}

/// The pieces of the parameters in a range of their vector, and the same as parameters. A piece of
/// a tensor with several dimensions is a matrix of one row, so that it decays like the whole.
fn own_part(
    parameters: &Parameters,
    starts: &[i64],
    part: &Range<i64>,
) -> Result<(Vec<Piece>, Parameters), TchError> {
    let (mut pieces, mut own) = (Vec::new(), Parameters::default());
    let tensors = parameters.iter().zip(parameters.roles()).zip(starts);
    for (place, (((name, tensor), role), at)) in tensors.enumerate() {
        let length: i64 = tensor.size().iter().product();
        let Some(piece) = Piece::in_part(place, length, *at, part) else {
            continue;
        };
        own.push(name, *role, &piece.of(tensor)?)?;
        pieces.push(piece);
    }
    Ok((pieces, own))
}

impl Update for Zero1 {
    fn apply(
        &mut self,
        parameters: &mut Parameters,
        rate: Rate,
        signals: Signals<'_>,
    ) -> Result<(), TchError> {
        let gradient = |piece: &Piece| piece.of(&groups::gradient(parameters, piece.place)?);
        let gradients = self.pieces.iter().map(gradient);
        let gradients: Vec<Tensor> = gradients.collect::<Result<_, _>>()?;
        apply_to(&mut self.own, &gradients, &mut *self.inner, rate, signals)
    }

    fn complete(&mut self) -> Result<(), SyncError> {
        let part = |range: &Range<i64>| {
            self.vector
                .f_narrow(0, range.start, range.end - range.start)
        };
        let mut parts = self.parts.iter().map(part).collect::<Result<Vec<_>, _>>()?;
        self.group.process_group().broadcast_each(&mut parts)?;
        Ok(())
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

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;
    use crate::parameters::Role;

    #[test]
    fn parts_cover_each_element_once_and_are_cut_at_blocks() {
        let shapes: [&[i64]; 6] = [&[3, 50], &[1], &[64], &[0], &[7, 5, 11], &[200]];
        for num_shards in 1..=5_u32 {
            let mut parameters = Parameters::default();
            for (place, shape) in shapes.iter().enumerate() {
                let value = Tensor::full(*shape, place as f64, (Kind::Float, tch::Device::Cpu));
                parameters
                    .push(place.to_string(), Role::Weight, &value)
                    .unwrap();
            }
            let (vector, starts) = parameters.lay_in_one_vector().unwrap();
            let all = 0..vector.size1().unwrap().cast_unsigned();
            let mut found: Vec<Vec<Range<i64>>> = vec![Vec::new(); shapes.len()];
            for rank in 0..num_shards {
                let part = shard_of_groups(&all, rank, num_shards, Parameters::BLOCK);
                let part = part.start.cast_signed()..part.end.cast_signed();
                let (pieces, own) = own_part(&parameters, &starts, &part).unwrap();
                assert_eq!(pieces.len(), own.tensors().len());
                for (
                    Piece {
                        place, elements, ..
                    },
                    tensor,
                ) in pieces.iter().zip(own.tensors())
                {
                    let whole = parameters.at(*place);
                    assert_eq!(tensor.dim() > 1, whole.dim() > 1, "it decays alike");
                    let length: i64 = tensor.size().iter().product();
                    assert_eq!(length, elements.end - elements.start);
                    let _ = tch::no_grad(|| tensor.shallow_clone().fill_(9.0 + *place as f64));
                    found[*place].push(elements.clone());
                }
            }
            for ((shape, found), tensor) in shapes.iter().zip(&found).zip(parameters.tensors()) {
                let mut end = 0;
                for part in found {
                    assert_eq!(part.start, end);
                    assert_eq!(part.start % Parameters::BLOCK.cast_signed(), 0);
                    end = part.end;
                }
                assert_eq!(end, shape.iter().product::<i64>());
                // The pieces are the memory of the tensor.
                assert!(bool::try_from(tensor.ge(9.0).all()).unwrap());
            }
        }
    }
}
