//! The part of a training's state that one process of a replica has: all weights or some of them,
//! and the optimizer's state of some of them.

use std::ops::Range;

use roundhouse_elastic::state::Layout;
use roundhouse_elastic::state::layout::{LocalPart, Runs};
use roundhouse_member::state::{Record, Table};
use tch::{TchError, Tensor};

use super::{Tensors, record};
use crate::parameters::Parameters;
use crate::update::{Piece, Pieces, Update};

/// A part of a tensor of the state, and the memory of this part.
struct Part {
    tensor: usize,
    piece: Piece,
    own: Tensor,
    is_written: bool,
}

/// The tensors of a model and of the pieces that its optimizer updates. Names and shapes are those
/// of the whole tensors. Each process writes the weights of its pieces to checkpoints.
pub(super) fn of(
    parameters: &Parameters,
    update: &dyn Update,
    Pieces {
        sharing,
        pieces,
        tensors: own,
        has_whole,
    }: Pieces<'_>,
) -> Result<Tensors, TchError> {
    // Of several processes with the same elements the first one writes them.
    let writes = |piece: &Piece| sharing.shard == 0 || !piece.is_replicated;
    let mut records = Vec::new();
    let mut parts = Vec::new();
    for (place, (name, tensor)) in parameters.iter().enumerate() {
        records.push(record(&format!("model.{name}"), tensor)?);
        let found = pieces.iter().position(|piece| piece.place == place);
        let length = tensor.size().iter().product();
        if has_whole[place] {
            for elements in around(length, found.map(|index| &pieces[index])) {
                let piece = Piece {
                    place,
                    elements,
                    is_replicated: true,
                };
                parts.push(Part {
                    tensor: place,
                    own: flat(&piece.of(tensor)?)?,
                    piece,
                    is_written: false,
                });
            }
        }
        if let Some(index) = found {
            parts.push(Part {
                tensor: place,
                own: flat(&own[index])?,
                piece: pieces[index].clone(),
                is_written: writes(&pieces[index]),
            });
        }
    }
    for (kind, tensors) in update.state() {
        let first = records.len();
        for (name, tensor) in parameters.iter() {
            records.push(record(&format!("optimizer.{kind}.{name}"), tensor)?);
        }
        for (piece, tensor) in pieces.iter().zip(tensors) {
            parts.push(Part {
                tensor: first + piece.place,
                own: flat(tensor)?,
                piece: piece.clone(),
                is_written: writes(piece),
            });
        }
    }
    // Stable, so the order of the tensors remains within both halves.
    parts.sort_by_key(|part| !part.is_written);
    let own: Vec<Record> = parts
        .iter()
        .map(|part| record("", &part.own))
        .collect::<Result<_, _>>()?;
    let table = Table::from(records);
    let local = parts.iter().zip(&own).map(|(part, record)| LocalPart {
        tensor: part.tensor,
        runs: runs(&part.piece.elements, record),
        is_written: part.is_written,
    });
    let layout = Layout::new(sharing, &table.sizes(), local.collect());
    let layout = layout
        .ok_or_else(|| TchError::Shape("a part of the state is not in its tensor".to_owned()))?;
    Ok(Tensors {
        table,
        layout: Some(layout),
        own: Table::from(own),
        handles: parts.into_iter().map(|part| part.own).collect(),
    })
}

/// The elements of a tensor before and after a piece.
fn around(length: i64, own: Option<&Piece>) -> impl Iterator<Item = Range<i64>> {
    let Range { start, end } = own.map_or(0..0, |piece| piece.elements.clone());
    [0..start, end..length]
        .into_iter()
        .filter(|it| !it.is_empty())
}

/// The bytes of elements, of which `record` has the type.
fn runs(elements: &Range<i64>, record: &Record) -> Runs {
    let number = (elements.end - elements.start).cast_unsigned().max(1);
    let start = elements.start.cast_unsigned() * (record.bytes / number);
    Runs::one(&(start..start + record.bytes))
}

fn flat(tensor: &Tensor) -> Result<Tensor, TchError> {
    tensor.f_detach()?.f_view([-1])
}
