//! The tensors of a training as the state of a member: their names, and copies of their bytes to
//! the host, from the host, and from rank to rank.
//!
//! Bytes are in the logical order of a tensor's elements and do not depend on its memory format.

use std::ops::Range;

use roundhouse_c10d::ErrorKind;
use roundhouse_elastic::checkpoint::Piece;
use roundhouse_elastic::state::Layout;
use roundhouse_member::failure::Failure;
use roundhouse_member::group::{Group, Meanwhile};
use roundhouse_member::replicas;
use roundhouse_member::state::{Record, Snapshot, State, Table, copied_at_once};
use roundhouse_member::state_broadcast::{Opened, StateBroadcast, garbled, seal};
use safetensors::Dtype;
use tch::{Device, Kind, TchError, Tensor};

use crate::failure::{lost, refused};
use crate::group::C10dGroup;
use crate::parameters::Parameters;
use crate::update::Update;

mod sharded;
mod snapped;

use snapped::Snapped;

/// Number of bytes per word of a digest.
const WORD: i64 = 8;

/// The tensors of weights and optimizer by name, in a fixed order. They are handles: a write to
/// them changes the training.
#[derive(Debug)]
pub struct Tensors {
    /// The views of the state.
    table: Table,
    /// The part of the state that this process has, if others of its replica have the rest.
    layout: Option<Layout>,
    /// What this process has of the state, in the order of its own row.
    own: Table,
    handles: Vec<Tensor>,
}

impl Tensors {
    /// The tensors of a model and its optimizer.
    ///
    /// # Errors
    /// A tensor has a type that checkpoints do not support.
    pub fn of(parameters: &Parameters, update: &dyn Update) -> Result<Self, TchError> {
        if let Some(pieces) = update.pieces() {
            return sharded::of(parameters, update, pieces);
        }
        if let Some(processes) = &parameters.division().tensor_parallel {
            return sharded::of_cut(parameters, update, processes);
        }
        let weights = parameters.iter();
        let mut named: Vec<(String, &Tensor)> = weights
            .map(|(name, tensor)| (format!("model.{name}"), tensor))
            .collect();
        for (kind, tensors) in update.state() {
            for ((name, _), tensor) in parameters.iter().zip(tensors) {
                named.push((format!("optimizer.{kind}.{name}"), tensor));
            }
        }
        Self::named(&named)
    }

    /// A list of named tensors.
    ///
    /// # Errors
    /// A tensor has a type that checkpoints do not support.
    pub fn named(named: &[(String, &Tensor)]) -> Result<Self, TchError> {
        let records = named.iter().map(|(name, tensor)| record(name, tensor));
        let records: Vec<Record> = records.collect::<Result<_, _>>()?;
        let handle = |(_, tensor): &(String, &Tensor)| tensor.shallow_clone();
        Ok(Self {
            own: Table::from(records.clone()),
            table: Table::from(records),
            layout: None,
            handles: named.iter().map(handle).collect(),
        })
    }

    /// Flips a bit of the first weight, as a faulty device may do. For tests.
    pub(crate) fn flip_a_bit(&mut self) -> Result<(), Failure> {
        let mut bytes = [0; 4];
        self.copy_out(0..4, &mut bytes)?;
        // This bit doubles or halves a 32-bit float.
        bytes[2] ^= 0x80;
        self.copy_in(0, &bytes)
    }

    /// Copies a range of the state's bytes into `flat`, a tensor of bytes on any device.
    fn flatten(&self, range: &Range<u64>, flat: &Tensor) -> Result<(), TchError> {
        let mut at = 0;
        for piece in self.own.pieces(range) {
            let bytes = bytes_of(&self.handles[piece.tensor])?;
            let own = narrow(&bytes, &piece)?;
            let length = own.size1()?;
            flat.f_narrow(0, at, length)?.f_copy_(&own)?;
            at += length;
        }
        Ok(())
    }

    /// Overwrites a range of the state's bytes with those of `flat`.
    fn unflatten(&mut self, range: &Range<u64>, flat: &Tensor) -> Result<(), TchError> {
        let mut at = 0;
        for piece in self.own.pieces(range) {
            let tensor = &mut self.handles[piece.tensor];
            // Shares the tensor's memory if the tensor is contiguous; otherwise it is a copy.
            let whole = tensor.f_detach()?.f_contiguous()?;
            let mut own = narrow(&bytes_of(&whole)?, &piece)?;
            let length = own.size1()?;
            own.f_copy_(&flat.f_narrow(0, at, length)?)?;
            if !tensor.is_contiguous() {
                tch::no_grad(|| tensor.f_copy_(&whole))?;
            }
            at += length;
        }
        Ok(())
    }

