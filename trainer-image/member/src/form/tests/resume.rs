//! Generations that start from checkpoints.

use tempfile::TempDir;

use super::*;
use crate::checkpoint::{Directory, complete, manifest, shard};

/// Writes a checkpoint of one part with all bytes `fill`.
fn save(directory: &Directory, generation: u64, step: u64, fill: u8) {
    let id = CheckpointId { generation, step };
    let (table, training) = (table(), identity());
    let part = shard::Part {
        id,
        rank: 0,
        world_size: 1,
        table: &table,
        pieces: &shard::records(&table, 0, 1),
        bytes: &Bytes::filled(fill).0,
        io_watch: directory.io_watch(),
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
        tail: None,
        tensors: table,
        shards: Vec::new(),
    };
    complete::complete(directory, manifest, generation).unwrap();
}

/// Creates a volume with the checkpoints of steps 20 and 30.
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

fn file_size(directory: &Directory, generation: u64, step: u64) -> u64 {
    let id = CheckpointId { generation, step };
    let part = directory.checkpoint(id).join(shard::file_name(0, 1));
    std::fs::metadata(part).unwrap().len()
}

#[test]
fn ranks_that_resume_read_one_checkpoint_in_all() {
    let (root, directory) = volume();
    let processes = (0..3).map(|_| with_volume(&root, process(fresh(), 0)));
    let formed = form(processes.collect(), &[]);
    for rank in &formed {
        assert_eq!(
            (rank.origin(), rank.local_state.position),
            (Origin::Loaded, position(30))
        );
        assert_eq!(rank.bytes, Bytes::filled(HEAD + 1));
    }
    let num_read: u64 = formed.iter().map(|rank| rank.num_read).sum();
    assert_eq!(num_read, file_size(&directory, 1, 30));
    assert!(num_read >= NUM_BYTES);
}

#[test]
fn joining_rank_reads_no_checkpoint() {
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
        assert_eq!(
            (rank.local_state.position, rank.num_read),
            (position(37), 0)
        );
    }
}

#[test]
fn spare_from_before_first_save_loads_newest_checkpoint() {
    let (root, directory) = volume();
    // The spare has been in the lobby since before the first save.
    let mut spare = with_volume(&root, process(fresh(), 0));
    spare.forgets = true;
    let formed = form(vec![spare], &[]);
    assert_eq!(
        (formed[0].origin(), formed[0].local_state.position),
        (Origin::Loaded, position(30))
    );
    assert_eq!(formed[0].bytes, Bytes::filled(HEAD + 1));
    drop(directory);
}

#[test]
fn newer_checkpoint_replaces_state_in_memory() {
    let (root, directory) = volume();
    save(&directory, 8, 40, HEAD + 2);
    // All ranks were disconnected while another group continued training; the last one has just
    // started.
    for newcomers in [0, 1] {
        let mut processes: Vec<_> = (0..2)
            .map(|_| with_volume(&root, process(live(7, 535), 1)))
            .collect();
        processes.extend((0..newcomers).map(|_| with_volume(&root, process(fresh(), 0))));
        let formed = form(processes, &[]);
        for rank in &formed {
            assert_eq!(
                (rank.origin(), rank.local_state.position),
                (Origin::Loaded, position(40))
            );
            assert_eq!(rank.bytes, Bytes::filled(HEAD + 2));
        }
        // A rank with a state in memory verifies all bytes before it overwrites that state.
        let reads = if newcomers == 0 { 2 } else { 1 };
        let num_read: u64 = formed.iter().map(|rank| rank.num_read).sum();
        assert_eq!(num_read, reads * file_size(&directory, 8, 40));
    }
}

#[test]
fn damaged_newer_checkpoint_keeps_state_in_memory() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::new(root.path().to_owned());
    save(&directory, 8, 40, HEAD);
    damage(&directory, 8, 40);
    for rank in form(vec![with_volume(&root, process(live(7, 535), 1))], &[]) {
        assert_eq!(
            (rank.origin(), rank.local_state.position),
            (Origin::Live, position(535))
        );
        assert_eq!(rank.bytes, Bytes::filled(1));
    }
}

