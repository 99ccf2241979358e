use super::testing::{ManualClock, touch, value};
use super::*;

#[test]
fn a_second_operator_in_one_registry_is_refused() {
    let (registry, clock) = (Registry::new(), ManualClock::new());
    Metrics::new(&registry, clock.clock()).unwrap();
    assert!(Metrics::new(&registry, clock.clock()).is_err());
}

#[test]
fn a_job_that_starts_fails_and_recovers_touches_each_histogram_of_jobs() {
    let (registry, clock) = (Registry::new(), ManualClock::new());
    touch(&Metrics::new(&registry, clock.clock()).unwrap());
    for what in ["time_to_ready", "start", "recover"] {
        let series = format!("roundhouse_job_{what}_seconds_count");
        assert_eq!(value(&registry, &series), Some(1.0), "{what}");
    }
}

#[test]
fn a_state_is_a_reason_of_ours_or_other() {
    assert_eq!(labels::state("WaitingForWorkers"), "WaitingForWorkers");
    assert_eq!(labels::state("of somebody else"), labels::OTHER);
}
