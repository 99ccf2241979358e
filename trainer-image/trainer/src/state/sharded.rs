//! The part of a training's state that one process of a replica has: all weights or some of them,
//! and the optimizer's state of some of them.

use std::ops::Range;

use roundhouse_elastic::state::Layout;
use roundhouse_elastic::state::layout::{LocalPart, Runs, Sharing};
use roundhouse_member::state::{Record, Table};
use tch::{TchError, Tensor};

use super::{Tensors, record};
use crate::parameters::Parameters;
use crate::tensor_parallel::TensorParallel;
use crate::update::{Piece, Pieces, Update};

/// Bytes of a tensor of the state, and their memory in this process.
struct Part {
    tensor: usize,
    runs: Runs,
    own: Tensor,
    is_written: bool,
}

impl Part {
    /// Elements of a tensor, and their memory.
    fn of_piece(
        tensor: usize,
        piece: &Piece,
        own: Tensor,
        is_written: bool,
    ) -> Result<Self, TchError> {
        Ok(Self {
            tensor,
            runs: runs(&piece.elements, &record("", &own)?),
            own,
            is_written,
        })
    }
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
                let own = flat(&piece.of(tensor)?)?;
                parts.push(Part::of_piece(place, &piece, own, false)?);
            }
        }
        if let Some(index) = found {
            let (piece, own) = (&pieces[index], flat(&own[index])?);
            parts.push(Part::of_piece(place, piece, own, writes(piece))?);
        }
    }
    for (kind, tensors) in update.state() {
        let first = records.len();
        for (name, tensor) in parameters.iter() {
            records.push(record(&format!("optimizer.{kind}.{name}"), tensor)?);
        }
        for (piece, tensor) in pieces.iter().zip(tensors) {
            let own = flat(tensor)?;
            parts.push(Part::of_piece(
                first + piece.place,
                piece,
                own,
                writes(piece),
            )?);
        }
    }
    tensors_of(sharing, records, parts)
}

/// The tensors of a model and its optimizer, of which this process has parts by tensor
/// parallelism.
pub(super) fn of_cut(
    parameters: &Parameters,
    update: &dyn Update,
    processes: &TensorParallel,
) -> Result<Tensors, TchError> {
    let sharing = processes.sharing();
    let (mut records, mut parts) = (Vec::new(), Vec::new());
    let mut push = |name: String, place: usize, tensor: &Tensor| -> Result<(), TchError> {
        let element = tensor.f_kind()?.elt_size_in_bytes() as u64;
        let own = record(&name, tensor)?;
        let part = processes.part(place);
        let whole = part.map_or_else(|| tensor.size(), |it| it.whole_shape().to_vec());
        let bytes = whole.iter().product::<i64>().cast_unsigned() * element;
        parts.push(Part {
            tensor: records.len(),
            runs: part.map_or_else(|| Runs::one(&(0..bytes)), |it| it.runs(element)),
            own: tensor.f_detach()?,
            // Of several processes with the same elements the first one writes them.
            is_written: part.is_some() || sharing.shard == 0,
        });
        let shape = whole.into_iter().map(usize::try_from);
        records.push(Record {
            shape: shape
                .collect::<Result<_, _>>()
                .map_err(|error| TchError::Shape(error.to_string()))?,
            bytes,
            ..own
        });
        Ok(())
    };
    for (place, (name, tensor)) in parameters.iter().enumerate() {
        push(format!("model.{name}"), place, tensor)?;
    }
    for (kind, tensors) in update.state() {
        for (place, ((name, _), tensor)) in parameters.iter().zip(tensors).enumerate() {
            push(format!("optimizer.{kind}.{name}"), place, tensor)?;
        }
    }
    tensors_of(sharing, records, parts)
}

/// The state with these tensors, of which a process has these parts.
fn tensors_of(
    sharing: Sharing,
    records: Vec<Record>,
    mut parts: Vec<Part>,
) -> Result<Tensors, TchError> {
    // Empty parts have no bytes.
    parts.retain(|part| part.own.numel() > 0);
    // Stable, so the order of the tensors remains within both halves.
    parts.sort_by_key(|part| !part.is_written);
    let own: Vec<Record> = parts
        .iter()
        .map(|part| record("", &part.own))
        .collect::<Result<_, _>>()?;
    let table = Table::from(records);
    let local = parts.iter().map(|part| LocalPart {
        tensor: part.tensor,
        runs: part.runs,
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
