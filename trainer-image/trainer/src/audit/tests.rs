use std::collections::BTreeMap;

use roundhouse_elastic::ledger::{Chain, Header, LedgerIdentity, Line, Start, file_name};
use roundhouse_elastic::{Batch, DataSchedule, Digest, Head, Skips};
use roundhouse_member::checkpoint::manifest::{FILE, SCHEMA_VERSION, Tail};
use roundhouse_member::checkpoint::{Identity, Manifest};
use roundhouse_member::state::Table;

use super::*;

mod volume;

#[test]
fn repeated_steps_are_named() {
    let row = |num_superseded, superseded| Row {
        generation: 3,
        steps: Some((1, 100)),
        epochs: None,
        num_samples: 6_400,
        num_superseded,
        superseded,
        superseded_by: None,
    };
    assert_eq!(lost(&row(0, None)), None);
    let text = lost(&row(4_048, Some((536, 4_583)))).unwrap();
    assert!(
        text.starts_with("4048 committed steps of generation 3"),
        "{text}"
    );
    assert!(text.contains("done again: steps 536-4583"), "{text}");
    let text = lost(&row(1, Some((7, 7)))).unwrap();
    assert!(text.starts_with("1 committed step of"), "{text}");
}

#[test]
fn columns_are_aligned() {
    let row = |generation, steps| Row {
        generation,
        steps,
        epochs: steps.map(|_| (0, 12)),
        num_samples: 6_400,
        num_superseded: 0,
        superseded: None,
        superseded_by: None,
    };
    let text = table(&[row(1, Some((1, 100))), row(12, None), row(1_000_002, None)]);
    let widths: Vec<usize> = text.lines().map(str::len).collect();
    assert_eq!(widths.len(), 4);
    let numbers = |line: &str| -> Vec<String> {
        line.split_whitespace().take(2).map(str::to_owned).collect()
    };
    let last = text.lines().last().unwrap();
    assert_eq!(
        numbers(last),
        ["2", "2"],
        "the second generation of the second job in the directory"
    );
    assert!(widths.iter().all(|width| *width == widths[0]), "{text}");
    assert!(text.contains("1-100") && text.contains("0-12"), "{text}");
}

fn identity() -> LedgerIdentity {
    LedgerIdentity::of(&DataSchedule::of_steps(100, 10, 10), 7)
}

/// Adds steps to a chain up to step `to`.
fn grow(chain: &mut Chain, generation: u64, to: u64) {
    while chain.head().step < to {
        let step = chain.head().step + 1;
        let start = 10 * ((step - 1) % 10);
        let batch = Batch {
            step,
            epoch: (step - 1) / 10,
            places: start..start + 10,
            ends_epoch: start == 90,
        };
        chain.push(chain.head().next(&batch, generation, 0.5));
    }
}

/// A directory, and the chain of a first generation with `num_steps` committed steps. The steps are
/// in no file yet.
fn committed(num_steps: u64) -> (tempfile::TempDir, Directory, Chain) {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::new(root.path().to_owned());
    let mut chain = Chain::from(Head::start(&identity()));
    grow(&mut chain, 1, num_steps);
    (root, directory, chain)
}

fn lines_of(chain: &Chain) -> Vec<Line> {
    chain.lines().iter().copied().collect()
}

/// Writes the ledger file of a generation.
fn write(directory: &Directory, generation: u64, previous: Option<Head>, lines: &[Line]) {
    let header = Header {
        generation,
        previous,
        identity: identity(),
        start: None,
    };
    let lines = lines.iter().map(Line::to_text);
    let text: String = std::iter::once(header.to_text()).chain(lines).collect();
    std::fs::create_dir_all(directory.ledger()).unwrap();
    std::fs::write(directory.ledger().join(file_name(generation)), text).unwrap();
}

/// Writes what a process saves that leaves alone: the checkpoint of the chain's head, with the
/// lines that may be in no file.
fn save_alone(directory: &Directory, chain: &Chain) {
    let tail = Tail {
        after: chain.durable(),
        lines: lines_of(chain),
    };
    save_with(directory, chain, Some(tail));
}

/// Saves a checkpoint of the chain's head.
fn save(directory: &Directory, chain: &Chain) {
    save_with(directory, chain, None);
}

fn save_with(directory: &Directory, chain: &Chain, tail: Option<Tail>) {
    let head = chain.head();
    let training = Identity {
        model: "mlp".to_owned(),
        optimizer: "sgd".to_owned(),
        ledger: identity(),
        settings: BTreeMap::new(),
    };
    let manifest = Manifest {
        schema_version: SCHEMA_VERSION,
        saved_at: String::new(),
        generation: head.generation,
        step: head.step,
        epoch: 0,
        cursor: 10 * head.step,
        pace: None,
        skips: Skips::NONE,
        loss_scale: None,
        scores: None,
        world_size: 1,
        training,
        config_hash: Digest::of(&[]),
        ledger: head,
        tail,
        tensors: Table::default(),
        shards: Vec::new(),
    };
    let path = directory.checkpoint(CheckpointId::of(&head));
    let partial = path.with_extension("partial");
    std::fs::create_dir_all(&partial).unwrap();
    std::fs::write(partial.join(FILE), serde_json::to_vec(&manifest).unwrap()).unwrap();
    std::fs::rename(partial, path).unwrap();
}

fn proof(directory: &Directory) -> Proof {
    audited(directory).unwrap().0
}

