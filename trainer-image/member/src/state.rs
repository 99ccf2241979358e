//! What a process trains, as bytes: named views with type, shape and place.
//!
//! All views one after the other are one row of bytes, the same on all ranks. Whoever copies names a range of that
//! row, so a rank that has only some of it can be told apart later by what it holds, not by what a byte means.

use std::ops::Range;

use roundhouse_elastic::checkpoint::Piece;
use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::replicas::{self, Difference};
use crate::state_broadcast;

pub mod snapshot;

pub use snapshot::{Snapshot, reused};

/// Bytes that are read at once for a digest: whole words.
const DIGESTED_BYTES: u64 = 1 << 20;

/// Everything that a rank without it has to be sent, and that a checkpoint holds: weights, what the optimizer
/// remembers, running statistics.
pub trait State {
    /// What the row consists of. It never changes.
    ///
    /// # Errors
    /// A view has a type that no checkpoint can hold.
    fn table(&self) -> Result<Table, Failure>;

    /// Copies some bytes of the row to `into`, which is as long as the range.
    ///
    /// # Errors
    /// The range is not in the row, or the device refuses.
    fn copy_out(&self, range: Range<u64>, into: &mut [u8]) -> Result<(), Failure>;

    /// Begins to copy some bytes of the row to host memory. What is written to the state after this call is not in the
    /// copy. `former` is a snapshot that nobody reads any more, whose memory may be used again.
    ///
    /// # Errors
    /// The range is not in the row, or the device refuses.
    fn snapshot(
        &self,
        range: Range<u64>,
        former: Option<Box<dyn Snapshot>>,
    ) -> Result<Box<dyn Snapshot>, Failure> {
        copied_at_once(self, range, former)
    }

    /// Overwrites the bytes of the row from `offset` on.
    ///
    /// # Errors
    /// They are not in the row, or the device refuses: they may be overwritten in part then.
    fn copy_in(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Failure>;

    /// A number for each view, which changes with each single bit of the view: [`replicas::digest`]. A state on a device
    /// computes it there.
    ///
    /// # Errors
    /// The device refuses.
    fn digests(&self) -> Result<Vec<u32>, Failure> {
        digests_in_host_memory(self)
    }

    /// How a rank fails if the states of the ranks differ.
    fn differs(&self, difference: Difference, rank: u32) -> Failure {
        difference.failure_of(rank)
    }
}

/// [`State::digests`] by way of a buffer in host memory.
fn digests_in_host_memory<S: State + ?Sized>(state: &S) -> Result<Vec<u32>, Failure> {
    let table = state.table()?;
    let mut buffer = Vec::new();
    let digest = |view: &View| {
        let mut sum = 0_u64;
        for piece in state_broadcast::chunks(view.bytes, DIGESTED_BYTES) {
            let length = usize::try_from(piece.end - piece.start);
            buffer.resize(
                length.map_err(|error| Failure::State(error.to_string()))?,
                0,
            );
            let bytes = view.offset + piece.start..view.offset + piece.end;
            state.copy_out(bytes, &mut buffer)?;
            sum = sum.wrapping_add(state_broadcast::sum_of_words(&buffer));
        }
        Ok(replicas::digest(sum))
    };
    table.views().iter().map(digest).collect()
}

/// A snapshot that is complete when this returns.
///
/// # Errors
/// Those of [`State::copy_out`].
pub fn copied_at_once<S: State + ?Sized>(
    state: &S,
    range: Range<u64>,
    former: Option<Box<dyn Snapshot>>,
) -> Result<Box<dyn Snapshot>, Failure> {
    let mut bytes: Vec<u8> = reused(former).unwrap_or_default();
    let length = usize::try_from(range.end - range.start);
    bytes.resize(
        length.map_err(|error| Failure::State(error.to_string()))?,
        0,
    );
    state.copy_out(range, &mut bytes)?;
    Ok(Box::new(bytes))
}

/// The views of a state, in the order of their bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Record>", into = "Vec<Record>")]
pub struct Table(Vec<View>);

/// A tensor of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its first byte in the row.
    pub offset: u64,
    /// Its size.
    pub bytes: u64,
}

/// A view as a manifest has it: where it lies follows from those before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its size.
    pub bytes: u64,
}

impl From<Vec<Record>> for Table {
    fn from(records: Vec<Record>) -> Self {
        let mut offset = 0;
        let place = |record: Record| {
            let Record {
                name,
                dtype,
                shape,
                bytes,
            } = record;
            let view = View {
                name,
                dtype,
                shape,
                offset,
                bytes,
            };
            // A manifest may say anything.
            offset = offset.saturating_add(bytes);
            view
        };
        Self(records.into_iter().map(place).collect())
    }
}

impl From<Table> for Vec<Record> {
    fn from(table: Table) -> Self {
        let record = |view: View| Record {
            name: view.name,
            dtype: view.dtype,
            shape: view.shape,
            bytes: view.bytes,
        };
        table.0.into_iter().map(record).collect()
    }
}

impl Table {
    /// The views.
    #[must_use]
    pub fn views(&self) -> &[View] {
        &self.0
    }

    /// Sizes of the views in bytes.
    #[must_use]
    pub fn sizes(&self) -> Vec<u64> {
        self.0.iter().map(|view| view.bytes).collect()
    }

    /// Size of all of them.
    #[must_use]
    pub fn num_bytes(&self) -> u64 {
        let end = |view: &View| view.offset.saturating_add(view.bytes);
        self.0.last().map_or(0, end)
    }

    /// What a range of the row consists of, in order: bytes of views, none of them empty.
    #[must_use]
    pub fn pieces(&self, range: &Range<u64>) -> Vec<Piece> {
        let first = self
            .0
            .partition_point(|view| view.offset.saturating_add(view.bytes) <= range.start);
        let views = self.0.iter().enumerate().skip(first);
        views
            .take_while(|(_, view)| view.offset < range.end)
            .filter_map(|(tensor, view)| {
                let start = range.start.max(view.offset) - view.offset;
                let end = range.end.min(view.offset + view.bytes) - view.offset;
                let bytes = start..end;
                (!bytes.is_empty()).then_some(Piece { tensor, bytes })
            })
            .collect()
    }

    /// The difference to the views of another training, in words; `self` is what a checkpoint holds.
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

fn text(view: &View) -> String {
    let View {
        name,
        dtype,
        shape,
        offset: _,
        bytes: _,
    } = view;
    format!("{name} {shape:?} of {dtype:?}")
}

#[cfg(test)]
pub(crate) mod tests;
