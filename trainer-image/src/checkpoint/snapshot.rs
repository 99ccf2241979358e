//! The tensors of a state: what they are called, and their bytes, out and in.

use roundhouse_elastic::checkpoint::Piece;
use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, TchError, Tensor};

use crate::model::Parameters;
use crate::optimizer::Optimizer;

/// The tensors of weights and optimizer by name, in a fixed order. Handles: what is written to them is
/// written to the state.
#[derive(Debug)]
pub struct NamedTensors {
    names: Vec<String>,
    tensors: Vec<Tensor>,
}

/// Names, types and shapes of tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Table(pub Vec<TensorRecord>);

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TensorRecord {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its size.
    pub bytes: u64,
}

impl NamedTensors {
    /// Those of a model and its optimizer.
    #[must_use]
    pub fn of(parameters: &Parameters, optimizer: &dyn Optimizer) -> Self {
        let mut named = Self {
            names: Vec::new(),
            tensors: Vec::new(),
        };
        for (name, tensor) in parameters.iter() {
            named.add(format!("model.{name}"), tensor);
        }
        for (kind, tensors) in optimizer.state() {
            for ((name, _), tensor) in parameters.iter().zip(tensors) {
                named.add(format!("optimizer.{kind}.{name}"), tensor);
            }
        }
        named
    }

    fn add(&mut self, name: String, tensor: &Tensor) {
        self.names.push(name);
        self.tensors.push(tensor.shallow_clone());
    }

    /// The tensors alone.
    #[must_use]
    pub fn into_tensors(self) -> Vec<Tensor> {
        self.tensors
    }

    /// What they are.
    ///
    /// # Errors
    /// A tensor has a type that no checkpoint can hold.
    pub fn table(&self) -> Result<Table, TchError> {
        let named = self.names.iter().zip(&self.tensors);
        let record = |(name, tensor): (&String, &Tensor)| {
            let kind = tensor.f_kind()?;
            let shape = tensor.size().into_iter().map(usize::try_from);
            Ok(TensorRecord {
                name: name.clone(),
                dtype: dtype(kind)?,
                shape: shape
                    .collect::<Result<_, _>>()
                    .map_err(|error| TchError::Shape(error.to_string()))?,
                bytes: (tensor.numel() * kind.elt_size_in_bytes()) as u64,
            })
        };
        named.map(record).collect::<Result<_, _>>().map(Table)
    }

    /// Copies some of their bytes from the device to `buffer`, one piece after the other.
    ///
    /// # Errors
    /// A tensor cannot be copied.
    pub fn copy_out(&self, pieces: &[Piece], buffer: &mut Vec<u8>) -> Result<(), TchError> {
        let size = |piece: &Piece| piece.bytes.end - piece.bytes.start;
        buffer.resize(
            usize::try_from(pieces.iter().map(size).sum::<u64>()).unwrap_or(0),
            0,
        );
        let mut rest = buffer.as_mut_slice();
        for piece in pieces {
            let (own, after) = rest.split_at_mut(usize::try_from(size(piece)).unwrap_or(0));
            copy_piece(&self.tensors[piece.tensor], piece, own)?;
            rest = after;
        }
        Ok(())
    }

    /// Overwrites all of them with bytes in the order of [`Self::table`].
    ///
    /// # Errors
    /// `bytes` has another length, or a device refuses: they are overwritten in part then.
    pub fn copy_in(&mut self, bytes: &[u8]) -> Result<(), TchError> {
        let mut rest = bytes;
        for tensor in &mut self.tensors {
            let kind = tensor.f_kind()?;
            let size = tensor.numel() * kind.elt_size_in_bytes();
            let Some((own, after)) = rest.split_at_checked(size) else {
                return Err(TchError::Shape("too few bytes for the state".to_owned()));
            };
            let source = Tensor::f_from_data_size(own, &tensor.size(), kind)?;
            tch::no_grad(|| tensor.f_copy_(&source))?;
            rest = after;
        }
        Ok(())
    }
}

fn copy_piece(tensor: &Tensor, piece: &Piece, into: &mut [u8]) -> Result<(), TchError> {
    let element = tensor.f_kind()?.elt_size_in_bytes() as u64;
    // Cuts do not look for elements, so up to one at each end is copied in vain.
    let first = piece.bytes.start / element;
    let num_elements = piece.bytes.end.div_ceil(element) - first;
    let elements = tensor
        .f_detach()?
        .f_reshape([-1])?
        .f_narrow(0, first.cast_signed(), num_elements.cast_signed())?
        .f_to_device(Device::Cpu)?
        .f_contiguous()?;
    let count = elements.numel();
    if into.len() as u64 == num_elements * element {
        return elements.f_copy_data_u8(into, count);
    }
    let mut whole = vec![0; usize::try_from(num_elements * element).unwrap_or(0)];
    elements.f_copy_data_u8(&mut whole, count)?;
    let skipped = usize::try_from(piece.bytes.start - first * element).unwrap_or(0);
    into.copy_from_slice(&whole[skipped..skipped + into.len()]);
    Ok(())
}

fn dtype(kind: Kind) -> Result<Dtype, TchError> {
    Ok(match kind {
        Kind::Uint8 => Dtype::U8,
        Kind::Int8 => Dtype::I8,
        Kind::Int16 => Dtype::I16,
        Kind::Int => Dtype::I32,
        Kind::Int64 => Dtype::I64,
        Kind::Half => Dtype::F16,
        Kind::BFloat16 => Dtype::BF16,
        Kind::Float => Dtype::F32,
        Kind::Double => Dtype::F64,
        Kind::Bool => Dtype::BOOL,
        other => return Err(TchError::Kind(format!("{other:?} in a checkpoint"))),
    })
}

impl Table {
    /// Sizes of the tensors in bytes.
    #[must_use]
    pub fn sizes(&self) -> Vec<u64> {
        self.0.iter().map(|record| record.bytes).collect()
    }

    /// Size of all of them.
    #[must_use]
    pub fn num_bytes(&self) -> u64 {
        self.0.iter().map(|record| record.bytes).sum()
    }

    /// What another training's tensors have that these, of a checkpoint, have not.
    #[must_use]
    pub fn difference(&self, ours: &Self) -> Option<String> {
        let mut pairs = self.0.iter().zip(&ours.0);
        let differ = pairs.find(|(saved, ours)| saved != ours);
        match differ {
            Some((saved, ours)) => Some(format!(
                "it holds {}, this model has {}",
                text(saved),
                text(ours)
            )),
            None if self.0.len() == ours.0.len() => None,
            None => Some(format!(
                "it holds {} tensors, this model has {}",
                self.0.len(),
                ours.0.len()
            )),
        }
    }
}

fn text(record: &TensorRecord) -> String {
    let TensorRecord {
        name,
        dtype,
        shape,
        bytes: _,
    } = record;
    format!("{name} {shape:?} of {dtype:?}")
}

#[cfg(test)]
mod tests;
