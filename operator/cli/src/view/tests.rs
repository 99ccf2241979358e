use roundhouse_contract::{Progress, Repeat, RepeatSource, labels};
use serde_json::{Value, json};

use super::JobView;
use crate::command::status::text;
use crate::facts::Facts;
use crate::testing::{before, job, now, progress};

fn shown(view: &JobView) -> String {
    anstream::adapter::strip_str(&text(view, now())).to_string()
}

#[test]
fn training_job_shows_step_and_lag_of_each_rank() {
    let step = |rank: u32, step: u64| format!("roundhouse_train_step{{rank=\"{rank}\"}} {step}\n");
    let case = job()
        .trains(2)
        .reports(0, progress(), &step(0, 480))
        .reports(1, progress(), &step(1, 478));
    let view = JobView::of(&case.facts());
    let ranks: Vec<_> = view
        .ranks
        .iter()
        .map(|it| (it.rank, it.step, it.lag))
        .collect();
    assert_eq!(
        ranks,
        [(Some(0), Some(480), Some(0)), (Some(1), Some(478), Some(2))]
    );
    assert_eq!(view.ranks[0].samples_per_second, Some(50.0));
    // 520 steps of 10 samples at 100 samples/s.
    assert_eq!(view.seconds_left, Some(52));
    let text = shown(&view);
    for line in [
        "digits in namespace ml: Training",
        "  The job trains: generation 3: 2 workers, world size 2.",
        "  Step 480 of 1000 (48%), epoch 2, loss 0.2500, 100 samples/s, test perplexity 12.50.",
        "  About 52s left at this speed.",
        "0     digits-worker-0-0  node-0  Training  480   0    50         0         -",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
}

#[test]
fn ranks_of_a_sharded_worker_show_their_shards() {
    let sharded = |parallel| {
        let job = job()
            .trains(2)
            .with("spec/workers/procsPerWorker", json!(2))
            .with("status/membership/worldSize", json!(4))
            .with("spec/trainer/parallel", parallel);
        JobView::of(&job.facts())
    };
    let view = sharded(json!({"shard": "Zero3"}));
    let shards: Vec<_> = view.ranks.iter().map(|it| it.shard.as_deref()).collect();
    assert_eq!(shards, [Some("1/2"), Some("2/2"), Some("1/2"), Some("2/2")]);
    let text = shown(&view);
    assert!(text.contains("RANK  SHARD  POD"), "{text}");
    for (parallel, what) in [("tensor", "tensor 2/2"), ("pipeline", "stage 2/2")] {
        let view = sharded(json!({parallel: 2}));
        assert_eq!(view.ranks[1].shard.as_deref(), Some(what));
    }
    let whole = shown(&JobView::of(&job().trains(2).facts()));
    assert!(whole.contains("RANK  POD"), "{whole}");
}

#[test]
fn ranks_of_large_replicas_show_replica_and_shard() {
    let mut facts = job()
        .trains(2)
        .with("spec/workers/podsPerReplica", json!(2))
        .with("spec/trainer/parallel", json!({"shard": "Zero3"}))
        .with("status/membership/worldSize", json!(2))
        .with("status/membership/nodes", json!(1))
        .facts();
    put_in_replica(&mut facts, &json!([]));
    let view = JobView::of(&facts);
    let shown_of = |of: fn(&crate::view::ranks::Rank) -> Option<&str>| {
        view.ranks.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(
        shown_of(|it| it.replica.as_deref()),
        [Some("3.0"), Some("3.1")]
    );
    assert_eq!(
        shown_of(|it| it.shard.as_deref()),
        [Some("1/2"), Some("2/2")]
    );
    let text = shown(&view);
    assert!(text.contains("RANK  REPLICA  SHARD  POD"), "{text}");
}

/// Gives the job's two pods their places in replica 3. `holders` are the pods that hold copies.
fn put_in_replica(facts: &mut Facts, holders: &Value) {
    for (number, pod) in (0..).zip(&mut facts.pods) {
        let place = json!({
            "replica": 3, "pod": number, "addresses": ["10.0.0.1", "10.0.0.2"], "number": 1,
            "life": "a1", "incarnation": {"podUid": "u", "restarts": 0}, "holders": holders,
        });
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(labels::REPLICA.to_owned(), place.to_string());
        let text = annotations.get_mut(labels::MEMBERSHIP).unwrap();
        *text = text.replacen('{', "{\"life\":\"a1\",", 1);
    }
}

#[test]
fn places_of_a_copy_are_shown() {
    for (holders, expected) in [
        (json!([]), "The newest local copy holds 40 steps."),
        (
            json!([1, 0]),
            "The newest local copy holds 40 steps, each part of it in two pods.",
        ),
        (
            json!([null, null]),
            "40 steps; 2 of 2 pods have no second copy on another node.",
        ),
    ] {
        let mut facts = job()
            .trains(2)
            .with("spec/workers/podsPerReplica", json!(2))
            .with("status/checkpoint", json!({"localStep": 40}))
            .facts();
        put_in_replica(&mut facts, &holders);
        let text = shown(&JobView::of(&facts));
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn copy_in_another_pod_is_shown() {
    let peer = json!({"localStep": 40, "peerStep": 30, "peerPod": "digits-worker-1-0"});
    for (shown_copies, expected) in [
        (
            peer,
            "holds 40 steps; pod digits-worker-1-0 holds a copy of 30 steps.",
        ),
        (
            json!({"localStep": 40}),
            "holds 40 steps; no other pod has a copy that is newer than the checkpoint.",
        ),
    ] {
        let facts = job()
            .trains(1)
            .with("spec/workers/spares", json!(1))
            .with(
                "spec/checkpoint",
                json!({
                    "volume": {"hostPath": {"path": "/a"}},
                    "local": {"everySteps": 10, "sizeLimit": "1Gi", "peerCopies": 1},
                }),
            )
            .with("status/checkpoint", shown_copies)
            .facts();
        let text = shown(&JobView::of(&facts));
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn unknown_speed_of_a_job_and_its_ranks_is_a_dash() {
    let unknown = json!(0.0);
    let case = job()
        .trains(2)
        .with("status/progress/samplesPerSecond", unknown);
    let view = JobView::of(&case.facts());
    assert_eq!(view.ranks[0].samples_per_second, None);
    let text = shown(&view);
    assert!(text.contains("loss 0.2500, - samples/s,"), "{text}");
}

#[test]
fn repeated_steps_are_shown() {
    let repeated = Progress {
        repeated_steps: 12,
        last_repeat: Some(Repeat {
            first: 31,
            last: 42,
            after: 30,
            source: RepeatSource::Checkpoint,
            rank: None,
        }),
        ..progress()
    };
    let case = job().trains(2).reports(0, repeated, "");
    let text = shown(&JobView::of(&case.facts()));
    let words = "12 committed steps lost and repeated (the last: 31-42).";
    assert!(text.contains(words), "{text}");
}

#[test]
fn spares_are_shown_apart_from_active_workers() {
    for (spares, sentence) in [
        (1, "1 spare waits in the lobby to replace a lost member."),
        (2, "2 spares wait in the lobby to replace a lost member."),
    ] {
        let case = job().trains(2).with("status/workers/spares", json!(spares));
        let view = JobView::of(&case.facts());
        assert!(
            view.summary.iter().any(|it| it == sentence),
            "{:?}",
            view.summary
        );
        assert_eq!(view.workers.unwrap().summary, "2/2");
    }
}

#[test]
fn crashed_worker_shows_meaning_of_its_exit_code() {
    let case = job()
        .crashes(0, 137, "OOMKilled", "killed")
        .with("spec/startDeadlineSeconds", json!(600))
        .waits("CrashLoopBackOff", "0 of 2 workers ready");
    let view = JobView::of(&case.facts());
    let text = shown(&view);
    let exit = "137 (killed: it used more memory than its limit), 20s ago";
    assert!(text.contains(exit), "{text}");
    assert!(
        text.contains("in 9m (at 2026-01-01T12:09:00Z) unless it trains"),
        "{text}"
    );
    assert_eq!(view.ranks[0].restarts, 5);
    assert_eq!(view.ranks[0].rank, None);
}

#[test]
fn cluster_text_cannot_control_the_terminal() {
    let case = job().waits("Unschedulable", "0 of 2\u{1b}[2J\u{9b}1m");
    let text = text(&JobView::of(&case.facts()), now());
    let stripped = anstream::adapter::strip_str(&text).to_string();
    assert!(
        !stripped.contains(|c: char| c.is_control() && c != '\n'),
        "{stripped:?}"
    );
    assert!(!text.contains("\u{1b}[2J"), "{text:?}");
}

#[test]
fn next_events_are_shown_with_their_times() {
    let saves = json!({
        "volume": {"hostPath": {"path": "/srv"}}, "everySteps": 100, "everySeconds": 300, "keep": 3});
    let trains = job()
        .trains(2)
        .with("spec/checkpoint", saves)
        .with("spec/activeDeadlineSeconds", json!(3_660))
        .with(
            "status/checkpoint",
            json!({"step": 400, "time": before(100)}),
        )
        .with(
            "status/avoidNodes",
            json!([{"node": "n7", "reason": "HardwareFault", "until": before(-90)}]),
        );
    let cases = [
        (
            trains,
            vec![
                "The next checkpoint is due at step 500, or in 3m20s.",
                "The job fails in 1h (at 2026-01-01T13:00:00Z) if it has not ended by then (activeDeadlineSeconds).",
                "In 1m30s new pods of the job may use node n7 again (HardwareFault).",
            ],
        ),
        (
            job()
                .last_failure("Killed", 137, "")
                .member(0)
                .with(
                    "status/membership",
                    json!({"generation": 3, "worldSize": 2, "nodes": 2, "members": "m"}),
                )
                .waits("Recovering", ""),
            vec![
                "Training continues as soon as 2 workers can take part.",
                "The job fails after 6 more incidents without a new step between them (backoffLimit).",
            ],
        ),
        (
            job()
                .with("spec/suspend", json!(true))
                .waits("Suspended", "no workers"),
            vec!["Nothing, until you run `kubectl roundhouse resume digits`."],
        ),
        (
            job().condition("Succeeded", "True", "Completed", ""),
            vec![
                "Nothing: the job has ended. Pods that have ended stay, with their logs (cleanPodPolicy).",
            ],
        ),
        (
            job()
                .condition("Succeeded", "True", "Completed", "")
                .with("status/completionTime", json!("2026-01-01T11:59:00Z"))
                .with("spec/ttlSecondsAfterFinished", json!(3_660)),
            vec![
                "Nothing: the job has ended. Pods that have ended stay, with their logs (cleanPodPolicy).",
                "The TrainingJob is deleted in 1h (at 2026-01-01T13:00:00Z), with its pods and their logs (ttlSecondsAfterFinished).",
            ],
        ),
    ];
    for (case, expected) in cases {
        assert_eq!(JobView::of(&case.facts()).next, expected);
    }
}

#[test]
fn document_has_the_fields_of_the_text() {
    let document = serde_json::to_value(JobView::of(&job().trains(2).facts())).unwrap();
    assert_eq!(document["state"], "Training");
    assert_eq!(document["progress"]["evalPerplexity"], 12.5);
    assert_eq!(document["ranks"][1]["pod"], "digits-worker-1-0");
    assert_eq!(document["conditions"][0]["reason"], "Training");
}

#[test]
fn job_without_status_is_unseen() {
    let case = job().with("status", serde_json::Value::Null);
    let view = JobView::of(&case.facts());
    assert_eq!(view.state, "Unseen");
    let line = &super::list::lines(&[serde_json::from_value(job().job).unwrap()])[0];
    assert_eq!((line.state.as_str(), line.ready.as_str()), ("Valid", "0/2"));
}
