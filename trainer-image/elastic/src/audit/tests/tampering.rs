use super::*;

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
    let known = [files[2].lines[4].head(), Head::start(&identity())];
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
