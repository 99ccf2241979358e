use super::*;

#[test]
fn stall_timeout_limits_steps_and_only_raises_setup() {
    let own = Policy::from_seconds(Some(7));
    for (phase, limit) in [
        (Phase::Training, Some(9)),
        (Phase::Evaluating, Some(9)),
        (Phase::Forming, Some(275)),
        (Phase::Preparing, Some(1_802)),
        (Phase::Saving, Some(1_802)),
        (Phase::Lobby, None),
    ] {
        assert_eq!(
            Watch::new(own).limit(&status(phase, 1, 0)),
            limit,
            "{phase:?}"
        );
    }
    let long = Policy::from_seconds(Some(3_600));
    let preparing = status(Phase::Preparing, 0, 0);
    assert_eq!(Watch::new(long).limit(&preparing), Some(3_602));
}

#[test]
fn zero_seconds_disable_the_watchdog() {
    let mut watch = Watch::new(Policy::from_seconds(Some(0)));
    assert_eq!(watch.limit(&training(0)), None);
}

#[test]
fn script_may_evaluate_for_ten_minutes() {
    let mut watch = Watch::new(Policy::Auto);
    watch.dog.limits.runs_script = true;
    assert_eq!(watch.steps(5, 1).limit(&training(5)), Some(902));
    let mut watch = Watch::new(Policy::Auto);
    watch.dog.limits.runs_script = true;
    watch.steps(5, 1);
    for step in [5, 6] {
        assert_eq!(watch.hold(&training(step), 600), None, "step {step}");
    }
    // A setting of the user has priority.
    let mut watch = Watch::new(Policy::from_seconds(Some(7)));
    watch.dog.limits.runs_script = true;
    assert_eq!(watch.steps(5, 1).limit(&training(5)), Some(9));
}

#[test]
fn requested_time_is_granted_and_not_learned() {
    let asks = |step, patience_seconds| RankStatus {
        patience_seconds,
        ..status(Phase::Evaluating, 1, step)
    };
    for policy in [Policy::Auto, Policy::from_seconds(Some(7))] {
        let mut watch = Watch::new(policy);
        watch.steps(3, 1);
        assert_eq!(watch.hold(&asks(3, 20), 2), None, "{policy:?}");
        assert_eq!(watch.limit(&asks(4, 3_600)), Some(3_612), "{policy:?}");
    }
    let mut watch = Watch::new(Policy::Auto);
    watch.steps(3, 1);
    assert_eq!(watch.hold(&asks(3, 2), 1), None);
    assert_eq!(watch.limit(&status(Phase::Evaluating, 1, 4)), Some(1_802));
}
