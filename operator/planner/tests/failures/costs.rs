//! What a failure costs without a rule, and how it is reported.

use roundhouse_planner::PodPhase;
use roundhouse_planner::testing::world;

use crate::trains;

#[test]
fn total_limit_ignores_progress() {
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
fn disruption_is_not_an_incident_for_any_exit_code() {
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
fn eviction_counts_unless_the_node_lacked_resources() {
    for (disrupted, has_message, incidents) in [
        (true, true, 0),
        (true, false, 0),
        (false, true, 1),
        (false, false, 1),
    ] {
        let mut world = trains();
        if has_message {
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
            "{disrupted} {has_message}"
        );
        let last = status.last_failure.as_ref().unwrap();
        assert_eq!(last.reason, "Evicted");
        assert!(last.message.contains("20Mi"), "{}", last.message);
    }
}

#[test]
fn repeated_storage_evictions_fail_the_job() {
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
fn last_failure_names_worker_node_time_and_cause() {
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
fn long_failure_messages_are_cut_to_the_schema() {
    let mut world = trains();
    world.fails(0, &"é".repeat(100));
    world.observed.pods[0].failed.as_mut().unwrap().message = "é".repeat(3_000);
    world.settle();
    let failure = world.observed.status.last_failure.as_ref().unwrap();
    assert_eq!((failure.reason.len(), failure.message.len()), (128, 4_096));
}

#[test]
fn restart_for_a_resize_is_not_an_incident() {
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
