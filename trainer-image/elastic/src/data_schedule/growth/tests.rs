use proptest::prelude::{Strategy, prop_assert, prop_assert_eq, proptest};

use super::*;
use crate::audit::{File, audit};
use crate::data_schedule::{DataSchedule, Length};
use crate::ledger::{Chain, Head, Header, LedgerIdentity};
use crate::scaling::Scaling;
use crate::training_position::TrainingPosition;
use roundhouse_contract::{RateRule, ScaleBatch};

fn growth(at_epochs: &[u32], factor: f64) -> BatchGrowth {
    BatchGrowth {
        at_epochs: at_epochs.to_vec(),
        factor,
    }
}

fn any_growth() -> impl Strategy<Value = BatchGrowth> {
    let epochs = proptest::collection::btree_set(1_u32..6, 1..4);
    (epochs, 1.01_f64..4.0).prop_map(|(epochs, factor)| BatchGrowth {
        at_epochs: epochs.into_iter().collect(),
        factor,
    })
}

/// Returns the steps after a position, and the position at the end.
fn steps_from(
    data_schedule: &DataSchedule,
    mut position: TrainingPosition,
) -> (Vec<crate::Batch>, TrainingPosition) {
    let mut steps = Vec::new();
    while let Some(batch) = data_schedule.batch_at(&position) {
        position = position.after(batch.num_samples());
        steps.push(batch);
    }
    (steps, position)
}

#[test]
fn batch_grows_at_the_start_of_the_given_epochs() {
    let settings = growth(&[1, 3], 2.0);
    let data_schedule = DataSchedule::new(20, 4, Length::Epochs(4), Some(&settings));
    let start = Scaling::new(None, &data_schedule).start();
    let (steps, end) = steps_from(&data_schedule, start);
    let sizes: Vec<_> = steps
        .iter()
        .map(|step| (step.epoch, step.num_samples()))
        .collect();
    let expected = [
        (0, 4),
        (0, 4),
        (0, 4),
        (0, 4),
        (0, 4),
        (1, 8),
        (1, 8),
        (1, 4),
        (2, 8),
        (2, 8),
        (2, 4),
        (3, 16),
        (3, 4),
    ];
    assert_eq!(sizes, expected);
    assert_eq!((data_schedule.total_steps(), end.step), (13, 13));
    assert_eq!(data_schedule.total_samples(), 80);
}

#[test]
fn batch_never_exceeds_the_data_set() {
    let stages = Growth::new(&growth(&[1, 2, 3], 10.0), 64, 1_000);
    let batches: Vec<_> = stages.stages().iter().map(|it| it.global_batch).collect();
    assert_eq!(batches, [640, 1_000, 1_000]);
}

#[test]
fn rounding_does_not_accumulate_over_stages() {
    let stages = Growth::new(&growth(&[1, 2, 3], 1.5), 3, 1_000);
    let batches: Vec<_> = stages.stages().iter().map(|it| it.global_batch).collect();
    // Before rounding: 4.5, 6.75 and 10.125.
    assert_eq!(batches, [5, 7, 10]);
}

#[test]
fn stages_round_trip_and_invalid_lists_are_refused() {
    let stages = Growth::new(&growth(&[30, 60], 5.0), 256, 50_000);
    let text = serde_json::to_string(&stages).unwrap();
    assert_eq!(
        text,
        r#"[{"fromEpoch":30,"globalBatch":1280},{"fromEpoch":60,"globalBatch":6400}]"#
    );
    assert_eq!(serde_json::from_str::<Growth>(&text).unwrap(), stages);
    for wrong in [
        r#"[{"fromEpoch":0,"globalBatch":8}]"#.to_owned(),
        r#"[{"fromEpoch":2,"globalBatch":0}]"#.to_owned(),
        r#"[{"fromEpoch":2,"globalBatch":8},{"fromEpoch":2,"globalBatch":9}]"#.to_owned(),
        serde_json::to_string(&vec![stages.stages()[0]; 17]).unwrap(),
    ] {
        assert!(serde_json::from_str::<Growth>(&wrong).is_err(), "{wrong}");
    }
}

#[test]
fn ledgers_with_different_growth_do_not_fit() {
    let identity = |settings: Option<&BatchGrowth>| {
        LedgerIdentity::of(&DataSchedule::new(100, 10, Length::Epochs(9), settings), 7)
    };
    let (none, by_2, by_3) = (
        identity(None),
        identity(Some(&growth(&[2], 2.0))),
        identity(Some(&growth(&[2], 3.0))),
    );
    assert!(by_2.fit(&by_2) && !by_2.fit(&none) && !by_2.fit(&by_3));
    let text = serde_json::to_string(&none).unwrap();
    assert!(!text.contains("growth"), "{text}");
    let read: LedgerIdentity =
        serde_json::from_str(&serde_json::to_string(&by_2).unwrap()).unwrap();
    assert_eq!(read, by_2);
}

