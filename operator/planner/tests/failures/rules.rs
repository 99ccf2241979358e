//! The rules of a job.

use roundhouse_api::{ExitCodeOperator, FailureAction, FailureRule};
use roundhouse_planner::testing::{raw_job, world};
use roundhouse_planner::validate;

use crate::{on_codes, on_reason, rule, trains};

fn on_condition(action: FailureAction, kind: &str) -> FailureRule {
    FailureRule {
        on_pod_conditions: Some(vec![kind.to_owned()]),
        ..rule(action)
    }
}

/// Name, exit code of a member, rules, and the expected incidents and state.
type Case = (&'static str, i32, Vec<FailureRule>, (u32, &'static str));

#[test]
fn first_matching_rule_decides() {
    use ExitCodeOperator::{In, NotIn};
    use FailureAction::{Count, FailJob, Ignore, ReplaceAndAvoidNode};
    let ignored = (0, "Training");
    let counted = (1, "Training");
    let failed = (0, "FailurePolicyRule");
    let cases: [Case; 9] = [
        ("without a rule a crash counts", 1, vec![], counted),
        (
            "a listed code is ignored",
            42,
            vec![on_codes(Ignore, In, &[42])],
            ignored,
        ),
        (
            "another code is not",
            43,
            vec![on_codes(Ignore, In, &[42])],
            counted,
        ),
        (
            "NotIn takes what is not listed",
            43,
            vec![on_codes(FailJob, NotIn, &[42])],
            failed,
        ),
        (
            "NotIn leaves what is listed",
            42,
            vec![on_codes(FailJob, NotIn, &[42])],
            counted,
        ),
        (
            "NotIn never takes a lost peer",
            75,
            vec![on_codes(FailJob, NotIn, &[42])],
            counted,
        ),
        (
            "the first of two wins",
            42,
            vec![on_codes(Ignore, In, &[42]), on_codes(FailJob, In, &[42])],
            ignored,
        ),
        (
            "a rule overrules the default",
            65,
            vec![on_codes(Count, In, &[65])],
            counted,
        ),
        (
            "a reason of the trainer's own",
            76,
            vec![on_reason(ReplaceAndAvoidNode, "Stalled")],
            counted,
        ),
    ];
    for (name, code, rules, (incidents, state)) in cases {
        let mut world = trains();
        world.job.rules = rules;
        world.ends(1, code, 40);
        world.settle();
        assert_eq!(world.observed.status.incidents.total, incidents, "{name}");
        assert_eq!(world.state(), state, "{name}");
    }
}

#[test]
fn rule_matches_pod_conditions() {
    let mut world = trains();
    world.job.rules = vec![on_condition(FailureAction::FailJob, "DisruptionTarget")];
    world.observed.pods[1].conditions = vec!["DisruptionTarget".to_owned()];
    world.observed.pods[1].disrupted = true;
    world.fails(1, "Evicted");
    world.settle();
    assert_eq!(world.state(), "FailurePolicyRule");
    let message = &world.observed.status.front().unwrap().message;
    assert!(message.starts_with("failurePolicy.rules[0]: digits-worker-1-0 on n1: Evicted"));
}

#[test]
fn worker_asked_to_leave_matches_no_rule() {
    let mut world = trains();
    world.job.rules = vec![on_codes(
        FailureAction::FailJob,
        ExitCodeOperator::In,
        &[143],
    )];
    world.is_deleted(1);
    world.ends(1, 143, 40);
    world.settle();
    assert_eq!(world.state(), "Training");
}

#[test]
fn ignored_failure_in_the_lobby_is_not_a_restart() {
    let mut world = world(1);
    world.job.backoff_limit = 0;
    world.job.rules = vec![on_codes(FailureAction::Ignore, ExitCodeOperator::In, &[42])];
    world.settle();
    for _ in 0..3 {
        world.ends(0, 42, 0);
        world.restarts(0);
        world.settle();
        assert_eq!(world.state(), "WaitingForWorkers");
    }
}

#[test]
fn rule_must_have_exactly_one_condition() {
    let both = FailureRule {
        on_reasons: Some(vec!["Evicted".into()]),
        ..on_codes(FailureAction::Count, ExitCodeOperator::In, &[1])
    };
    for rule in [rule(FailureAction::Count), both] {
        let mut job = raw_job(1);
        job.spec.failure_policy.rules = vec![rule];
        assert_eq!(
            validate(&job).unwrap_err().field,
            "spec.failurePolicy.rules[0]"
        );
    }
}
