use std::time::{Duration, Instant};

use roundhouse_elastic::audit::{self, File};
use roundhouse_elastic::{DataSchedule, Head, Scaling, TrainingPosition, ledger};

use super::*;

fn data_schedule() -> DataSchedule {
    DataSchedule::of_steps(100, 30, 1_000)
}

fn identity() -> LedgerIdentity {
    LedgerIdentity::of(&data_schedule(), 7)
}

const fn opening(generation: u64) -> Opening {
    Opening {
        generation,
        first_generation: 0,
        source: Source::Rank(0),
    }
}

fn grow(chain: &mut Chain, generation: u64, steps: u64, mut each: impl FnMut(Line)) {
    for _ in 0..steps {
        let head = chain.head();
        let position = TrainingPosition {
            step: head.step,
            samples: data_schedule().committed_samples(head.step),
            ..Scaling::new(None, &data_schedule()).start()
        };
        let line = head.next(
            &data_schedule().batch_at(&position).unwrap(),
            generation,
            0.5,
        );
        chain.push(line);
        each(line);
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "not {what}");
        std::thread::yield_now();
    }
}

fn files(directory: &Directory) -> Vec<File> {
    let read = |generation: u64| {
        let path = directory.ledger().join(ledger::file_name(generation));
        let text = std::fs::read_to_string(path).unwrap();
        File::parse(generation, &text).unwrap()
    };
    directory
        .ledgers()
        .unwrap()
        .into_iter()
        .filter_map(read)
        .collect()
}

#[test]
fn next_generation_writes_lines_that_were_not_durable() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::new(root.path().to_owned());
    let mut chain = Chain::from(Head::start(&identity()));
    let first = Ledger::open(&directory, opening(1), &identity(), &chain).unwrap();
    grow(&mut chain, 1, 5, |line| first.append(line));
    first.progress().wait_for(5).unwrap();
    chain.forget_through(first.durable());
    // Steps that were lost with rank 0.
    grow(&mut chain, 1, 2, |_| {});
    let third = Ledger::open(&directory, opening(3), &identity(), &chain).unwrap();
    grow(&mut chain, 3, 4, |line| third.append(line));
    third.progress().wait_for(11).unwrap();
    let mut written = files(&directory);
    written.sort_by_key(|file| file.header.generation);
    let steps = |file: &File| Some((file.lines.first()?.step, file.lines.last()?.step));
    let steps: Vec<_> = written.iter().map(steps).collect();
    assert_eq!(steps, [Some((1, 5)), Some((6, 11))]);
    let proof = audit::audit(written, &[chain.head()]).unwrap();
    // The first generation has committed them nevertheless.
    let steps: Vec<_> = proof.rows.iter().map(|row| row.steps).collect();
    assert_eq!(steps, [Some((1, 7)), Some((8, 11))]);
    wait_until("fenced", || first.fenced() == Some(3));
    assert_eq!(third.fenced(), None);
}

#[test]
fn failed_volume_is_reported_and_used_after_recovery() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("volume");
    std::fs::write(&path, "not a directory").unwrap();
    let directory = Directory::new(path.clone());
    let mut chain = Chain::from(Head::start(&identity()));
    let ledger = Ledger::open(&directory, opening(1), &identity(), &chain).unwrap();
    grow(&mut chain, 1, 5, |line| ledger.append(line));
    assert!(ledger.progress().wait_for(5).is_err());
    assert!(ledger.error().is_some() && ledger.durable() == 0);
    std::fs::remove_file(&path).unwrap();
    grow(&mut chain, 1, 1, |line| ledger.append(line));
    wait_until("durable", || ledger.durable() == 6);
    assert_eq!(ledger.error(), None);
    assert_eq!(audit::audit(files(&directory), &[]).unwrap().num_steps, 6);
}

#[test]
fn repeated_steps_after_checkpoint_are_counted() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::new(root.path().to_owned());
    let mut chain = Chain::from(Head::start(&identity()));
    let first = Ledger::open(&directory, opening(1), &identity(), &chain).unwrap();
    grow(&mut chain, 1, 7, |line| first.append(line));
    first.progress().wait_for(7).unwrap();
    assert_eq!(first.repeats(), Some(Repeats::default()));
    let saved = chain.lines()[3].head();
    let mut chain = Chain::from(saved);
    let mut second = opening(2);
    second.source = Source::Checkpoint;
    let second = Ledger::open(&directory, second, &identity(), &chain).unwrap();
    grow(&mut chain, 2, 1, |line| second.append(line));
    second.progress().wait_for(5).unwrap();
    let repeats = second.repeats().unwrap();
    let newest = repeats.newest.unwrap();
    let found = (newest.first, newest.last, newest.after, newest.source);
    assert_eq!((repeats.total, found), (3, (5, 7, 4, Source::Checkpoint)));
    chain.forget_through(5);
    let third = Ledger::open(&directory, opening(3), &identity(), &chain).unwrap();
    grow(&mut chain, 3, 1, |line| third.append(line));
    third.progress().wait_for(6).unwrap();
    assert_eq!(third.repeats(), Some(repeats));
    let proof = audit::audit(files(&directory), &[]).unwrap();
    let lost: u64 = proof.rows.iter().map(|row| row.num_superseded).sum();
    assert_eq!(lost, repeats.total);
}
