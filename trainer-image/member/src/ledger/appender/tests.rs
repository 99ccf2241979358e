use roundhouse_elastic::ledger::Source;
use roundhouse_elastic::{Batch, DataSchedule, Head};

use super::*;

fn appender(directory: &Directory) -> Appender {
    let identity = LedgerIdentity::of(&DataSchedule::of_steps(100, 30, 1_000), 7);
    let chain = Chain::from(Head::start(&identity));
    let opening = Opening {
        generation: 3,
        first_generation: 0,
        source: Source::Initial,
    };
    Appender::new(directory.clone(), opening, &identity, chain)
}

#[test]
fn retry_finds_ledger_of_unanswered_creation() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::new(root.path().to_owned());
    let mut own = appender(&directory);
    let draft = Draft::write(&directory.ledger(), &own.header.to_text()).unwrap();
    // The volume has created the file, and its answer was lost.
    draft.publish(&own.path()).unwrap();
    own.name = Name::Draft(draft);
    own.write().and_then(|()| own.sync()).unwrap();
    assert!(!own.is_taken && own.durable_length > 0);
    let written = std::fs::read_to_string(own.path()).unwrap();
    assert_eq!(written, own.header.to_text());

    let mut other_world = appender(&directory);
    assert!(other_world.write().is_err() && other_world.is_taken);
    let files = std::fs::read_dir(directory.ledger()).unwrap();
    assert_eq!(files.count(), 1, "no draft stays");
}

/// A generation's file with three lines, of which `num_durable` are durable.
fn with_lines(directory: &Directory, num_durable: u64) -> Appender {
    let mut own = appender(directory);
    own.write().unwrap();
    for step in 1..=3 {
        commit(&mut own);
        own.write().unwrap();
        if step == num_durable {
            own.sync().unwrap();
        }
    }
    own
}

fn commit(own: &mut Appender) {
    let head = own.chain.head();
    let batch = Batch {
        step: head.step + 1,
        epoch: 0,
        places: 0..30,
        ends_epoch: false,
    };
    own.take(head.next(&batch, 3, 0.5));
}

/// Acts as if the server had forgotten the file handle: nothing can be written with it.
fn lose_handle(own: &mut Appender) {
    own.file = Some(File::open(own.path()).unwrap());
    commit(own);
    own.write().unwrap_err();
}

fn steps_in_file(directory: &Directory) -> Vec<u64> {
    let found = older::read(directory, 3, 0).unwrap().unwrap();
    found.lines.iter().map(|line| line.step).collect()
}

#[test]
fn stale_ledger_handle_is_reopened_without_loss() {
    for num_durable in 0..=3 {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned());
        let mut own = with_lines(&directory, num_durable);
        lose_handle(&mut own);
        own.write().and_then(|()| own.sync()).unwrap();
        assert_eq!(steps_in_file(&directory), [1, 2, 3, 4], "{num_durable}");
        assert_eq!(own.chain.durable().step, 4);
    }
}

#[test]
fn lost_ledger_restarts_unless_lines_were_durable() {
    for (num_durable, is_lost) in [(0, false), (2, true)] {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned());
        let mut own = with_lines(&directory, num_durable);
        lose_handle(&mut own);
        std::fs::write(own.path(), "").unwrap();
        assert_eq!(own.write().is_err(), is_lost, "{num_durable}");
        std::fs::remove_file(own.path()).unwrap();
        own.file = None;
        assert_eq!(own.write().is_err(), is_lost, "{num_durable}");
        if !is_lost {
            assert_eq!(steps_in_file(&directory), [1, 2, 3, 4]);
        }
    }
}

#[test]
fn sync_notices_removed_or_renamed_ledger() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::new(root.path().to_owned());
    let mut own = with_lines(&directory, 3);
    let aside = root.path().join("aside");
    std::fs::rename(own.path(), &aside).unwrap();
    for _ in 0..2 {
        // Sync notices it on every call, also if no step is committed.
        let volume_error = own.write().and_then(|()| own.sync()).unwrap_err();
        assert_eq!(volume_error.path, own.path());
        let words = volume_error.to_string();
        assert!(
            words.contains("lost lines") && words.contains("is gone"),
            "{words}"
        );
    }
    commit(&mut own);
    own.write().and_then(|()| own.sync()).unwrap_err();
    assert_eq!(own.chain.durable().step, 3);
    // An older copy lacks durable lines.
    std::fs::write(own.path(), own.header.to_text()).unwrap();
    let volume_error = own.write().and_then(|()| own.sync()).unwrap_err();
    assert!(
        volume_error.to_string().contains("lost lines"),
        "{volume_error}"
    );
    std::fs::rename(&aside, own.path()).unwrap();
    own.write().and_then(|()| own.sync()).unwrap();
    assert_eq!(steps_in_file(&directory), [1, 2, 3, 4]);
    assert_eq!(own.chain.durable().step, 4);
}