    /// The sum of the 64-bit words of each tensor, modulo 2^64. The device of the tensors computes
    /// the sums, and the host waits once for all of them.
    fn sums_of_words(&self) -> Result<Vec<i64>, TchError> {
        let sums = self
            .handles
            .iter()
            .map(|tensor| sum_of_words(&bytes_of(tensor)?));
        let sums: Vec<Tensor> = sums.collect::<Result<_, _>>()?;
        if sums.is_empty() {
            return Ok(Vec::new());
        }
        Vec::try_from(Tensor::f_stack(&sums, 0)?.f_to_device(Device::Cpu)?)
    }
}

impl State for Tensors {
    fn table(&self) -> Result<Table, Failure> {
        Ok(self.table.clone())
    }

    fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    fn copy_out(&self, range: Range<u64>, into: &mut [u8]) -> Result<(), Failure> {
        let mut rest = into;
        for piece in self.own.pieces(&range) {
            let mut copy = || {
                let bytes = bytes_of(&self.handles[piece.tensor])?;
                let own = narrow(&bytes, &piece)?.f_to_device(Device::Cpu)?;
                let (now, after) = std::mem::take(&mut rest).split_at_mut(own.numel());
                rest = after;
                own.f_copy_data_u8(now, own.numel())
            };
            copy().map_err(refused)?;
        }
        if rest.is_empty() {
            return Ok(());
        }
        Err(Failure::State(format!(
            "bytes {range:?} of a state of {} bytes",
            self.own.num_bytes()
        )))
    }

    fn snapshot(
        &self,
        range: Range<u64>,
        former: Option<Box<dyn Snapshot>>,
    ) -> Result<Box<dyn Snapshot>, Failure> {
        let device = self.handles.first().map_or(Device::Cpu, Tensor::device);
        // On a CPU the copy is complete when the call returns, so no second buffer is needed.
        if device == Device::Cpu {
            return copied_at_once(self, range, former);
        }
        match Snapped::begin(self, &range, former, device) {
            Ok(snapped) => Ok(Box::new(snapped)),
            // Gathering needs memory of the device and pinned host memory. Without it, copy at
            // once.
            Err(error) if error.kind == ErrorKind::OutOfMemory => copied_at_once(self, range, None),
            Err(error) => Err(lost(error)),
        }
    }

    fn digests(&self) -> Result<Vec<u32>, Failure> {
        let sums = self.sums_of_words().map_err(refused)?;
        Ok(sums
            .into_iter()
            .map(|sum| replicas::digest(sum.cast_unsigned()))
            .collect())
    }

    fn copy_in(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let range = offset..offset + bytes.len() as u64;
        if range.end > self.own.num_bytes() {
            let all = self.own.num_bytes();
            return Err(Failure::State(format!(
                "bytes {range:?} of a state of {all} bytes"
            )));
        }
        let flat = Tensor::f_from_slice(bytes).map_err(refused)?;
        self.unflatten(&range, &flat).map_err(refused)
    }
}

impl StateBroadcast<C10dGroup> for Tensors {
    type Parcel = Flat;

    fn parcel(&self, group: &C10dGroup, length: u64) -> Result<Flat, Failure> {
        Flat::new(length.cast_signed(), group.device()).map_err(refused)
    }

    fn pack(&self, bytes: &Range<u64>, parcel: &mut Flat) -> Result<u64, Failure> {
        let mut pack = || {
            self.flatten(bytes, &parcel.bytes)?;
            parcel.seal(bytes.start)
        };
        pack().map_err(refused)
    }

    fn exchange(
        group: &C10dGroup,
        send: Option<(&Flat, u32)>,
        receive: Option<(&mut Flat, u32)>,
        meanwhile: Meanwhile<'_>,
    ) -> Result<(), Failure> {
        let send = send.map(|(parcel, to)| (&parcel.all, to));
        let receive = receive.map(|(parcel, from)| (&mut parcel.all, from));
        let moving = group.process_group().exchange(send, receive);
        let moving = moving.map_err(lost)?;
        meanwhile()?;
        moving.wait().map_err(lost)
    }

