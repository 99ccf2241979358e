use super::testing::{ManualClock, touch, value};
use super::*;

#[test]
fn second_set_of_metrics_in_one_registry_is_refused() {
    let (registry, clock) = (Registry::new(), ManualClock::new());
    Metrics::new(&registry, clock.clock()).unwrap();
    assert!(Metrics::new(&registry, clock.clock()).is_err());
}

#[test]
fn each_job_histogram_records_start_and_recovery() {
    let (registry, clock) = (Registry::new(), ManualClock::new());
    touch(&Metrics::new(&registry, clock.clock()).unwrap());
    for what in ["time_to_ready", "start", "recover"] {
        let series = format!("roundhouse_job_{what}_seconds_count");
        assert_eq!(value(&registry, &series), Some(1.0), "{what}");
    }
}

#[test]
fn unknown_state_is_labelled_other() {
    assert_eq!(labels::state("WaitingForWorkers"), "WaitingForWorkers");
    assert_eq!(labels::state("ReasonOfAnotherController"), labels::OTHER);
}
