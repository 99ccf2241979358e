//! The state of a script as the state of a member: a row of bytes that `roundhouse/state.py`
//! copies. A process of a replica has some bytes of it, which form its own row.

use std::ops::Range;

use pyo3::prelude::*;
use roundhouse_elastic::state::Layout;
use roundhouse_elastic::state::layout::{LocalPart, Runs, Sharing};
use roundhouse_member::failure::Failure;
use roundhouse_member::replicas::Difference;
use roundhouse_member::state::{Record, State, Table};
use roundhouse_member::state_broadcast::HostState;
use safetensors::Dtype;

use crate::failure::refused;

/// A `roundhouse.state.Row` and the table of its views.
#[derive(Debug)]
pub(crate) struct PyState {
    row: Py<PyAny>,
    table: Table,
    layout: Option<Layout>,
}

/// A view in Python: name, safetensors type, shape, number of bytes.
type Named = (String, String, Vec<usize>, u64);
/// Bytes of a view that a process of a replica has: index of the view; start, length, count and
/// stride of the runs; whether this process writes them.
pub(crate) type Owned = (usize, u64, u64, u64, u64, bool);
/// The part of a process of a replica: its index, the number of processes, a number for the life of
/// the replica, and its bytes in the order of its own row.
pub(crate) type Shared = (u32, u32, u32, Vec<Owned>);

impl PyState {
    /// # Errors
    /// A view has a type that checkpoints do not support, or bytes are not in their view, which are
    /// defects of the package.
    pub(crate) fn new(
        row: Py<PyAny>,
        views: Vec<Named>,
        shared: Option<Shared>,
    ) -> Result<Self, Failure> {
        let record = |(name, dtype, shape, bytes): Named| {
            let dtype = dtype_of(&dtype)
                .ok_or_else(|| Failure::State(format!("{name}: no checkpoint holds {dtype}")))?;
            Ok(Record {
                name,
                dtype,
                shape,
                bytes,
            })
        };
        let records: Result<Vec<_>, Failure> = views.into_iter().map(record).collect();
        let table = Table::from(records?);
        let layout = shared.map(|shared| layout_of(&table, shared)).transpose()?;
        Ok(Self { row, table, layout })
    }

    /// Must be called when all bytes of another rank or of a checkpoint have arrived: loads the
    /// parts that are not copied in place.
    ///
    /// # Errors
    /// The received state does not fit the script's objects.
    pub(crate) fn settle(&self) -> Result<(), Failure> {
        Python::attach(|py| {
            let settled = self.row.call_method0(py, "settle");
            settled.map(|_| ()).map_err(|error| refused(py, &error))
        })
    }
}

impl State for PyState {
    fn table(&self) -> Result<Table, Failure> {
        Ok(self.table.clone())
    }

    fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    fn copy_out(&self, range: Range<u64>, into: &mut [u8]) -> Result<(), Failure> {
        let address = into.as_mut_ptr().expose_provenance();
        let arguments = (range.start, range.end, address);
        Python::attach(|py| {
            let copied = self.row.call_method1(py, "copy_out", arguments);
            copied.map(|_| ()).map_err(|error| refused(py, &error))
        })
    }

    fn copy_in(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let address = bytes.as_ptr().expose_provenance();
        let arguments = (offset, offset + bytes.len() as u64, address);
        Python::attach(|py| {
            let copied = self.row.call_method1(py, "copy_in", arguments);
            copied.map(|_| ()).map_err(|error| refused(py, &error))
        })
    }

    fn digests(&self) -> Result<Vec<u32>, Failure> {
        Python::attach(|py| {
            let digests = self.row.call_method0(py, "digests");
            let digests = digests.and_then(|digests| digests.extract(py));
            digests.map_err(|error| refused(py, &error))
        })
    }

    /// The script may be the cause, so all ranks end with advice on what to check in it.
    fn differs(&self, difference: Difference, _: u32) -> Failure {
        let words = difference.to_string();
        Python::attach(|py| match self.row.call_method1(py, "differs", (&words,)) {
            Ok(_) => Failure::State(words),
            Err(error) => refused(py, &error),
        })
    }
}

impl HostState for PyState {}

fn layout_of(
    table: &Table,
    (shard, num_shards, replica, owned): Shared,
) -> Result<Layout, Failure> {
    let part = |(tensor, start, length, count, stride, is_written): Owned| LocalPart {
        tensor,
        runs: Runs {
            start,
            length,
            count,
            stride,
        },
        is_written,
    };
    let sharing = Sharing {
        shard,
        num_shards,
        replica,
    };
    let parts = owned.into_iter().map(part).collect();
    Layout::new(sharing, &table.sizes(), parts)
        .ok_or_else(|| Failure::State("a part of the state is not in its tensor".to_owned()))
}

fn dtype_of(name: &str) -> Option<Dtype> {
    Some(match name {
        "BOOL" => Dtype::BOOL,
        "U8" => Dtype::U8,
        "I8" => Dtype::I8,
        "I16" => Dtype::I16,
        "I32" => Dtype::I32,
        "I64" => Dtype::I64,
        "F16" => Dtype::F16,
        "BF16" => Dtype::BF16,
        "F32" => Dtype::F32,
        "F64" => Dtype::F64,
        _ => return None,
    })
}