proptest! {
    #[test]
    fn growth_uses_each_sample_once_in_the_announced_steps(
        num_samples in 1_u64..200, batch in 1_u64..60, epochs in 1_u64..7, settings in any_growth(),
    ) {
        let data_schedule = DataSchedule::new(num_samples, batch, Length::Epochs(epochs), Some(&settings));
        let (steps, end) = steps_from(&data_schedule, Scaling::new(None, &data_schedule).start());
        let used: Vec<_> = steps
            .iter()
            .flat_map(|step| step.places.clone().map(|place| (step.epoch, place)))
            .collect();
        let all: Vec<_> = (0..epochs)
            .flat_map(|epoch| (0..num_samples).map(move |place| (epoch, place)))
            .collect();
        prop_assert_eq!(used, all);
        prop_assert_eq!(end.step, data_schedule.total_steps());
        prop_assert_eq!(end.samples, data_schedule.total_samples());
    }

    #[test]
    fn length_in_steps_is_exact_with_growth(
        num_samples in 1_u64..200, batch in 1_u64..60, num_steps in 1_u64..300, settings in any_growth(),
    ) {
        let data_schedule = DataSchedule::new(num_samples, batch, Length::Steps(num_steps), Some(&settings));
        let (_, end) = steps_from(&data_schedule, Scaling::new(None, &data_schedule).start());
        prop_assert_eq!((end.step, end.samples), (num_steps, data_schedule.total_samples()));
    }

    #[test]
    fn training_continues_identically_from_every_step(
        num_samples in 1_u64..120, batch in 1_u64..60, epochs in 1_u64..7, settings in any_growth(),
    ) {
        let data_schedule = DataSchedule::new(num_samples, batch, Length::Epochs(epochs), Some(&settings));
        let start = Scaling::new(None, &data_schedule).start();
        let (steps, _) = steps_from(&data_schedule, start);
        let mut position = start;
        for (index, step) in steps.iter().enumerate() {
            // A checkpoint stores the number of steps, the epoch and the cursor.
            let data_position = data_schedule.position_at(position.samples);
            prop_assert_eq!(data_position, data_schedule.position(position.step));
            prop_assert_eq!(position.samples, data_schedule.committed_samples(position.step));
            prop_assert_eq!(data_schedule.steps_at(data_position), Some(position.step));
            let samples = data_position.epoch * num_samples + data_position.cursor;
            let resumed = TrainingPosition { step: position.step, samples, ..start };
            prop_assert_eq!(data_schedule.steps_to_come(&resumed), data_schedule.total_steps() - position.step);
            let (rest, _) = steps_from(&data_schedule, resumed);
            prop_assert_eq!(&rest[..], &steps[index..]);
            let by_steps = data_schedule.next_batch(position.step);
            prop_assert_eq!(by_steps.as_ref(), Some(step));
            position = position.after(step.num_samples());
        }
    }

    #[test]
    fn ledger_with_growth_and_changing_workers_is_proven(
        num_samples in 1_u64..150, batch in 1_u64..40, epochs in 1_u64..6, settings in any_growth(),
        reference in 0_u32..4, workers in proptest::collection::vec(1_u32..6, 1..5),
    ) {
        let data_schedule = DataSchedule::new(num_samples, batch, Length::Epochs(epochs), Some(&settings));
        let reference_replicas = (reference > 0).then_some(reference);
        let identity = LedgerIdentity { reference_replicas, ..LedgerIdentity::of(&data_schedule, 7) };
        let scale = reference_replicas.map(|reference_replicas| ScaleBatch {
            reference_replicas,
            rule: RateRule::Linear,
            warmup_steps: 0,
        });
        let scaling = Scaling::new(scale, &data_schedule);
        let mut position = scaling.start();
        let mut previous: Option<Head> = None;
        let mut files = Vec::new();
        for (generation, workers) in (1_u64..).zip(workers.iter().cycle()) {
            position = scaling.rescale(position, *workers);
            let mut chain = Chain::from(previous.unwrap_or_else(|| Head::start(&identity)));
            let to_come = data_schedule.steps_to_come(&position);
            let mut found = 0;
            while let Some(batch) = data_schedule.batch_at(&position).filter(|_| found < 7) {
                chain.push(chain.head().next(&batch, generation, 0.5));
                position = position.after(batch.num_samples());
                found += 1;
            }
            prop_assert!(found == 7 || found == to_come);
            let header = Header { generation, previous, identity, start: None };
            files.push(File { header, lines: chain.lines().iter().copied().collect() });
            previous = Some(chain.head());
            if found < 7 {
                break;
            }
        }
        let proof = audit(files, &[]);
        prop_assert!(proof.is_ok(), "{:?}", proof);
        let proof = proof.unwrap();
        prop_assert_eq!((proof.num_epochs, proof.num_samples), (epochs, data_schedule.total_samples()));
    }
}

#[test]
fn audit_finds_a_step_that_did_not_grow() {
    let settings = growth(&[1], 2.0);
    let grown = DataSchedule::new(40, 10, Length::Epochs(2), Some(&settings));
    let constant = DataSchedule::of_epochs(40, 10, 2);
    let identity = LedgerIdentity::of(&grown, 7);
    let (steps, _) = steps_from(&constant, Scaling::new(None, &constant).start());
    let mut chain = Chain::from(Head::start(&identity));
    for batch in &steps {
        chain.push(chain.head().next(batch, 1, 0.5));
    }
    let header = Header {
        generation: 1,
        previous: None,
        identity,
        start: None,
    };
    let lines = chain.lines().iter().copied().collect();
    let finding = audit(vec![File { header, lines }], &[]).unwrap_err();
    assert!(
        matches!(
            finding,
            crate::audit::Finding::SamplesLeftOut { step: 5, .. }
        ),
        "{finding}"
    );
}
