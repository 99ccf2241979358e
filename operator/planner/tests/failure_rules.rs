//! What a failure costs: rules, defaults, and bad nodes.
#![allow(missing_docs, clippy::unwrap_used)]

use roundhouse_api::{ExitCodeOperator, FailureAction, FailureRule, OnExitCodes};
use roundhouse_planner::testing::{TRAINER_IMAGE, World, raw_job, world};
use roundhouse_planner::{Action, DeleteReason, PlanReason, PodPhase, validate};

fn rule(action: FailureAction) -> FailureRule {
    FailureRule {
        action,
        on_exit_codes: None,
        on_pod_conditions: None,
        on_reasons: None,
    }
}

fn on_codes(action: FailureAction, operator: ExitCodeOperator, values: &[i32]) -> FailureRule {
    let values = values.to_vec();
    FailureRule {
        on_exit_codes: Some(OnExitCodes { operator, values }),
        ..rule(action)
    }
}

fn on_reason(action: FailureAction, reason: &str) -> FailureRule {
    FailureRule {
        on_reasons: Some(vec![reason.to_owned()]),
        ..rule(action)
    }
}

fn on_condition(action: FailureAction, kind: &str) -> FailureRule {
    FailureRule {
        on_pod_conditions: Some(vec![kind.to_owned()]),
        ..rule(action)
    }
}

/// Three workers train on nodes n0 to n2; two are enough.
fn trains() -> World {
    let mut world = world(3);
    world.job.min_replicas = 2;
    let mut world = world.training();
    for at in 0..3 {
        world.is_on(at, &format!("n{at}"));
    }
    world
}

fn avoided(world: &World) -> Vec<&str> {
    let nodes = &world.observed.status.avoid_nodes;
    nodes.iter().map(|node| node.node.as_str()).collect()
}

/// Name, exit code of a member, rules, and what comes of it: incidents and the job's state.
type Case = (&'static str, i32, Vec<FailureRule>, (u32, &'static str));

