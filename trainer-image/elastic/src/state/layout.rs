//! The part of a state that one process of a replica has.
//!
//! The processes of a replica hold one copy of the state together. All tensors one after the other
//! form the row of the state. A process has some bytes of it, which form its own row. Parts of
//! several processes may overlap: a tensor that is not sharded is in each of them.

use std::ops::Range;

/// Equal runs of bytes of a tensor: run `k` has the bytes from `start + k * stride` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    pub start: u64,
    /// Bytes of each run.
    pub length: u64,
    pub count: u64,
    /// Distance between the starts of two runs; at least `length`.
    pub stride: u64,
}

impl Runs {
    /// The runs of one range of bytes.
    #[must_use]
    pub const fn one(bytes: &Range<u64>) -> Self {
        let length = bytes.end.saturating_sub(bytes.start);
        Self {
            start: bytes.start,
            length,
            count: 1,
            stride: length,
        }
    }

    #[must_use]
    pub const fn num_bytes(&self) -> u64 {
        self.length.saturating_mul(self.count)
    }

    /// Position in the tensor of byte `at` of the runs, and the bytes that follow it in its run.
    #[must_use]
    pub const fn place(&self, at: u64) -> (u64, u64) {
        let (run, within) = (at / self.length, at % self.length);
        (
            self.start + run * self.stride + within,
            self.length - within,
        )
    }

    /// The runs of a range of the bytes of these runs: whole runs, and the cut ones at both ends.
    #[must_use]
    pub fn slice(&self, bytes: &Range<u64>) -> Vec<Self> {
        let mut slices = Vec::new();
        let mut at = bytes.start;
        while at < bytes.end {
            let (start, rest) = self.place(at);
            let left = bytes.end - at;
            let runs = if rest == self.length && left >= self.length {
                Self {
                    start,
                    count: left / self.length,
                    ..*self
                }
            } else {
                Self::one(&(start..start + rest.min(left)))
            };
            at += runs.num_bytes();
            slices.push(runs);
        }
        slices
    }

    /// The bytes that these runs share with a range of the tensor: each with its position in the
    /// tensor, and in the bytes of the runs.
    fn shared(&self, bytes: &Range<u64>) -> impl Iterator<Item = (Range<u64>, u64)> {
        let runs = *self;
        let first = bytes.start.saturating_sub(runs.start) / runs.stride.max(1);
        let bytes = bytes.clone();
        (first..runs.count)
            .map(move |run| (run, runs.start + run * runs.stride))
            .take_while({
                let end = bytes.end;
                move |(_, start)| *start < end
            })
            .filter_map(move |(run, start)| {
                let common = bytes.start.max(start)..bytes.end.min(start + runs.length);
                let at = run * runs.length + common.start.saturating_sub(start);
                (common.start < common.end).then_some((common, at))
            })
    }
}

/// Runs of bytes of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorRuns {
    /// Index of the tensor in the state.
    pub tensor: usize,
    pub runs: Runs,
}

/// Bytes of one tensor that a process has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPart {
    /// Index of the tensor in the state.
    pub tensor: usize,
    pub runs: Runs,
    /// Whether this process writes these bytes to checkpoints. Of several processes that have the
    /// same bytes one does.
    pub is_written: bool,
}

/// The place of a process in its replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Index of the process.
    pub shard: u32,
    /// Number of processes of a replica.
    pub num_shards: u32,
    /// A number for the life of the replica, the same in its processes. Others rarely have the
    /// same.
    pub replica: u32,
}

/// The bytes of the state that a process of a replica has, in the order of its own row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    sharing: Sharing,
    /// The parts, those that this process writes first.
    parts: Vec<LocalPart>,
    /// Start of each part in the own row, and the end of the last.
    starts: Vec<u64>,
    /// Start of each tensor in the row of the state, and the end of the last.
    tensors: Vec<u64>,
    /// The parts of each tensor.
    of_tensor: Vec<Vec<usize>>,
}

impl Layout {
    /// `sizes`: bytes of each tensor of the state. `None` if a part is not within its tensor, or if
    /// a part that is written follows one that is not.
    #[must_use]
    pub fn new(sharing: Sharing, sizes: &[u64], parts: Vec<LocalPart>) -> Option<Self> {
        let mut of_tensor = vec![Vec::new(); sizes.len()];
        let mut starts = vec![0];
        for (index, LocalPart { tensor, runs, .. }) in parts.iter().enumerate() {
            let last = runs.count.checked_sub(1)?.checked_mul(runs.stride)?;
            let end = runs.start.checked_add(last)?.checked_add(runs.length)?;
            let is_within = runs.length > 0 && runs.stride >= runs.length;
            if !is_within || end > *sizes.get(*tensor)? {
                return None;
            }
            of_tensor[*tensor].push(index);
            starts.push(starts.last()? + runs.num_bytes());
        }
        if !parts.is_sorted_by_key(|part| !part.is_written) {
            return None;
        }
        Some(Self {
            sharing: Sharing {
                num_shards: sharing.num_shards.max(1),
                ..sharing
            },
            parts,
            starts,
            tensors: ends(sizes),
            of_tensor,
        })
    }

