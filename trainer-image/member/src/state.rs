//! The trained state as bytes: named views with type, shape and position.
//!
//! The concatenated views are one row of bytes, the same on all ranks. Copies name a range of that
//! row, so a rank can have a part of it without knowing what the bytes mean. If the processes of a
//! worker share one copy of the state, each has some bytes of the row, which form its own row.

use std::ops::Range;

use roundhouse_elastic::checkpoint::Piece;
use roundhouse_elastic::state::Layout;
use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::replicas::{self, Difference};
use crate::state_broadcast;

pub mod snapshot;

pub use snapshot::{Snapshot, reused};

/// Number of bytes per read for a digest, a multiple of a word.
const DIGESTED_BYTES: u64 = 1 << 20;

/// The state that a joining rank receives and a checkpoint contains: weights, optimizer state and
/// running statistics.
pub trait State {
    /// The views of the row. They never change.
    ///
    /// # Errors
    /// [`Failure::State`] if a checkpoint cannot hold the type of a view.
    fn table(&self) -> Result<Table, Failure>;

    /// The bytes of the row that this process has; `None` if it has all of them. All other methods
    /// copy bytes of its own row.
    fn layout(&self) -> Option<&Layout> {
        None
    }

    /// Copies bytes of the row to `into`, which is as long as the range.
    ///
    /// # Errors
    /// [`Failure::State`] if the range is not in the row or the device fails.
    fn copy_out(&self, range: Range<u64>, into: &mut [u8]) -> Result<(), Failure>;

    /// Begins to copy bytes of the row to host memory. Later changes of the state are not in the
    /// copy. `former` is an unused snapshot whose memory can be reused.
    ///
    /// # Errors
    /// [`Failure::State`] if the range is not in the row or the device fails.
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
    /// [`Failure::State`] if the bytes are not in the row or the device fails. Then they may be
    /// overwritten in part.
    fn copy_in(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Failure>;

    /// A number for each view that changes with each bit of the view: [`replicas::digest`]. A state
    /// on a device computes it there.
    ///
    /// # Errors
    /// [`Failure::State`] if the device fails.
    fn digests(&self) -> Result<Vec<u32>, Failure> {
        digests_in_host_memory(self)
    }

    /// Length of this process' own row.
    ///
    /// # Errors
    /// Those of [`Self::table`].
    fn num_own_bytes(&self) -> Result<u64, Failure> {
        match self.layout() {
            Some(layout) => Ok(layout.num_bytes()),
            None => Ok(self.table()?.num_bytes()),
        }
    }

    /// The failure of a rank if the states of the ranks differ.
    fn differs(&self, difference: Difference, rank: u32) -> Failure {
        difference.failure_of(rank)
    }
}

/// [`State::digests`] with a buffer in host memory.
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

/// Takes a snapshot that is complete when this returns.
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

/// A tensor of the state and its position in the row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Position of its first byte in the row.
    pub offset: u64,
    pub bytes: u64,
}

/// A view in a manifest. Its position follows from the views before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
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
            // A manifest may contain any size.
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
    #[must_use]
    pub fn views(&self) -> &[View] {
        &self.0
    }

    /// Sizes of the views in bytes.
    #[must_use]
    pub fn sizes(&self) -> Vec<u64> {
        self.0.iter().map(|view| view.bytes).collect()
    }

    /// Size of the row in bytes.
    #[must_use]
    pub fn num_bytes(&self) -> u64 {
        let end = |view: &View| view.offset.saturating_add(view.bytes);
        self.0.last().map_or(0, end)
    }

    /// The pieces of a range of the row, in order: bytes of views, none of them empty.
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

    /// Describes the difference to the views of another training. `self` is the table of a
    /// checkpoint.
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
