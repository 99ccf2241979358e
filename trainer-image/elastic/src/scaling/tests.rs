use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

use super::*;

/// Batches of 64 with two workers, of a data set of 1,000 samples.
fn scaling(rule: RateRule, warmup_steps: u32) -> Scaling {
    let settings = ScaleBatch {
        reference_replicas: 2,
        rule,
        warmup_steps,
    };
    Scaling::new(Some(settings), &DataSchedule::of_epochs(1_000, 64, 3))
}

fn close(found: f64, expected: f64) -> bool {
    (found - expected).abs() < 1e-12
}

#[test]
fn batch_follows_the_workers_and_rate_follows_the_batch() {
    for (workers, batch, linear, root) in [
        (2, 64, 1.0, 1.0),
        (1, 32, 0.5, 0.5_f64.sqrt()),
        (3, 96, 1.5, 1.5_f64.sqrt()),
        (8, 256, 4.0, 2.0),
        (10_000, 1_000, 1_000.0 / 64.0, (1_000.0 / 64.0_f64).sqrt()),
    ] {
        for (rule, expected) in [(RateRule::Linear, linear), (RateRule::SquareRoot, root)] {
            let scaling = scaling(rule, 0);
            let position = scaling.rescale(scaling.start(), workers);
            assert_eq!(position.pace.batch, batch);
            assert!(
                close(scaling.factor(&position), expected),
                "{workers} {expected}"
            );
        }
    }
}

#[test]
fn scaled_batch_is_rounded_and_never_empty() {
    for (batch, workers, reference, expected) in [
        (10, 1, 4, 3),
        (10, 3, 4, 8),
        (1, 1, 4, 1),
        (7, 0, 1, 1),
        (7, 3, 0, 21),
    ] {
        assert_eq!(scaled(batch, workers, reference, 100), expected);
    }
}

#[test]
fn without_scale_batch_nothing_changes() {
    let data_schedule = DataSchedule::of_epochs(1_000, 64, 3);
    let scaling = Scaling::new(None, &data_schedule);
    let position = scaling.rescale(scaling.start(), 7);
    assert_eq!(position, scaling.start());
    assert!(close(scaling.factor(&position), 1.0) && position.pace.batch == 64);
}

/// Returns the factors of the next `steps` steps.
fn factors(scaling: &Scaling, position: &mut TrainingPosition, steps: usize) -> Vec<f64> {
    let mut step = || {
        let factor = scaling.factor(position);
        *position = position.after(1);
        factor
    };
    (0..steps).map(|_| step()).collect()
}

#[test]
fn rate_changes_to_the_new_one_in_equal_steps() {
    let scaling = scaling(RateRule::Linear, 4);
    let mut position = scaling.rescale(scaling.start(), 4);
    let rising = factors(&scaling, &mut position, 6);
    assert_eq!(rising, [1.25, 1.5, 1.75, 2.0, 2.0, 2.0]);
    // A generation with the same number of workers changes nothing.
    assert_eq!(scaling.rescale(position, 4), position);
    position = scaling.rescale(position, 2);
    assert_eq!(factors(&scaling, &mut position, 2), [1.75, 1.5]);
    // Another change during the warm-up starts at the present rate.
    position = scaling.rescale(position, 1);
    let falling = factors(&scaling, &mut position, 5);
    assert_eq!(falling, [1.25, 1.0, 0.75, 0.5, 0.5]);
}

#[test]
fn generation_without_commits_keeps_the_rate() {
    for warmup_steps in [0, 1, 4] {
        let scaling = scaling(RateRule::Linear, warmup_steps);
        let position = scaling.rescale(scaling.rescale(scaling.start(), 8), 2);
        assert!(close(scaling.factor(&position), 1.0), "{warmup_steps}");
    }
}

proptest! {
    #[test]
    fn changing_workers_use_each_place_once_per_epoch(
        num_samples in 1_u64..300, batch in 1_u64..400, epochs in 1_u64..4,
        reference in 1_u32..6, workers in proptest::collection::vec(1_u32..9, 1..40),
    ) {
        let data_schedule = DataSchedule::of_epochs(num_samples, batch, epochs);
        let settings = ScaleBatch {
            reference_replicas: reference,
            rule: RateRule::Linear,
            warmup_steps: 3,
        };
        let scaling = Scaling::new(Some(settings), &data_schedule);
        let mut position = scaling.start();
        let mut used = Vec::new();
        let mut workers = workers.iter().cycle();
        loop {
            position = scaling.rescale(position, *workers.next().unwrap());
            let Some(batch) = data_schedule.batch_at(&position) else { break };
            prop_assert!(batch.num_samples() > 0 && batch.num_samples() <= position.pace.batch);
            prop_assert_eq!(batch.step, position.step + 1);
            prop_assert_eq!(batch.ends_epoch, batch.places.end == num_samples);
            used.extend(batch.places.clone().map(|place| (batch.epoch, place)));
            position = position.after(batch.num_samples());
            prop_assert_eq!(used.len() as u64, position.samples);
        }
        let all: Vec<_> = (0..epochs)
            .flat_map(|epoch| (0..num_samples).map(move |place| (epoch, place)))
            .collect();
        prop_assert_eq!(used, all);
        prop_assert_eq!(data_schedule.steps_to_come(&position), 0);
    }

    #[test]
    fn constant_workers_follow_the_step_count(
        num_samples in 1_u64..300, batch in 1_u64..400, steps in 1_u64..100,
    ) {
        let data_schedule = DataSchedule::of_steps(num_samples, batch, steps);
        let scaling = Scaling::new(None, &data_schedule);
        let mut position = scaling.start();
        for step in 0..=steps {
            let data_position = data_schedule.position_at(position.samples);
            prop_assert_eq!(data_position, data_schedule.position(step));
            prop_assert_eq!(position.samples, data_schedule.committed_samples(step));
            prop_assert_eq!(data_schedule.steps_to_come(&position), steps - step);
            let batch = data_schedule.batch_at(&position);
            prop_assert_eq!(&batch, &data_schedule.next_batch(step));
            position = position.after(batch.map_or(0, |batch| batch.num_samples()));
        }
    }

    #[test]
    fn steps_to_come_equals_the_steps_that_follow(
        num_samples in 1_u64..200, batch in 1_u64..200, samples in 0_u64..500, length in 1_u64..500,
    ) {
        let data_schedule = DataSchedule::of_steps(num_samples, 1, length);
        let scaling = Scaling::new(None, &data_schedule);
        let mut position = TrainingPosition { samples, ..scaling.start() };
        position.pace.batch = batch;
        let expected = data_schedule.steps_to_come(&position);
        let mut found = 0;
        while let Some(batch) = data_schedule.batch_at(&position) {
            position = position.after(batch.num_samples());
            found += 1;
        }
        prop_assert_eq!(found, expected);
    }
}
