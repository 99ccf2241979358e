use super::*;
use crate::data_schedule::DataSchedule;
use crate::ledger::{Chain, Header};

/// 25 samples in batches of 10: three steps per epoch.
fn data_schedule() -> DataSchedule {
    DataSchedule::of_steps(25, 10, 100)
}

fn run() -> RunIdentity {
    RunIdentity::of(&data_schedule(), 7)
}

/// Returns the file of a generation that continues after `previous` until step `to`.
fn file(generation: u64, previous: Option<Head>, to: u64) -> File {
    let mut chain = Chain::from(previous.unwrap_or_else(|| Head::start(&run())));
    while chain.head().step < to {
        let head = chain.head();
        let batch = data_schedule().next_batch(head.step).unwrap();
        chain.push(head.next(&batch, generation, 0.1 * generation as f64));
    }
    File {
        header: Header {
            generation,
            previous,
            run: run(),
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
fn changed_line_breaks_its_hash() {
    let mut files = ledger();
    files[1].lines[2].loss += 1.0;
    let broken = Finding::BrokenHash {
        generation: 1,
        number: 4,
        step: 3,
    };
    assert_eq!(audit(files, &[]), Err(broken));
}

#[test]
fn changed_superseded_line_breaks_its_hash() {
    // Steps 8 and 9 of the second generation are superseded, and so are all lines of a file from
    // which no other file continues.
    let first = ledger()[1].clone();
    let other = file(3, Some(first.lines[2].head()), 6);
    for (index, place) in [(2, 3), (3, 1)] {
        let mut files = ledger();
        files.push(other.clone());
        assert!(audit(files.clone(), &[]).is_ok());
        files[index].lines[place].step += 900;
        let broken = Finding::BrokenHash {
            generation: files[index].header.generation,
            number: place as u64 + 2,
            step: files[index].lines[place].step,
        };
        assert!(broken.to_string().contains(&format!(
            "line {} of gen-000000000{}.jsonl",
            place + 2,
            index
        )));
        assert_eq!(audit(files, &[]), Err(broken));
    }
}

#[test]
fn endless_data_is_audited() {
    let data_schedule = DataSchedule::of_steps(i64::MAX.unsigned_abs(), 10, 100);
    let run = RunIdentity::of(&data_schedule, 7);
    let mut chain = Chain::from(Head::start(&run));
    for step in 0..20 {
        let batch = data_schedule.next_batch(step).unwrap();
        chain.push(chain.head().next(&batch, 1, 0.5));
    }
    let file = File {
        header: Header {
            generation: 1,
            previous: None,
            run,
            start: None,
        },
        lines: chain.lines().iter().copied().collect(),
    };
    let proof = audit(vec![file], &[]).unwrap();
    assert_eq!((proof.num_steps, proof.cursor), (20, 200));
}

#[test]
fn removed_line_is_a_gap() {
    let mut files = ledger();
    files[1].lines.remove(1);
    rehash(&mut files[1]);
    // A forger must recompute the generations after it, too.
    assert!(matches!(
        audit(files, &[]),
        Err(Finding::Gap {
            generation: 2,
            step: 4
        })
    ));
    let mut alone = file(1, None, 9);
    alone.lines.remove(4);
    rehash(&mut alone);
    assert!(matches!(
        audit(vec![alone], &[]),
        Err(Finding::StepOutOfOrder {
            step: 6,
            expected: 5,
            ..
        })
    ));
}

#[test]
fn removed_file_is_a_gap() {
    let mut files = ledger();
    files.remove(2);
    let gap = Finding::Gap {
        generation: 5,
        step: 7,
    };
    assert_eq!(audit(files, &[]), Err(gap));
}

#[test]
fn repeated_and_omitted_samples_are_named() {
    let change = |from: u64, change: fn(&mut Line)| {
        let mut file = file(1, None, 9);
        change(&mut file.lines[4]);
        assert_eq!(file.lines[4].step, from);
        rehash(&mut file);
        audit(vec![file], &[]).unwrap_err()
    };
    for repeat in [
        |line: &mut Line| line.start = 0,
        |line: &mut Line| line.epoch = 0,
    ] {
        let finding = change(5, repeat);
        assert!(
            matches!(finding, Finding::SamplesRepeated { step: 5, .. }),
            "{finding}"
        );
    }
    for hole in [
        |line: &mut Line| line.start = 11,
        |line: &mut Line| line.end = 19,
    ] {
        let finding = change(5, hole);
        assert!(
            matches!(finding, Finding::SamplesLeftOut { step: 5, .. }),
            "{finding}"
        );
    }
}

#[test]
fn checkpoint_of_an_unknown_line_is_named() {
    let files = ledger();
    // Superseded lines are known too.
    let known = [files[2].lines[4].head(), Head::start(&run())];
    assert!(audit(files.clone(), &known).is_ok());
    let unknown = Head {
        generation: 5,
        step: 12,
        ..known[0]
    };
    assert!(matches!(
        audit(files, &[unknown]),
        Err(Finding::UnknownCheckpoint { .. })
    ));
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

/// The run of [`data_schedule`] with a batch of ten samples for two workers.
fn scaled_run() -> RunIdentity {
    RunIdentity {
        reference_replicas: Some(2),
        ..run()
    }
}

/// Returns files whose generations have steps of these numbers of samples; an epoch has 25.
fn scaled_ledger(generations: &[(u64, &[u64])]) -> Vec<File> {
    let mut head = Head::start(&scaled_run());
    let (mut epoch, mut start) = (0, 0);
    let mut files = Vec::new();
    for (generation, sizes) in generations {
        let previous = (head.step > 0).then_some(head);
        let mut lines = Vec::new();
        for size in *sizes {
            let batch = crate::data_schedule::Batch {
                step: head.step + 1,
                epoch,
                places: start..start + size,
                ends_epoch: start + size == 25,
            };
            lines.push(head.next(&batch, *generation, 0.5));
            head = lines[lines.len() - 1].head();
            (epoch, start) = if batch.ends_epoch {
                (epoch + 1, 0)
            } else {
                (epoch, start + size)
            };
        }
        let run = scaled_run();
        files.push(File {
            header: Header {
                generation: *generation,
                previous,
                run,
                start: None,
            },
            lines,
        });
    }
    files
}

#[test]
fn batches_that_follow_the_workers_are_proven() {
    // One worker, then three, then two. The last step is cut off by the end of training.
    let files = scaled_ledger(&[
        (1, &[5, 5, 5]),
        (2, &[10]),
        (3, &[15, 10]),
        (4, &[10, 10, 3]),
    ]);
    let proof = audit(files, &[]).unwrap();
    assert_eq!((proof.num_steps, proof.num_samples), (9, 73));
    assert_eq!((proof.num_epochs, proof.cursor), (2, 23));
    // The only step of a generation: no other line shows whether its batch is full.
    assert!(audit(scaled_ledger(&[(1, &[3]), (2, &[5, 5])]), &[]).is_ok());
}

#[test]
fn batch_must_be_constant_and_possible_for_some_workers() {
    for (sizes, step) in [
        (&[5, 5, 10, 5][..], 3),
        (&[10, 5, 10], 2),
        (&[10, 11], 2),
        (&[6, 6, 6], 1),
    ] {
        let finding = audit(scaled_ledger(&[(1, sizes)]), &[]).unwrap_err();
        let found = match finding {
            Finding::SamplesLeftOut { step, .. } | Finding::SamplesRepeated { step, .. } => step,
            other => panic!("{sizes:?}: {other}"),
        };
        assert_eq!(found, step, "{sizes:?}");
    }
    // Without a reference number of workers no other batch is allowed.
    let mut files = scaled_ledger(&[(1, &[5, 5])]);
    files[0].header.run = run();
    rehash(&mut files[0]);
    assert!(audit(files, &[]).is_err());
}

#[test]
fn trainings_with_different_generations_can_be_equal() {
    // One undisturbed generation, and three generations of which the second was superseded in part.
    let loss = |file: &mut File| {
        for line in &mut file.lines {
            line.loss = 1.0 / line.step as f64;
        }
        rehash(file);
    };
    let mut undisturbed = file(1, None, 12);
    loss(&mut undisturbed);
    let mut first = file(1, None, 4);
    loss(&mut first);
    let mut second = file(2, Some(first.lines[3].head()), 9);
    loss(&mut second);
    let mut third = file(5, Some(second.lines[2].head()), 11);
    loss(&mut third);
    let disturbed = vec![third, first, second];
    let compared = compare(vec![undisturbed.clone()], disturbed.clone()).unwrap();
    let Comparison::Equal { histories, digest } = compared else {
        panic!("{compared:?}");
    };
    assert_eq!(histories.each_ref().map(Vec::len), [12, 11]);
    // For a repeated step, the history contains the newer line.
    assert_eq!(histories[1][7].generation, 5);
    let [own, other] = histories;
    let again = compare(disturbed.clone(), vec![undisturbed.clone()]).unwrap();
    assert_eq!(
        again,
        Comparison::Equal {
            histories: [other, own],
            digest
        }
    );
    // Change one bit of one loss.
    let mut other = undisturbed;
    other.lines[6].loss = f64::from_bits(other.lines[6].loss.to_bits() + 1);
    rehash(&mut other);
    let compared = compare(vec![other.clone()], disturbed.clone()).unwrap();
    let Comparison::Differs { step, lines } = compared else {
        panic!("{compared:?}");
    };
    assert_eq!((step, lines[0]), (7, other.lines[6]));
    // An inconsistent ledger cannot be compared.
    other.lines[0].end = 9;
    assert!(compare(vec![other], disturbed).is_err());
    assert_eq!(compare(Vec::new(), Vec::new()), Err(Finding::Empty));
}