#[test]
fn replaced_ledger_with_durable_lines_is_continued() {
    for num_durable in [0, 3] {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned());
        let mut own = with_lines(&directory, num_durable);
        let copy = root.path().join("copy");
        std::fs::copy(own.path(), &copy).unwrap();
        std::fs::rename(&copy, own.path()).unwrap();
        commit(&mut own);
        own.write().and_then(|()| own.sync()).unwrap();
        assert_eq!(steps_in_file(&directory), [1, 2, 3, 4], "{num_durable}");
    }
}

#[test]
fn ledger_removed_before_durable_line_restarts() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::new(root.path().to_owned());
    let mut own = with_lines(&directory, 0);
    std::fs::remove_file(own.path()).unwrap();
    own.write().and_then(|()| own.sync()).unwrap();
    assert_eq!(steps_in_file(&directory), [1, 2, 3]);
    assert_eq!(own.chain.durable().step, 3);
}

#[test]
fn sync_notices_ledger_of_another_writer() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::new(root.path().to_owned());
    let mut own = with_lines(&directory, 3);
    std::fs::remove_file(own.path()).unwrap();
    std::fs::write(own.path(), "another header\n").unwrap();
    own.write().and_then(|()| own.sync()).unwrap_err();
    assert!(own.is_taken);
}

/// Runs random orders of commits, writes, syncs and volume faults that keep durable lines.
#[test]
fn random_volume_faults_lose_no_line() {
    let mut random = 1_u64;
    for seed in 0..120 {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned());
        let mut own = appender(&directory);
        let mut done = Vec::new();
        for _ in 0..20 {
            // The multiplier is that of Knuth's MMIX.
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let choice = random >> 61;
            done.push(choice);
            let has_file = own.path().exists();
            match choice {
                0 | 1 => commit(&mut own),
                2 => drop(own.write()),
                3 => drop(own.write().and_then(|()| own.sync())),
                4 if own.file.is_some() && has_file => {
                    own.file = Some(File::open(own.path()).unwrap())
                }
                5 if has_file => {
                    let file = File::options().write(true).open(own.path()).unwrap();
                    let length = file.metadata().unwrap().len();
                    file.set_len(length.min(own.durable_length)).unwrap();
                    own.file = None;
                }
                6 if has_file && own.durable_length == 0 => {
                    std::fs::remove_file(own.path()).unwrap();
                    own.file = None;
                }
                _ => own.file = None,
            }
        }
        let _ = own.write();
        own.write().and_then(|()| own.sync()).unwrap();
        let expected: Vec<u64> = (1..=own.chain.head().step).collect();
        assert_eq!(steps_in_file(&directory), expected, "{seed}: {done:?}");
        assert_eq!(own.chain.durable(), own.chain.head());
    }
}

#[test]
fn ledger_of_another_writer_is_not_overwritten() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::new(root.path().to_owned());
    let mut own = with_lines(&directory, 0);
    lose_handle(&mut own);
    std::fs::write(own.path(), "another header\n").unwrap();
    own.write().unwrap_err();
    assert!(own.is_taken);
    let kept = std::fs::read_to_string(own.path()).unwrap();
    assert_eq!(kept, "another header\n");
}

#[test]
fn unreadable_older_ledger_delays_creation_once() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::new(root.path().to_owned());
    // Reading a directory is neither damage nor a missing permission.
    std::fs::create_dir_all(directory.ledger().join(ledger::file_name(1))).unwrap();
    let mut own = appender(&directory);
    assert!(own.write().is_err(), "the error may be temporary");
    own.write().unwrap();
    assert_eq!(own.header.start.as_ref().unwrap().repeats, None);
}