fn num_lost(proof: &Proof) -> u64 {
    proof.rows.iter().map(|row| row.num_superseded).sum()
}

#[test]
fn tail_in_a_checkpoint_is_proven_before_and_after_resume() {
    let (_root, directory, mut chain) = committed(4);
    write(&directory, 1, None, &lines_of(&chain));
    // Two lines are in the file without an acknowledgement; two more are in no file.
    chain.forget_through(2);
    grow(&mut chain, 1, 6);
    save_alone(&directory, &chain);
    let found = proof(&directory);
    assert_eq!((found.num_steps, num_lost(&found)), (6, 0));
    assert_eq!(found.rows.len(), 1, "the tail is the first generation's");
    // The next generation continues from the checkpoint. It writes a part of the tail first, then a
    // step of its own.
    let after = chain.durable();
    grow(&mut chain, 2, 7);
    let lines = lines_of(&chain);
    for (num_written, num_steps) in [(3, 6), (5, 7)] {
        write(&directory, 2, Some(after), &lines[..num_written]);
        let found = proof(&directory);
        assert_eq!((found.num_steps, num_lost(&found)), (num_steps, 0));
    }
}

#[test]
fn damaged_line_in_a_checkpoint_names_its_manifest() {
    let (_root, directory, chain) = committed(3);
    let mut lines = lines_of(&chain);
    lines[1].loss += 1.0;
    let after = chain.durable();
    save_with(&directory, &chain, Some(Tail { after, lines }));
    write(&directory, 1, None, &lines_of(&chain)[..2]);
    let words = audited(&directory).unwrap_err().to_string();
    assert!(
        words.contains("manifest.json: line 2 of its part of the ledger"),
        "{words}"
    );
}

#[test]
fn tail_without_a_continuing_generation_counts_as_repeated() {
    let (_root, directory, mut chain) = committed(4);
    write(&directory, 1, None, &lines_of(&chain));
    let mut other = Chain::from(chain.head());
    chain.forget_through(4);
    grow(&mut chain, 1, 6);
    save_alone(&directory, &chain);
    grow(&mut other, 2, 7);
    write(&directory, 2, Some(other.durable()), &lines_of(&other));
    let found = proof(&directory);
    assert_eq!((found.num_steps, num_lost(&found)), (7, 2));
    assert_eq!(found.rows[0].superseded, Some((5, 6)));
}

#[test]
fn tail_without_any_ledger_file_is_proven() {
    let (_root, directory, chain) = committed(3);
    save_alone(&directory, &chain);
    assert_eq!(proof(&directory).num_steps, 3);
}

/// A generation of five steps, and one that continues from a state before the last two of them.
fn repeated(directory: &Directory, source: Source) {
    let mut chain = Chain::from(Head::start(&identity()));
    grow(&mut chain, 1, 5);
    let lines = lines_of(&chain);
    write(directory, 1, None, &lines);
    let head = lines[2].head();
    let mut other = Chain::from(head);
    grow(&mut other, 2, 4);
    let header = Header {
        generation: 2,
        previous: Some(head),
        identity: identity(),
        start: Some(Start {
            head,
            source,
            repeats: None,
        }),
    };
    let text = header.to_text() + &other.lines()[0].to_text();
    std::fs::write(directory.ledger().join(file_name(2)), text).unwrap();
}

#[test]
fn shortened_training_reports_surplus_steps() {
    let (_root, directory, chain) = committed(5);
    write(&directory, 1, None, &lines_of(&chain));
    let mut proof = proof(&directory);
    let words = verdict(&proof);
    assert!(
        words.starts_with("proven: 5 of 10 steps used 50 "),
        "{words}"
    );
    proof.identity.total_steps = 3;
    let words = verdict(&proof);
    let expected = "proven: 5 steps, more than the 3 that are asked for now, used 50 samples";
    assert!(words.starts_with(expected), "{words}");
}

#[test]
fn source_of_each_generation_is_named() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::new(root.path().to_owned());
    for (source, expected) in [
        (
            Source::Checkpoint,
            "generation 2 (run 1) continued from checkpoint gen-0000000001-step-000000000003",
        ),
        (
            Source::Rank(4),
            "generation 2 (run 1) continued from the state of rank 4 after step 3",
        ),
    ] {
        repeated(&directory, source);
        let proof = proof(&directory);
        let text = lost(&proof.rows[0]).unwrap();
        assert!(
            text.starts_with("2 committed steps of generation 1"),
            "{text}"
        );
        assert!(
            text.contains("steps 4-5; ") && text.ends_with(expected),
            "{text}"
        );
        assert_eq!(lost(&proof.rows[1]), None);
    }
}

#[test]
fn json_names_repeated_steps_and_their_cause() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::new(root.path().to_owned());
    repeated(&directory, Source::Checkpoint);
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let found = read(&json::proven(&proof(&directory), &[]));
    assert_eq!(
        (&found["proven"], &found["steps"]),
        (&true.into(), &4.into())
    );
    assert_eq!(found["repeatedSteps"], 2);
    let repeated = &found["generations"][0]["repeated"];
    assert_eq!(repeated["steps"], serde_json::json!([4, 5]));
    assert_eq!(repeated["by"]["generation"], 2);
    assert_eq!(repeated["by"]["source"], "checkpoint");
    assert_eq!(repeated["by"]["head"]["step"], 3);
    let found = read(&json::not_proven(&Finding::Empty.into()));
    assert_eq!(
        found,
        serde_json::json!({"proven": false, "reason": "there is no ledger"})
    );
}
