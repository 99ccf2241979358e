//! Measures the memory that a process needs to load a checkpoint. This is a test program of its
//! own, because the peak is that of the process.

#![expect(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

use std::ops::ControlFlow;

use roundhouse_elastic::CheckpointId;
use roundhouse_member::checkpoint::manifest::{PieceRecord, Shard};
use roundhouse_member::checkpoint::{IoWatch, shard};
use roundhouse_member::state::{Record, Table};
use safetensors::Dtype;

const NUM_BYTES: usize = 96 << 20;

/// Peak memory of this process in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.unwrap().trim().trim_end_matches("kB").trim();
    kilobytes.parse::<u64>().unwrap() * 1024
}

/// Writes a state of one tensor as one rank's part. Frees the memory of the state before it
/// returns.
fn saved(directory: &std::path::Path) -> Shard {
    let table = Table::from(vec![Record {
        name: "a".to_owned(),
        dtype: Dtype::U8,
        shape: vec![NUM_BYTES],
        bytes: NUM_BYTES as u64,
    }]);
    let bytes: Vec<u8> = (0..=255).cycle().take(NUM_BYTES).collect();
    let part = shard::Part {
        id: CheckpointId {
            generation: 1,
            step: 2,
        },
        rank: 0,
        world_size: 1,
        table: &table,
        pieces: &shard::records(&table, 0, 1),
        bytes: &bytes,
        io_watch: &IoWatch::default(),
    };
    shard::write(directory, &part).unwrap();
    let record = std::fs::read(directory.join(shard::record_name(0, 1))).unwrap();
    serde_json::from_slice(&record).unwrap()
}

#[test]
fn loading_needs_only_a_few_pieces_of_extra_memory() {
    let directory = tempfile::tempdir().unwrap();
    let part = saved(directory.path());
    // Reset the peak to the current memory.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak();
    let mut num_bytes = 0;
    let take = |_: &PieceRecord, _: u64, piece: Vec<u8>| {
        assert!(piece.len() as u64 <= shard::PIECE_BYTES);
        num_bytes += piece.len();
        ControlFlow::Continue(())
    };
    let read = shard::read(directory.path(), &part, &IoWatch::default(), take).unwrap();
    assert_eq!((read, num_bytes), (ControlFlow::Continue(()), NUM_BYTES));
    let grown = peak() - before;
    assert!(
        grown < 4 * shard::PIECE_BYTES,
        "{} MiB more than before",
        grown >> 20
    );
}