#[test]
fn generation_written_by_others_is_fenced() {
    for generation in [9, 12] {
        let (root, directory) = volume();
        let ledger = directory.ledger();
        std::fs::create_dir_all(&ledger).unwrap();
        let name = roundhouse_elastic::ledger::file_name(generation);
        std::fs::write(ledger.join(name), "").unwrap();
        for claim in [live(8, 37), fresh()] {
            for rank in form(vec![with_volume(&root, process(claim.clone(), 1))], &[]) {
                let failure = rank.result.unwrap_err();
                assert_eq!(failure.ending().newer, Some(generation), "{failure}");
            }
        }
    }
}

/// Changes the last byte of a checkpoint.
fn damage(directory: &Directory, generation: u64, step: u64) {
    let id = CheckpointId { generation, step };
    let part = directory.checkpoint(id).join(shard::file_name(0, 1));
    let mut bytes = std::fs::read(&part).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(part, bytes).unwrap();
}

#[test]
fn all_ranks_skip_a_damaged_checkpoint() {
    let (root, directory) = volume();
    damage(&directory, 1, 30);
    let processes = (0..3).map(|_| with_volume(&root, process(fresh(), 0)));
    let formed = form(processes.collect(), &[]);
    for rank in &formed {
        assert_eq!(
            (rank.origin(), rank.local_state.position),
            (Origin::Loaded, position(20))
        );
        assert_eq!(rank.bytes, Bytes::filled(HEAD));
    }
    // One rank has also read the damaged checkpoint.
    let num_read: u64 = formed.iter().map(|rank| rank.num_read).sum();
    assert_eq!(
        num_read,
        file_size(&directory, 1, 20) + file_size(&directory, 1, 30)
    );
}

#[test]
fn searching_rank_reports_that_all_are_damaged() {
    let (root, directory) = volume();
    damage(&directory, 1, 20);
    damage(&directory, 1, 30);
    let processes = (0..2).map(|_| with_volume(&root, process(fresh(), 0)));
    let formed = form(processes.collect(), &[]);
    let [finder, other] = formed.as_slice() else {
        panic!("two ranks")
    };
    let failure = finder.result.as_ref().unwrap_err();
    assert!(
        matches!(failure, Failure::NoCheckpointUsable { number: 2, .. }),
        "{failure}"
    );
    assert!(matches!(other.result, Err(Failure::PeerLost(_))));
}

#[test]
fn unreadable_volume_is_not_damage() {
    for step in [20, 30] {
        let (root, directory) = volume();
        // Reading a directory is an error of the operating system, like that of a volume. The other
        // checkpoint is damaged.
        for (of, is_refused) in [(step, true), (50 - step, false)] {
            let id = CheckpointId {
                generation: 1,
                step: of,
            };
            let manifest = directory.checkpoint(id).join(manifest::FILE);
            std::fs::remove_file(&manifest).unwrap();
            if is_refused {
                std::fs::create_dir(&manifest).unwrap();
            }
        }
        let formed = form(vec![with_volume(&root, process(fresh(), 0))], &[]);
        let failure = formed[0].result.as_ref().unwrap_err();
        assert!(matches!(failure, Failure::Volume(_)), "{failure}");
        // Ranks with the state do not need the volume.
        let live_one = with_volume(&root, process(live(1, 10), 1));
        let formed = form(vec![live_one, with_volume(&root, process(fresh(), 0))], &[]);
        for rank in &formed {
            assert_eq!(rank.local_state.position, position(10), "{step}");
        }
    }
}

#[test]
fn rank_with_checkpoint_survives_loss_of_newer_state() {
    let (root, _) = volume();
    // The rank was receiving the state after step 37 when all ranks that had it were lost.
    let mut torn = fresh();
    torn.begin_to_receive(&live(8, 37).claim());
    let formed = form(
        vec![with_volume(&root, process(torn, 3)), process(fresh(), 9)],
        &[],
    );
    for rank in formed {
        assert_eq!(
            (rank.origin(), rank.local_state.position),
            (Origin::Loaded, position(30))
        );
        assert_eq!(rank.bytes, Bytes::filled(HEAD + 1));
    }
}