    fn open(
        &mut self,
        group: &C10dGroup,
        parcel: &Flat,
        bytes: &Range<u64>,
        compares: bool,
    ) -> Result<Opened, Failure> {
        // The host waits here until the bytes have arrived. Garbage is never written to the state.
        let (digest, is_sealed) = parcel.read(bytes.start).map_err(refused)?;
        group.check()?;
        if !is_sealed {
            return Err(garbled());
        }
        let differs = || {
            let own = Flat::new((bytes.end - bytes.start).cast_signed(), group.device())?.bytes;
            self.flatten(bytes, &own)?;
            own.f_equal(&parcel.bytes).map(|it| !it)
        };
        let has_changed = !compares || differs().map_err(refused)?;
        if has_changed {
            self.unflatten(bytes, &parcel.bytes).map_err(refused)?;
        }
        Ok(Opened {
            digest,
            has_changed,
        })
    }
}

/// A buffer for one chunk of the state and its seal.
#[derive(Debug)]
pub struct Flat {
    /// 64-bit words: the bytes, padded with zeros to a whole word, and the seal.
    all: Tensor,
    /// All words without the seal.
    words: Tensor,
    /// Only the bytes, without padding.
    bytes: Tensor,
}

impl Flat {
    fn new(length: i64, device: Device) -> Result<Self, TchError> {
        let num_words = length.cast_unsigned().div_ceil(WORD.cast_unsigned());
        let num_words = num_words.cast_signed();
        let all = Tensor::f_zeros([num_words + 1], (Kind::Int64, device))?;
        let words = all.f_narrow(0, 0, num_words)?;
        let bytes = words.f_view_dtype(Kind::Uint8)?.f_narrow(0, 0, length)?;
        Ok(Self { all, words, bytes })
    }

    /// The sum of the words, computed on the device without a copy.
    fn sum(&self) -> Result<u64, TchError> {
        let sum = self.words.f_sum(Kind::Int64)?.f_int64_value(&[])?;
        Ok(sum.cast_unsigned())
    }

    /// Writes the seal for this offset, and returns the sum of the words.
    fn seal(&mut self, offset: u64) -> Result<u64, TchError> {
        let sum = self.sum()?;
        let at = self.words.size1()?;
        let mut end = self.all.f_narrow(0, at, 1)?;
        let _ = end.f_fill_(seal(sum, offset).cast_signed())?;
        Ok(sum)
    }

    /// The sum of the received words, and whether their seal is correct.
    fn read(&self, offset: u64) -> Result<(u64, bool), TchError> {
        let sum = self.sum()?;
        let found = self.all.f_int64_value(&[self.words.size1()?])?;
        Ok((sum, found.cast_unsigned() == seal(sum, offset)))
    }
}

/// The bytes of a tensor's elements in their logical order: the tensor's own memory if it is
/// contiguous, else a copy.
fn bytes_of(tensor: &Tensor) -> Result<Tensor, TchError> {
    let elements = tensor.f_detach()?.f_contiguous()?.f_view([-1])?;
    elements.f_view_dtype(Kind::Uint8)
}

/// The sum of 64-bit words of bytes, plus each remaining byte, as a tensor of one element.
fn sum_of_words(bytes: &Tensor) -> Result<Tensor, TchError> {
    let length = bytes.size1()?;
    let whole = length / WORD * WORD;
    let row = bytes.f_narrow(0, 0, whole)?;
    // A part of a larger tensor may start between two words.
    let words = row.f_view_dtype(Kind::Int64).or_else(|_| {
        let mut copy = row.f_empty_like()?;
        copy.f_copy_(&row)?;
        copy.f_view_dtype(Kind::Int64)
    })?;
    let rest = bytes.f_narrow(0, whole, length - whole)?;
    words.f_sum(Kind::Int64)?.f_add(&rest.f_sum(Kind::Int64)?)
}

fn narrow(bytes: &Tensor, piece: &Piece) -> Result<Tensor, TchError> {
    let Range { start, end } = piece.bytes;
    bytes.f_narrow(0, start.cast_signed(), (end - start).cast_signed())
}

fn record(name: &str, tensor: &Tensor) -> Result<Record, TchError> {
    let kind = tensor.f_kind()?;
    let shape = tensor.size().into_iter().map(usize::try_from);
    Ok(Record {
        name: name.to_owned(),
        dtype: dtype(kind)?,
        shape: shape
            .collect::<Result<_, _>>()
            .map_err(|error| TchError::Shape(error.to_string()))?,
        bytes: (tensor.numel() * kind.elt_size_in_bytes()) as u64,
    })
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

#[cfg(test)]
mod tests;
