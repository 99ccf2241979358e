//! Generations that begin from checkpoints.

use tempfile::TempDir;

use super::*;
use crate::checkpoint::{Directory, complete, manifest, shard};

/// Writes a checkpoint of one part, all of whose bytes are `fill`.
fn save(directory: &Directory, generation: u64, step: u64, fill: u8) {
    let id = CheckpointId { generation, step };
    let (table, training) = (table(), identity());
    let part = shard::Part {
        id,
        rank: 0,
        world_size: 1,
        table: &table,
        bytes: &Bytes::filled(fill).0,
        pulse: directory.pulse(),
    };
    shard::write(&directory.partial(id, generation), &part).unwrap();
    let ledger = head(generation, step);
    let manifest = Manifest {
        schema_version: manifest::SCHEMA_VERSION,
        saved_at: String::new(),
        generation,
        step,
        epoch: 10 * step / 100,
        cursor: 10 * step % 100,
        pace: None,
        skips: SKIPS,
        loss_scale: Some(LOSS_SCALE),
        scores: None,
        world_size: 1,
        config_hash: training.hash(&table),
        training,
        ledger,
        tensors: table,
        shards: Vec::new(),
    };
    complete::complete(directory, manifest, generation).unwrap();
}

/// A volume with the checkpoints of steps 20 and 30.
fn volume() -> (TempDir, Directory) {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::new(root.path().to_owned());
    save(&directory, 1, 20, HEAD);
    save(&directory, 1, 30, HEAD + 1);
    (root, directory)
}

fn with_volume(root: &TempDir, process: Process) -> Process {
    Process {
        volume: Some(root.path().to_owned()),
        ..process
    }
}

fn file_size(directory: &Directory, step: u64) -> u64 {
    let id = CheckpointId {
        generation: 1,
        step,
    };
    let part = directory.checkpoint(id).join(shard::file_name(0, 1));
    std::fs::metadata(part).unwrap().len()
}

#[test]
fn ranks_that_resume_read_one_checkpoint_in_all() {
    let (root, directory) = volume();
    let processes = (0..3).map(|_| with_volume(&root, process(fresh(), 0)));
    let formed = form(processes.collect(), &[]);
    for rank in &formed {
        assert_eq!((rank.origin(), rank.held.mark), (Origin::Loaded, mark(30)));
        assert_eq!(rank.bytes, Bytes::filled(HEAD + 1));
    }
    let num_read: u64 = formed.iter().map(|rank| rank.num_read).sum();
    assert_eq!(num_read, file_size(&directory, 30));
    assert!(num_read >= NUM_BYTES);
}

#[test]
fn a_rank_that_joins_a_live_world_reads_no_checkpoint() {
    let (root, _) = volume();
    let formed = form(
        vec![
            with_volume(&root, process(live(8, 37), 1)),
            with_volume(&root, process(fresh(), 0)),
        ],
        &[],
    );
    for rank in formed {
        assert_eq!(
            (rank.origin(), rank.bytes),
            (Origin::Live, Bytes::filled(1))
        );
        assert_eq!((rank.held.mark, rank.num_read), (mark(37), 0));
    }
}

/// Changes the last byte of a checkpoint.
fn damage(directory: &Directory, step: u64) {
    let id = CheckpointId {
        generation: 1,
        step,
    };
    let part = directory.checkpoint(id).join(shard::file_name(0, 1));
    let mut bytes = std::fs::read(&part).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(part, bytes).unwrap();
}

#[test]
fn a_damaged_checkpoint_is_passed_over_by_all_ranks_for_the_one_before() {
    let (root, directory) = volume();
    damage(&directory, 30);
    let processes = (0..3).map(|_| with_volume(&root, process(fresh(), 0)));
    let formed = form(processes.collect(), &[]);
    for rank in &formed {
        assert_eq!((rank.origin(), rank.held.mark), (Origin::Loaded, mark(20)));
        assert_eq!(rank.bytes, Bytes::filled(HEAD));
    }
    // Only one rank has read the damaged one, too.
    let num_read: u64 = formed.iter().map(|rank| rank.num_read).sum();
    assert_eq!(
        num_read,
        file_size(&directory, 20) + file_size(&directory, 30)
    );
}

#[test]
fn when_all_checkpoints_are_damaged_all_ranks_say_so() {
    let (root, directory) = volume();
    damage(&directory, 20);
    damage(&directory, 30);
    let processes = (0..2).map(|_| with_volume(&root, process(fresh(), 0)));
    for rank in form(processes.collect(), &[]) {
        let failure = rank.result.unwrap_err();
        assert!(
            matches!(failure, Failure::NoCheckpointUsable { number: 2, .. }),
            "{failure}"
        );
    }
}

#[test]
fn a_rank_with_a_checkpoint_goes_on_when_the_newer_state_is_lost() {
    let (root, _) = volume();
    // It was receiving the state after step 37 when all that had it were lost.
    let mut torn = fresh();
    torn.begin_to_receive(&live(8, 37).claim());
    let formed = form(
        vec![with_volume(&root, process(torn, 3)), process(fresh(), 9)],
        &[],
    );
    for rank in formed {
        assert_eq!((rank.origin(), rank.held.mark), (Origin::Loaded, mark(30)));
        assert_eq!(rank.bytes, Bytes::filled(HEAD + 1));
    }
}
