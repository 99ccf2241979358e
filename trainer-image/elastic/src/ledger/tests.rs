use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

use super::*;
use crate::data_schedule::DataSchedule;

#[test]
fn file_names_round_trip_and_others_are_refused() {
    assert_eq!(file_name(3), "gen-0000000003.jsonl");
    assert_eq!(parse_file_name("gen-0000000003.jsonl"), Some(3));
    for name in ["gen-3.jsonl", "gen-0000000003.jsonl.partial", "x"] {
        assert_eq!(parse_file_name(name), None, "{name}");
    }
}

proptest! {
    #[test]
    fn line_round_trips_every_bit_of_its_loss(
        loss in any::<f64>(), step in 1_u64..1 << 50, is_skipped in any::<bool>(),
    ) {
        let data_schedule = DataSchedule::of_steps(1_000, 64, u64::MAX);
        let batch = data_schedule.next_batch(step - 1).unwrap();
        let head = Head::start(&LedgerIdentity::of(&data_schedule, 7));
        let line = if is_skipped {
            head.next_skipped(&batch, 3, loss)
        } else {
            head.next(&batch, 3, loss)
        };
        let read: Line = serde_json::from_str(&line.to_text()).unwrap();
        prop_assert_eq!(read.loss.to_bits(), line.loss.to_bits());
        prop_assert_eq!(read.skipped, is_skipped);
        prop_assert!(!loss.is_finite() || line.loss.to_bits() == loss.to_bits());
        prop_assert_eq!(read.hash_after(&LedgerIdentity::of(&data_schedule, 7).genesis()), line.hash);
    }
}

#[test]
fn hash_covers_every_field_of_the_line() {
    let data_schedule = DataSchedule::of_steps(100, 10, 10);
    let head = Head::start(&LedgerIdentity::of(&data_schedule, 7));
    let line = head.next(&data_schedule.next_batch(0).unwrap(), 3, 0.5);
    let edits: [fn(&mut Line); 7] = [
        |line| line.step += 1,
        |line| line.generation += 1,
        |line| line.epoch += 1,
        |line| line.start += 1,
        |line| line.end += 1,
        |line| line.loss = line.loss.next_up(),
        |line| line.skipped = true,
    ];
    for edit in edits {
        let mut changed = line;
        edit(&mut changed);
        assert_ne!(changed.hash_after(&head.hash), line.hash, "{changed:?}");
    }
    assert_ne!(line.hash_after(&Digest::of(&[])), line.hash);
}

#[test]
fn infinite_losses_have_one_text_and_one_hash() {
    let data_schedule = DataSchedule::of_steps(100, 10, 10);
    let head = Head::start(&LedgerIdentity::of(&data_schedule, 7));
    let batch = data_schedule.next_batch(0).unwrap();
    let losses = [
        f64::NAN,
        -f64::NAN,
        f64::from_bits(0x7ff8_0000_0000_0001),
        f64::INFINITY,
        f64::NEG_INFINITY,
    ];
    let lines = losses.map(|loss| head.next_skipped(&batch, 3, loss));
    let text = lines[0].to_text();
    assert!(
        text.contains(r#""loss":null,"skipped":true"#),
        "line of a skipped step: {text}"
    );
    for line in lines {
        assert_eq!(line.to_text(), text);
        let read: Line = serde_json::from_str(&text).unwrap();
        assert_eq!(read.hash_after(&head.hash), line.hash);
    }
}

#[test]
fn line_without_skipped_field_was_updated() {
    let data_schedule = DataSchedule::of_steps(100, 10, 10);
    let head = Head::start(&LedgerIdentity::of(&data_schedule, 7));
    let text = head
        .next(&data_schedule.next_batch(0).unwrap(), 3, 0.5)
        .to_text();
    assert!(!text.contains("skipped"), "{text}");
    assert!(!serde_json::from_str::<Line>(&text).unwrap().skipped);
}
