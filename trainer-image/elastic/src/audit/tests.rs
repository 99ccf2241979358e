use super::*;
use crate::data_schedule::DataSchedule;
use crate::ledger::{Chain, Header};

mod comparison;
mod scaled_batches;
mod tampering;

/// 25 samples in batches of 10: three steps per epoch.
fn data_schedule() -> DataSchedule {
    DataSchedule::of_steps(25, 10, 100)
}

fn identity() -> LedgerIdentity {
    LedgerIdentity::of(&data_schedule(), 7)
}

/// Returns the file of a generation that continues after `previous` until step `to`.
fn file(generation: u64, previous: Option<Head>, to: u64) -> File {
    let mut chain = Chain::from(previous.unwrap_or_else(|| Head::start(&identity())));
    while chain.head().step < to {
        let head = chain.head();
        let batch = data_schedule().next_batch(head.step).unwrap();
        chain.push(head.next(&batch, generation, 0.1 * generation as f64));
    }
    File {
        header: Header {
            generation,
            previous,
            identity: identity(),
            start: None,
        },
        lines: chain.lines().iter().copied().collect(),
    }
}

/// Three generations; the last continues from before the end of the second.
fn ledger() -> Vec<File> {
    let first = file(1, None, 4);
    let second = file(2, Some(first.lines[3].head()), 9);
    let third = file(5, Some(second.lines[2].head()), 11);
    vec![third, first, second]
}

/// Recomputes the hashes of a file, as a forger would.
fn rehash(file: &mut File) {
    let mut previous = file.header.hash_before();
    for line in &mut file.lines {
        line.hash = line.hash_after(&previous);
        previous = line.hash;
    }
}

#[test]
fn ledger_with_a_superseded_branch_is_proven() {
    let proof = audit(ledger(), &[]).unwrap();
    let rows: Vec<_> = proof
        .rows
        .iter()
        .map(|row| {
            (
                row.generation,
                row.steps,
                row.num_samples,
                row.num_superseded,
            )
        })
        .collect();
    assert_eq!(
        rows,
        [
            (1, Some((1, 4)), 35, 0),
            (2, Some((5, 7)), 25, 2),
            (5, Some((8, 11)), 35, 0),
        ]
    );
    let lost: Vec<_> = proof.rows.iter().map(|row| row.superseded).collect();
    assert_eq!(lost, [None, Some((8, 9)), None]);
    assert_eq!((proof.num_steps, proof.num_samples), (11, 95));
    assert_eq!((proof.num_epochs, proof.cursor), (3, 20));
}

#[test]
fn generation_without_commits_is_skipped() {
    let mut files = ledger();
    let last = files[0].lines.last().unwrap().head();
    files.push(file(6, Some(last), 11));
    assert_eq!(audit(files, &[]).unwrap().num_steps, 11);
    assert_eq!(audit(vec![file(1, None, 0)], &[]).unwrap().num_steps, 0);
}

#[test]
fn generation_without_commits_supersedes_nothing() {
    let mut files = ledger();
    let proof = audit(files.clone(), &[]).unwrap();
    // It began with an older state and broke before its first step.
    files.push(file(6, Some(files[1].lines[3].head()), 0));
    let broken = audit(files.clone(), &[]).unwrap();
    assert_eq!(broken.num_steps, proof.num_steps);
    assert_eq!(broken.rows[..3], proof.rows);
    // The next generation continues from the newest state.
    let newest = files[0].lines.last().unwrap().head();
    files.push(file(7, Some(newest), 13));
    let proof = audit(files, &[]).unwrap();
    assert_eq!(proof.num_steps, 13);
    let lost: u64 = proof.rows.iter().map(|row| row.num_superseded).sum();
    assert_eq!(lost, 2, "only steps of the second generation");
}

#[test]
fn line_written_twice_is_not_superseded() {
    let first = file(1, None, 4);
    // The second generation wrote the last two lines again, because they might not be durable.
    let mut second = file(2, Some(first.lines[3].head()), 6);
    second.header.previous = Some(first.lines[1].head());
    second.lines.splice(0..0, first.lines[2..].iter().copied());
    let proof = audit(vec![first, second], &[]).unwrap();
    assert_eq!((proof.num_steps, proof.rows[0].num_superseded), (6, 0));
    // They count for the first generation, which committed them.
    let steps: Vec<_> = proof.rows.iter().map(|row| row.steps).collect();
    assert_eq!(steps, [Some((1, 4)), Some((5, 6))]);
}

#[test]
fn superseded_line_written_twice_is_one_lost_step() {
    let first = file(1, None, 4);
    let second = file(2, Some(first.lines[3].head()), 6);
    // The third generation writes the lines that the second had not made durable. Both generations
    // are dropped for the state after step 4.
    let mut third = file(3, Some(second.lines[1].head()), 7);
    third.header.previous = Some(first.lines[3].head());
    third.lines.splice(0..0, second.lines.iter().copied());
    let fourth = file(4, Some(first.lines[3].head()), 8);
    let proof = audit(vec![first, second, third, fourth], &[]).unwrap();
    let lost: Vec<_> = proof
        .rows
        .iter()
        .map(|row| (row.num_superseded, row.superseded))
        .collect();
    let expected = [(0, None), (2, Some((5, 6))), (1, Some((7, 7))), (0, None)];
    assert_eq!(lost, expected);
}

#[test]
fn endless_data_is_audited() {
    let data_schedule = DataSchedule::of_steps(i64::MAX.unsigned_abs(), 10, 100);
    let identity = LedgerIdentity::of(&data_schedule, 7);
    let mut chain = Chain::from(Head::start(&identity));
    for step in 0..20 {
        let batch = data_schedule.next_batch(step).unwrap();
        chain.push(chain.head().next(&batch, 1, 0.5));
    }
    let file = File {
        header: Header {
            generation: 1,
            previous: None,
            identity,
            start: None,
        },
        lines: chain.lines().iter().copied().collect(),
    };
    let proof = audit(vec![file], &[]).unwrap();
    assert_eq!((proof.num_steps, proof.cursor), (20, 200));
}

#[test]
fn file_round_trips_without_an_incomplete_line() {
    let file = file(3, None, 4);
    let mut text = file.header.to_text();
    text.extend(file.lines.iter().map(Line::to_text));
    assert_eq!(File::parse(3, &text), Ok(Some(file.clone())));
    text += "{\"step\":";
    assert_eq!(File::parse(3, &text), Ok(Some(file)));
    assert_eq!(File::parse(3, "{\"gener"), Ok(None));
    assert_eq!(File::parse(3, ""), Ok(None));
    assert!(matches!(
        File::parse(4, &text),
        Err(Finding::BadLine { number: 1, .. })
    ));
    assert!(matches!(
        File::parse(3, "{}\n"),
        Err(Finding::BadLine { number: 1, .. })
    ));
}

#[test]
fn empty_ledger_is_not_proven() {
    assert_eq!(audit(Vec::new(), &[]), Err(Finding::Empty));
}