#[test]
fn the_first_rule_that_matches_decides() {
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
fn a_rule_may_look_at_the_pods_conditions() {
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
fn a_worker_that_was_told_to_leave_is_judged_by_no_rule() {
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
fn what_is_ignored_in_the_lobby_does_not_count_as_a_restart() {
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
fn the_absolute_cap_does_not_ask_for_progress() {
    let mut world = world(1).training();
    world.job.max_incidents = Some(2);
    for step in [10, 20, 30] {
        assert_eq!(world.state(), "Training");
        world.ends(0, 1, step);
        world.restarts(0);
        world.prepared(0);
        world.settle();
    }
    assert_eq!(world.state(), "MaxIncidentsExceeded");
}

#[test]
fn a_hardware_fault_is_an_incident_and_the_worker_comes_back_elsewhere() {
    let mut world = trains();
    world.ends(1, 77, 40);
    let first = world.plan();
    assert!(
        first.actions.is_empty(),
        "the node is stored before the pod is replaced"
    );
    world.carry_out(&first, usize::MAX);
    assert_eq!(avoided(&world), ["n1"]);
    let create = Action::CreateWorker {
        index: 1,
        attempt: 1,
        avoid: vec!["n1".to_owned()],
        lost: Vec::new(),
        trainer_image: Some(TRAINER_IMAGE.to_owned()),
    };
    let then = world.plan();
    assert_eq!(then.actions[0], create);
    assert!(matches!(
        then.actions[1],
        Action::DeletePod {
            reason: DeleteReason::BadNode,
            ..
        }
    ));
    assert_eq!(world.settle().reason, PlanReason::Training);
    let status = &world.observed.status;
    assert_eq!(
        (
            status.incidents.total,
            status.membership.as_ref().unwrap().nodes
        ),
        (1, 2)
    );
    assert_eq!(status.avoid_nodes[0].reason, "HardwareFault");
}

#[test]
fn a_container_that_restarts_on_a_bad_node_is_not_taken_in_again() {
    let mut world = trains();
    world.lingering = true;
    world.ends(1, 77, 40);
    world.restarts(1);
    world.prepared(1);
    world.settle();
    let of_bad = world.observed.pods[1].membership.as_ref().unwrap();
    assert_eq!(
        of_bad.generation, 1,
        "it hears of no later generation but to leave"
    );
    assert!(world.observed.pods[1].deleting);
}

#[test]
fn a_node_is_avoided_for_a_while_and_a_pod_that_waited_for_it_is_made_anew() {
    let mut world = trains();
    world.ends(1, 77, 40);
    world.settle();
    let waiting = world.observed.pods.len() - 1;
    world.observed.pods[waiting].unschedulable = Some("no node left".into());
    let plan = world.settle();
    assert_eq!(plan.requeue_after, Some(world.job.avoid_node));
    world.seconds_pass(1_800);
    world.settle();
    assert!(avoided(&world).is_empty());
    let fresh = world.observed.pods.last().unwrap();
    assert_eq!((fresh.attempt, fresh.unschedulable.as_ref()), (2, None));
}

#[test]
fn a_pod_that_the_scheduler_gives_up_after_a_nodes_time_is_made_anew_too() {
    let mut world = trains();
    world.ends(1, 77, 40);
    world.settle();
    let waiting = world.observed.pods.len() - 1;
    world.seconds_pass(1_800);
    world.settle();
    assert_eq!(
        world.observed.pods[waiting].attempt, 1,
        "it may find a place"
    );
    world.observed.pods[waiting].unschedulable = Some("no node left".into());
    world.settle();
    assert!(avoided(&world).is_empty());
    assert_eq!(world.observed.pods.last().unwrap().attempt, 2);
}

#[test]
fn no_more_nodes_are_noted_than_the_status_has_room_for() {
    let mut world = world(80);
    world.settle();
    world.settle();
    for at in 0..80 {
        world.is_on(at, &format!("n{at}"));
        world.ends(at, 77, 0);
    }
    world.settle();
    assert_eq!(world.observed.status.avoid_nodes.len(), 64);
    let attempts = world.observed.pods.iter().filter(|pod| pod.attempt == 1);
    assert_eq!(attempts.count(), 80);
}

#[test]
fn a_node_that_refuses_a_pod_for_its_devices_is_avoided_and_no_incident() {
    let mut world = trains();
    world.fails(1, "UnexpectedAdmissionError");
    world.settle();
    assert_eq!(avoided(&world), ["n1"]);
    assert_eq!(world.observed.status.incidents.total, 0);
    let failure = world.observed.status.last_failure.as_ref().unwrap();
    assert_eq!(failure.reason, "UnexpectedAdmissionError");
    assert_eq!(
        (failure.node.as_deref(), failure.exit_code),
        (Some("n1"), None)
    );
}

#[test]
fn a_disruption_costs_nothing_whatever_the_container_said() {
    for reason in ["Preempting", "NodeShutdown", "Terminated", "NodeLost"] {
        let mut world = trains();
        world.ends(1, 143, 40);
        world.fails(1, reason);
        world.settle();
        assert_eq!(world.observed.status.incidents.total, 0, "{reason}");
        assert_eq!(world.state(), "Training", "{reason}");
    }
}

#[test]
fn an_eviction_counts_unless_its_node_ran_out_of_something() {
    for (disrupted, container_told, incidents) in [
        (true, true, 0),
        (true, false, 0),
        (false, true, 1),
        (false, false, 1),
    ] {
        let mut world = trains();
        if container_told {
            world.ends(1, 137, 40);
        }
        world.fails(1, "Evicted");
        world.observed.pods[1].disrupted = disrupted;
        let failed = world.observed.pods[1].failed.as_mut().unwrap();
        failed.message = "exceeds the total limit of containers 20Mi".to_owned();
        world.settle();
        let status = &world.observed.status;
        assert_eq!(
            status.incidents.total, incidents,
            "{disrupted} {container_told}"
        );
        let last = status.last_failure.as_ref().unwrap();
        assert_eq!(last.reason, "Evicted");
        assert!(last.message.contains("20Mi"), "{}", last.message);
    }
}

#[test]
fn a_worker_that_uses_more_than_its_limit_of_storage_again_and_again_fails_its_job() {
    let mut world = trains();
    world.job.backoff_limit = 2;
    for _ in 0..10 {
        if world.observed.status.is_terminal() {
            break;
        }
        world.seconds_pass(400);
        world.settle();
        for at in 0..world.observed.pods.len() {
            if world.observed.pods[at].phase == PodPhase::Pending {
                world.prepared(at);
            }
        }
        world.settle();
        world.seconds_pass(60);
        let at = world
            .observed
            .pods
            .iter()
            .position(|pod| pod.index == Some(1));
        world.fails(at.unwrap(), "Evicted");
        world.settle();
    }
    assert_eq!(world.state(), "BackoffLimitExceeded");
    assert_eq!(world.observed.status.incidents.total, 3);
}

#[test]
fn the_last_failure_says_which_worker_failed_where_when_and_why() {
    let mut world = trains();
    world.ends(1, 137, 40);
    world.observed.pods[1]
        .container
        .termination
        .as_mut()
        .unwrap()
        .reason = "OOMKilled".into();
    world.settle();
    let failure = world.observed.status.last_failure.clone().unwrap();
    assert_eq!(
        (failure.worker.as_str(), failure.node.as_deref()),
        ("digits-worker-1-0", Some("n1"))
    );
    assert_eq!(
        (failure.reason.as_str(), failure.exit_code),
        ("OOMKilled", Some(137))
    );
    assert_eq!(
        (failure.step, failure.message.as_str()),
        (Some(40), "words")
    );
}

#[test]
fn a_rule_must_ask_for_one_thing() {
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

#[test]
fn words_that_are_longer_than_the_schema_allows_are_cut_between_characters() {
    let mut world = trains();
    world.fails(0, &"é".repeat(100));
    world.observed.pods[0].failed.as_mut().unwrap().message = "é".repeat(3_000);
    world.settle();
    let told = world.observed.status.last_failure.as_ref().unwrap();
    assert_eq!((told.reason.len(), told.message.len()), (128, 4_096));
}

#[test]
fn a_container_that_is_restarted_to_change_its_resources_costs_nothing() {
    for (resizes, code, incidents) in [(true, 143, 0), (false, 143, 1), (true, 1, 1)] {
        let mut world = trains();
        if resizes {
            world.observed.pods[1].conditions = vec!["PodResizeInProgress".to_owned()];
        }
        world.ends(1, code, 0);
        world.settle();
        let counted = world.observed.status.incidents.total;
        assert_eq!(counted, incidents, "{resizes} {code}");
    }
}
