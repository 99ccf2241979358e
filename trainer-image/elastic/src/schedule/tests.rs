use roundhouse_contract::trainer::optimizer::BatchGrowth;
use roundhouse_contract::trainer::{Schedule, ScheduleName};
use serde::Deserialize;

use super::*;
use crate::data_schedule::Length;

/// Returns the rates of a training of ten epochs of ten steps of ten samples.
fn rates(change: impl FnOnce(&mut Schedule)) -> Vec<f64> {
    let mut schedule = Schedule::default();
    change(&mut schedule);
    let data_schedule = DataSchedule::of_epochs(100, 10, 10);
    let rates = RateSchedule::new(&schedule, 2.0, &data_schedule);
    (0..data_schedule.total_steps())
        .map(|step| rates.rate(data_schedule.committed_samples(step)))
        .collect()
}

fn assert_close(found: f64, expected: f64) {
    assert!(
        (found - expected).abs() < 1e-12,
        "{found} is not {expected}"
    );
}

#[test]
fn constant_rate_does_not_change() {
    assert!(rates(|_| {}).iter().all(|rate| (*rate - 2.0).abs() < 1e-12));
}

#[test]
fn warm_up_rises_linearly_to_the_full_rate() {
    let rates = rates(|schedule| schedule.warmup_steps = 4);
    for (rate, expected) in rates.iter().zip([0.5, 1.0, 1.5, 2.0, 2.0]) {
        assert_close(*rate, expected);
    }
}

#[test]
fn cosine_falls_from_warm_up_to_its_lowest_factor() {
    let rates = rates(|schedule| {
        schedule.name = ScheduleName::Cosine;
        schedule.warmup_steps = 20;
        schedule.min_factor = 0.1;
    });
    assert_close(rates[20], 2.0);
    assert_close(rates[60], 2.0 * (0.1 + 0.9 / 2.0));
    assert!(rates[99] > 0.2 && rates[99] < 0.202, "{}", rates[99]);
    assert!(rates[20..].windows(2).all(|pair| pair[1] < pair[0]));
}

#[test]
fn step_schedule_drops_at_its_epochs() {
    let rates = rates(|schedule| {
        schedule.name = ScheduleName::Step;
        schedule.step_epochs = 3;
        schedule.gamma = 0.5;
    });
    for (step, expected) in [(0, 2.0), (29, 2.0), (30, 1.0), (60, 0.5), (99, 0.25)] {
        assert_close(rates[step], expected);
    }
}

#[test]
fn warm_up_longer_than_training_stays_below_the_full_rate() {
    let rates = rates(|schedule| schedule.warmup_steps = 200);
    assert_close(rates[99], 1.0);
}

/// One schedule of `fixtures.json`, which
/// `trainer-image/trainer/fixtures/optimizers.py` writes with PyTorch.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fixture {
    name: String,
    schedule: Schedule,
    num_samples: u64,
    global_batch: u64,
    epochs: u64,
    learning_rate: f64,
    /// The rate of each step.
    rates: Vec<f64>,
}

#[test]
fn every_schedule_equals_pytorch() {
    let fixtures: Vec<Fixture> = serde_json::from_str(include_str!("fixtures.json")).unwrap();
    assert!(fixtures.len() >= 10, "{}", fixtures.len());
    for fixture in fixtures {
        let data_schedule =
            DataSchedule::of_epochs(fixture.num_samples, fixture.global_batch, fixture.epochs);
        let rates = RateSchedule::new(&fixture.schedule, fixture.learning_rate, &data_schedule);
        assert_eq!(
            data_schedule.total_steps(),
            fixture.rates.len() as u64,
            "{}",
            fixture.name
        );
        for (step, expected) in (0..).zip(&fixture.rates) {
            let found = rates.rate(data_schedule.committed_samples(step));
            assert!(
                (found - expected).abs() <= 1e-9 * fixture.learning_rate,
                "{}, step {step}: {found} is not {expected}",
                fixture.name
            );
        }
    }
}

#[test]
fn long_decay_begins_after_warm_up() {
    let rates = rates(|schedule| {
        schedule.name = ScheduleName::Wsd;
        schedule.warmup_steps = 50;
        schedule.decay_fraction = 1.0;
    });
    assert_close(rates[49], 2.0);
    assert_close(rates[50], 2.0);
    assert_close(rates[75], 1.0);
}

#[test]
fn batch_growth_does_not_change_the_rate_at_a_sample() {
    let schedule = Schedule {
        name: ScheduleName::Cosine,
        batch_growth: Some(BatchGrowth {
            at_epochs: vec![4],
            factor: 5.0,
        }),
        ..Schedule::default()
    };
    let constant = DataSchedule::of_epochs(100, 10, 10);
    let grown = DataSchedule::new(100, 10, Length::Epochs(10), schedule.batch_growth.as_ref());
    assert_eq!(grown.total_steps(), 4 * 10 + 6 * 2);
    let rates =
        [constant, grown].map(|data_schedule| RateSchedule::new(&schedule, 2.0, &data_schedule));
    for step in 0..grown.total_steps() {
        let samples = grown.committed_samples(step);
        assert_close(rates[1].rate(samples), rates[0].rate(samples));
    }
}
