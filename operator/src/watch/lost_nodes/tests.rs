use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::watch::cache::Entry;

const TIMING: NodeTiming = NodeTiming {
    doubt: Duration::from_secs(50),
    interval: Duration::from_secs(20),
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A pod that was created in second 0 and prepares.
fn preparing(node: &str) -> Pod {
    Pod {
        ours: true,
        node: Some(node.to_owned()),
        created_at: Some(at(0)),
        ready_at: Some(at(2)),
        ..Pod::default()
    }
}

fn doubts_about(nodes: &[&str]) -> Doubts {
    let names = nodes.iter().map(|node| (*node).to_owned());
    names.map(|node| (node, Vec::new())).collect()
}

#[test]
fn pod_is_doubtful_after_50_seconds_without_readiness() {
    type Change = fn(&mut Pod);
    let cases: [(&str, Change, i64, bool); 9] = [
        ("it prepares", |_| (), 52, true),
        ("it has begun to prepare", |_| (), 51, false),
        ("it runs", |pod| pod.phase = PodPhase::Running, 52, true),
        ("it is ready", |pod| pod.ready = true, 600, false),
        (
            "it lost its peers a moment ago",
            |pod| pod.ready_at = Some(at(590)),
            600,
            false,
        ),
        (
            "the clock of its node is ahead",
            |pod| pod.ready_at = Some(at(10_000)),
            600,
            true,
        ),
        ("it is terminating", |pod| pod.deleting = true, 600, false),
        (
            "it shows a lost node",
            |pod| pod.unreachable = true,
            3,
            true,
        ),
        ("it failed", |pod| pod.phase = PodPhase::Failed, 600, false),
    ];
    for (name, change, now, expected) in cases {
        let mut pod = preparing("n1");
        change(&mut pod);
        assert_eq!(is_doubtful(&pod, TIMING, at(now)), expected, "{name}");
    }
}

#[test]
fn only_nodes_of_doubtful_pods_are_read_once_for_all_jobs() {
    let pods = |all: Vec<(&str, Pod)>| -> OfJob<Pod> {
        let entry = |(name, value): (&str, Pod)| {
            let entry = Entry {
                value,
                version: 1,
                job_name: "digits".to_owned(),
                job_uid: "uid".to_owned(),
            };
            (name.to_owned(), Arc::new(entry))
        };
        Arc::new(all.into_iter().map(entry).collect())
    };
    let ready = Pod {
        ready: true,
        ..preparing("n2")
    };
    let unplaced = Pod {
        node: None,
        ..preparing("n3")
    };
    let of = |namespace: &str| JobKey::new(namespace, "uid");
    let all = [
        (
            of("a"),
            pods(vec![
                ("w0", preparing("n1")),
                ("w1", preparing("n1")),
                ("w2", ready),
            ]),
        ),
        (
            of("b"),
            pods(vec![("w0", preparing("n1")), ("w1", unplaced)]),
        ),
    ];
    let doubts = doubts(&all, TIMING, at(100));
    let jobs = ["a", "b"].map(|namespace| JobName::new(namespace, "digits"));
    assert_eq!(doubts, Doubts::from([("n1".to_owned(), jobs.to_vec())]));
}

#[test]
fn nodes_are_read_in_turn_with_the_longest_wait_first() {
    let (lost, begun) = (LostNodes::default(), Instant::now());
    let later = |seconds| begun + Duration::from_secs(seconds);
    assert_eq!(lost.due(&doubts_about(&["b"]), TIMING, later(0)), ["b"]);
    let both = doubts_about(&["a", "b"]);
    assert_eq!(lost.due(&both, TIMING, later(5)), ["a"]);
    assert!(lost.due(&both, TIMING, later(19)).is_empty());
    assert_eq!(lost.due(&both, TIMING, later(25)), ["b", "a"]);
    let many: Vec<String> = (0..120).map(|n| format!("n{n:03}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let many = doubts_about(&many);
    let mut asked = Vec::new();
    for tick in 0..3 {
        let due = lost.due(&many, TIMING, later(30 + 5 * tick));
        assert!(due.len() <= MAX_READS);
        asked.extend(due);
    }
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked.len(), 120, "all have their turn");
}

#[test]
fn large_namespace_does_not_delay_nodes_of_other_namespaces() {
    let (lost, begun) = (LostNodes::default(), Instant::now());
    let of = |namespace: &str| vec![JobName::new(namespace, "digits")];
    let mut doubts = Doubts::from([("n".to_owned(), of("small"))]);
    assert_eq!(lost.due(&doubts, TIMING, begun), ["n"]);
    // Nodes that were never read, more than one tick reads.
    doubts.extend((0..200).map(|n| (format!("n{n}"), of("large"))));
    let due = lost.due(&doubts, TIMING, begun + TIMING.interval);
    assert_eq!(due.len(), MAX_READS);
    assert!(due.contains(&"n".to_owned()), "{due:?}");
}

#[test]
fn lost_node_wakes_its_jobs_until_it_returns() {
    let lost = LostNodes::default();
    let pod = preparing("n1");
    lost.due(&doubts_about(&["n1"]), TIMING, Instant::now());
    assert_eq!(lost.record("n1", None), News::Nothing, "as expected");
    assert_eq!(lost.of(&pod, TIMING), None);
    let not_ready = |answers| {
        let since = at(7);
        Some(Loss { since, answers })
    };
    assert_eq!(lost.record("n1", not_ready(true)), News::Changed);
    assert_eq!(
        lost.record("n1", not_ready(false)),
        News::Changed,
        "silent now"
    );
    assert_eq!(lost.record("n1", not_ready(false)), News::StillLost);
    assert_eq!(lost.of(&pod, TIMING), not_ready(false));
    let ready = Pod { ready: true, ..pod };
    assert_eq!(lost.of(&ready, TIMING), None, "its kubelet answers");
    assert_eq!(lost.record("n1", None), News::Changed, "it is back");
}

#[test]
fn node_is_lost_unless_its_ready_condition_is_true() {
    let since = "2026-01-01T00:00:00Z";
    for (status, answers) in [
        ("True", None),
        ("False", Some(true)),
        ("Unknown", Some(false)),
    ] {
        let conditions = json!([{"type": "MemoryPressure", "status": "Unknown"},
            {"type": "Ready", "status": status, "lastTransitionTime": since}]);
        let node = json!({"status": {"conditions": conditions}});
        let node = serde_json::from_value(node).unwrap();
        let since = since.parse().unwrap();
        let expected = answers.map(|answers| Loss { since, answers });
        assert_eq!(loss(&node, at(9)), expected, "{status}");
    }
    let new: Node = serde_json::from_value(json!({})).unwrap();
    assert_eq!(
        loss(&new, at(9)),
        None,
        "its kubelet has not reported anything yet"
    );
}
