use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn each_place_is_used_once_per_epoch(
        num_samples in 1_u64..200, global_batch in 1_u64..250, epochs in 1_u64..4,
    ) {
        let data_schedule = DataSchedule::of_epochs(num_samples, global_batch, epochs);
        let mut used = Vec::new();
        let mut step = 0;
        while let Some(batch) = data_schedule.next_batch(step) {
            prop_assert!(batch.num_samples() > 0);
            prop_assert_eq!(used.len() as u64, data_schedule.committed_samples(step));
            prop_assert_eq!(data_schedule.steps_at(data_schedule.position(step)), Some(step));
            prop_assert_eq!(batch.ends_epoch, (step + 1) % num_samples.div_ceil(data_schedule.global_batch()) == 0);
            used.extend(batch.places.clone().map(|place| (batch.epoch, place)));
            step += 1;
        }
        let all: Vec<_> = (0..epochs)
            .flat_map(|epoch| (0..num_samples).map(move |place| (epoch, place)))
            .collect();
        prop_assert_eq!(used, all);
        prop_assert_eq!(step, data_schedule.total_steps());
    }
}

#[test]
fn last_batch_of_an_epoch_is_smaller() {
    let data_schedule = DataSchedule::of_steps(10, 4, 5);
    let sizes: Vec<_> = (0..5)
        .filter_map(|step| data_schedule.next_batch(step))
        .map(|batch| batch.num_samples())
        .collect();
    assert_eq!(sizes, [4, 4, 2, 4, 4]);
    assert_eq!(data_schedule.next_batch(5), None);
}

#[test]
fn evaluation_is_due_at_intervals_and_at_the_end() {
    let data_schedule = DataSchedule::of_steps(10, 4, 14);
    // Returns the steps after which the model is evaluated; an epoch has three steps.
    let evaluated_after = |every_epochs, every_steps| {
        let eval = Eval {
            every_epochs,
            every_steps,
        };
        let is_evaluated = |step: &u64| {
            data_schedule.is_evaluated_at(*step, data_schedule.committed_samples(*step), &eval)
        };
        (0..=14).filter(is_evaluated).collect::<Vec<_>>()
    };
    assert_eq!(evaluated_after(1, None), [3, 6, 9, 12, 14]);
    assert_eq!(evaluated_after(3, None), [9, 14]);
    assert_eq!(evaluated_after(0, None), [14]);
    assert_eq!(evaluated_after(0, Some(5)), [5, 10, 14]);
    assert_eq!(evaluated_after(2, Some(5)), [5, 6, 10, 12, 14]);
}

#[test]
fn cursor_between_two_steps_is_not_a_step_boundary() {
    let data_schedule = DataSchedule::of_steps(10, 4, 5);
    let between = Position {
        epoch: 0,
        cursor: 3,
    };
    assert_eq!(data_schedule.steps_at(between), None);
    let past = Position {
        epoch: 0,
        cursor: 12,
    };
    assert_eq!(data_schedule.steps_at(past), None);
}
