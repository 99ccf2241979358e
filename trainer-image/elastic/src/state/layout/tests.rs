use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, prop_assume, proptest};

use super::*;
use crate::shard::shard;

/// A matrix whose rows or columns the processes of a replica divide, or that each has whole.
#[derive(Clone, Debug)]
struct Matrix {
    rows: u64,
    columns: u64,
    split: Split,
}

#[derive(Clone, Copy, Debug)]
enum Split {
    Rows,
    Columns,
    Copied,
}

impl Matrix {
    const fn num_bytes(&self) -> u64 {
        self.rows * self.columns
    }

    fn part(&self, tensor: usize, process: u32, num_shards: u32) -> Option<LocalPart> {
        let (runs, is_written) = match self.split {
            Split::Rows => {
                let rows = shard(&(0..self.rows), process, num_shards);
                let bytes = rows.start * self.columns..rows.end * self.columns;
                (Runs::one(&bytes), true)
            }
            Split::Columns => {
                let columns = shard(&(0..self.columns), process, num_shards);
                let runs = Runs {
                    start: columns.start,
                    length: columns.end - columns.start,
                    count: self.rows,
                    stride: self.columns,
                };
                (runs, true)
            }
            Split::Copied => (Runs::one(&(0..self.num_bytes())), process == 0),
        };
        (runs.num_bytes() > 0).then_some(LocalPart {
            tensor,
            runs,
            is_written,
        })
    }
}

fn layout(matrices: &[Matrix], process: u32, num_shards: u32) -> Layout {
    let each = matrices.iter().enumerate();
    let mut parts: Vec<LocalPart> = each
        .filter_map(|(tensor, matrix)| matrix.part(tensor, process, num_shards))
        .collect();
    parts.sort_by_key(|part| !part.is_written);
    Layout::new(sharing(process, num_shards), &sizes(matrices), parts).unwrap()
}

const fn sharing(shard: u32, num_shards: u32) -> Sharing {
    Sharing {
        shard,
        num_shards,
        replica: 0,
    }
}

fn sizes(matrices: &[Matrix]) -> Vec<u64> {
    matrices.iter().map(Matrix::num_bytes).collect()
}

fn matrices() -> impl Strategy<Value = Vec<Matrix>> {
    let split = (0_usize..3).prop_map(|kind| [Split::Rows, Split::Columns, Split::Copied][kind]);
    let matrix = (0_u64..6, 1_u64..7, split).prop_map(|(rows, columns, split)| Matrix {
        rows,
        columns,
        split,
    });
    proptest::collection::vec(matrix, 1..6)
}

/// The row of the state, whose bytes differ.
fn row(matrices: &[Matrix]) -> Vec<u64> {
    (0..sizes(matrices).iter().sum()).collect()
}

/// The own row of a process, by the places of the whole row.
fn own(layout: &Layout, row: &[u64]) -> Vec<Option<u64>> {
    let mut own = vec![None; usize::try_from(layout.num_bytes()).unwrap()];
    for (bytes, at) in layout.places(&(0..row.len() as u64)) {
        for (byte, at) in bytes.zip(at..) {
            own[usize::try_from(at).unwrap()] = Some(row[usize::try_from(byte).unwrap()]);
        }
    }
    own
}

/// The bytes of pieces, as positions in the row of the state.
fn positions(pieces: &[TensorRuns], sizes: &[u64]) -> Vec<u64> {
    let starts = ends(sizes);
    let of_piece = |piece: &TensorRuns| {
        let (start, runs) = (starts[piece.tensor], piece.runs);
        (0..runs.num_bytes()).map(move |at| start + runs.place(at).0)
    };
    pieces.iter().flat_map(of_piece).collect()
}