    /// Number of processes of a replica.
    #[must_use]
    pub const fn num_shards(&self) -> u32 {
        self.sharing.num_shards
    }

    /// Index of this process in its replica.
    #[must_use]
    pub const fn shard(&self) -> u32 {
        self.sharing.shard
    }

    /// A number for the life of the replica.
    #[must_use]
    pub const fn replica(&self) -> u32 {
        self.sharing.replica
    }

    #[must_use]
    pub fn parts(&self) -> &[LocalPart] {
        &self.parts
    }

    /// Bytes of the own row.
    #[must_use]
    pub fn num_bytes(&self) -> u64 {
        self.starts.last().copied().unwrap_or_default()
    }

    /// Bytes at the start of the own row that this process writes to checkpoints.
    #[must_use]
    pub fn num_written(&self) -> u64 {
        self.starts[self.parts.iter().take_while(|part| part.is_written).count()]
    }

    /// The pieces of a range of the own row, in order.
    #[must_use]
    pub fn pieces(&self, own: &Range<u64>) -> Vec<TensorRuns> {
        let mut pieces = Vec::new();
        for (part, start) in self.parts.iter().zip(&self.starts) {
            let end = start + part.runs.num_bytes();
            let common = own.start.max(*start)..own.end.min(end);
            if common.start < common.end {
                let common = common.start - start..common.end - start;
                let runs = part.runs.slice(&common).into_iter();
                pieces.extend(runs.map(|runs| TensorRuns {
                    tensor: part.tensor,
                    runs,
                }));
            }
        }
        pieces
    }

    /// Where the bytes of a range of the state's row belong in the own row: ranges of the state's
    /// row, each with its start in the own row. Bytes that this process does not have are left out.
    #[must_use]
    pub fn places(&self, row: &Range<u64>) -> Vec<(Range<u64>, u64)> {
        let mut places = Vec::new();
        let first = self.tensors.partition_point(|start| *start <= row.start);
        for (tensor, parts) in self
            .of_tensor
            .iter()
            .enumerate()
            .skip(first.saturating_sub(1))
        {
            let (start, end) = (self.tensors[tensor], self.tensors[tensor + 1]);
            if start >= row.end {
                break;
            }
            let bytes = row.start.max(start) - start..row.end.min(end).saturating_sub(start);
            for part in parts {
                let own = self.starts[*part];
                let shared = self.parts[*part].runs.shared(&bytes);
                places.extend(
                    shared.map(|(bytes, at)| (start + bytes.start..start + bytes.end, own + at)),
                );
            }
        }
        places
    }
}

/// The starts of tensors of these sizes, and the end of the last.
fn ends(sizes: &[u64]) -> Vec<u64> {
    let starts = sizes.iter().scan(0_u64, |end, size| {
        *end = end.saturating_add(*size);
        Some(*end)
    });
    std::iter::once(0).chain(starts).collect()
}

/// Whether pieces cover each byte of tensors of these sizes exactly once.
#[must_use]
pub fn cover_once(sizes: &[u64], pieces: impl IntoIterator<Item = TensorRuns>) -> bool {
    let mut found: Vec<Vec<Runs>> = vec![Vec::new(); sizes.len()];
    for TensorRuns { tensor, runs } in pieces {
        match found.get_mut(tensor) {
            Some(known) if runs.length > 0 && runs.stride >= runs.length => known.push(runs),
            _ => return false,
        }
    }
    sizes.iter().zip(found).all(|(size, runs)| {
        // The sum is checked first: it bounds the number of runs.
        let sum = runs.iter().try_fold(0_u64, |sum, runs| {
            sum.checked_add(runs.length.checked_mul(runs.count)?)
        });
        if sum != Some(*size) {
            return false;
        }
        let each = runs.iter().flat_map(|runs| {
            (0..runs.count).map(|run| {
                let start = runs.start.saturating_add(run.saturating_mul(runs.stride));
                (start, start.saturating_add(runs.length))
            })
        });
        let mut each: Vec<(u64, u64)> = each.collect();
        each.sort_unstable();
        let end = each
            .iter()
            .try_fold(0, |end, (start, next)| (end == *start).then_some(*next));
        end == Some(*size)
    })
}

#[cfg(test)]
mod tests;