proptest! {
    #[test]
    fn pieces_of_all_ranks_cover_the_state_once(
        matrices in matrices(), num_shards in 1_u32..5, num_replicas in 1_u32..4,
    ) {
        let sizes = sizes(&matrices);
        let mut all = Vec::new();
        for process in 0..num_shards {
            let layout = layout(&matrices, process, num_shards);
            for replica in 0..num_replicas {
                let own = shard(&(0..layout.num_written()), replica, num_replicas);
                all.extend(layout.pieces(&own));
            }
        }
        prop_assert!(cover_once(&sizes, all.clone()));
        let mut written = positions(&all, &sizes);
        written.sort_unstable();
        prop_assert_eq!(written, row(&matrices));
        if let Some(piece) = all.pop() {
            prop_assert!(!cover_once(&sizes, all.clone()));
            all.extend([piece, piece]);
            prop_assert!(!cover_once(&sizes, all));
        }
    }

    #[test]
    fn pieces_name_the_bytes_of_the_own_row(
        matrices in matrices(), num_shards in 1_u32..5, process in 0_u32..4,
        from in any::<proptest::sample::Index>(), to in any::<proptest::sample::Index>(),
    ) {
        prop_assume!(process < num_shards);
        let layout = layout(&matrices, process, num_shards);
        let own = own(&layout, &row(&matrices));
        let (from, to) = (from.index(own.len() + 1), to.index(own.len() + 1));
        let range = from.min(to)..from.max(to);
        let expected: Vec<u64> = own[range.clone()].iter().copied().map(Option::unwrap).collect();
        let pieces = layout.pieces(&(range.start as u64..range.end as u64));
        prop_assert_eq!(positions(&pieces, &sizes(&matrices)), expected);
    }

    #[test]
    fn places_fill_the_own_row_from_any_cut(
        matrices in matrices(), num_shards in 1_u32..5, cut in any::<proptest::sample::Index>(),
    ) {
        let row = row(&matrices);
        for process in 0..num_shards {
            let layout = layout(&matrices, process, num_shards);
            prop_assert!(own(&layout, &row).iter().all(Option::is_some));
            let at = cut.index(row.len() + 1) as u64;
            let all = row.len() as u64;
            let halves = [layout.places(&(0..at)), layout.places(&(at..all))].concat();
            let bytes = |places: &[(Range<u64>, u64)]| -> Vec<(u64, u64)> {
                let mut bytes: Vec<_> = places.iter().flat_map(|(bytes, at)| bytes.clone().zip(*at..)).collect();
                bytes.sort_unstable();
                bytes
            };
            prop_assert_eq!(bytes(&halves), bytes(&layout.places(&(0..all))));
        }
    }
}

#[test]
fn parts_outside_of_their_tensor_are_refused() {
    let part = |tensor, start, length, count, stride, is_written| LocalPart {
        tensor,
        runs: Runs {
            start,
            length,
            count,
            stride,
        },
        is_written,
    };
    let is_valid =
        |parts: &[LocalPart]| Layout::new(sharing(0, 2), &[12, 0], parts.to_vec()).is_some();
    assert!(is_valid(&[part(0, 2, 2, 3, 4, true)]));
    assert!(is_valid(&[
        part(0, 0, 6, 1, 6, true),
        part(0, 6, 6, 1, 6, false)
    ]));
    for wrong in [
        part(0, 3, 2, 3, 4, true),
        part(0, 0, 0, 1, 0, true),
        part(0, 0, 4, 2, 3, true),
        part(1, 0, 1, 1, 1, true),
        part(2, 0, 1, 1, 1, true),
        part(0, 1, 4, u64::MAX, u64::MAX, true),
        part(0, 0, 1, 0, 1, true),
    ] {
        assert!(!is_valid(std::slice::from_ref(&wrong)), "{wrong:?}");
    }
    // Bytes that are written come first.
    assert!(!is_valid(&[
        part(0, 6, 6, 1, 6, false),
        part(0, 0, 6, 1, 6, true)
    ]));
}

#[test]
fn pieces_with_gaps_or_overlaps_cover_nothing() {
    let piece = |tensor, start, length, count, stride| TensorRuns {
        tensor,
        runs: Runs {
            start,
            length,
            count,
            stride,
        },
    };
    for (pieces, expected) in [
        (vec![piece(0, 0, 2, 3, 4), piece(0, 2, 2, 3, 4)], true),
        (vec![piece(0, 0, 12, 1, 12)], true),
        (vec![piece(0, 0, 2, 3, 4)], false),
        (vec![piece(0, 0, 8, 1, 8), piece(0, 6, 4, 1, 4)], false),
        (vec![piece(0, 0, 2, 6, 2)], true),
        (vec![piece(0, 0, 12, 1, 12), piece(1, 0, 1, 1, 1)], false),
        (vec![piece(0, 0, 1, u64::MAX, u64::MAX)], false),
        (vec![piece(0, 0, 12, 1, 12), piece(0, 0, 0, 5, 0)], false),
    ] {
        assert_eq!(cover_once(&[12], pieces.clone()), expected, "{pieces:?}");
    }
}
