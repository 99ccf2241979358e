//! What the status shows of checkpoints.

use roundhouse_api::{Best, Checkpoint, CheckpointVolume};
use roundhouse_contract::{BestCheckpoint, BestMetric, HeldCopy, Progress};
use roundhouse_planner::ProgressSample;
use roundhouse_planner::testing::{World, world};

/// A job whose two workers train.
fn trains() -> World {
    world(2).training()
}

fn checkpoint() -> Checkpoint {
    Checkpoint {
        volume: CheckpointVolume::default(),
        every_steps: None,
        every_seconds: None,
        keep: 3,
        best: None,
        local: None,
    }
}

fn report(world: &mut World, step: u64, checkpoint: Option<u64>, error: Option<&str>) {
    world.seconds_pass(10);
    report_now(world, step, checkpoint, error);
}

fn report_now(world: &mut World, step: u64, checkpoint: Option<u64>, error: Option<&str>) {
    let (progress, at) = (progress(step, checkpoint, error), world.now);
    world.observed.progress = Some(ProgressSample { progress, at });
}

fn progress(step: u64, checkpoint: Option<u64>, error: Option<&str>) -> Progress {
    Progress {
        generation: 1,
        step,
        total_steps: 100,
        checkpoint_step: checkpoint,
        checkpoint_at: checkpoint.map(|_| "1970-01-01T00:00:07.5Z".to_owned()),
        checkpoint_error: error.map(str::to_owned),
        ..Progress::default()
    }
}

fn message(world: &World) -> &str {
    &world.observed.status.front().unwrap().message
}

#[test]
fn failed_checkpoint_is_one_event() {
    let mut world = trains();
    report(&mut world, 50, Some(40), None);
    world.settle();
    let shown = world.observed.status.checkpoint.clone().unwrap();
    assert_eq!(
        (shown.step, shown.time.unwrap().0.as_second()),
        (Some(40), 7)
    );
    report(&mut world, 60, None, Some("no space left"));
    let plan = world.plan();
    assert_eq!(plan.events[0].reason, "CheckpointFailed");
    world.settle();
    assert_eq!(
        world.observed.status.checkpoint.as_ref().unwrap().step,
        Some(40)
    );
    assert!(message(&world).ends_with("trouble with checkpoints: no space left"));
    assert_eq!(world.state(), "Training");
    report(&mut world, 70, Some(40), Some("no space left"));
    assert!(world.plan().events.is_empty());
    report(&mut world, 80, Some(80), None);
    world.settle();
    assert!(!message(&world).contains("trouble"));
}

#[test]
fn checkpoint_error_is_shown_at_once() {
    let mut world = trains();
    report(&mut world, 50, Some(40), None);
    world.settle();
    report_now(&mut world, 51, Some(40), Some("no space left"));
    world.settle();
    assert!(message(&world).ends_with("trouble with checkpoints: no space left"));
    report_now(&mut world, 52, Some(52), None);
    world.settle();
    let shown = world.observed.status.progress.as_ref().unwrap();
    assert_eq!(shown.progress.step, 51);
}

const BEST: BestCheckpoint = BestCheckpoint {
    step: 30,
    metric: BestMetric::Top1,
    value: 0.75,
};

/// Two workers train, and the best checkpoint is kept.
fn keeps_best(metric: BestMetric) -> World {
    let mut world = trains();
    world.job.checkpoint = Some(Checkpoint {
        best: Some(Best { metric }),
        ..checkpoint()
    });
    world
}

/// Rank 0 reports a best checkpoint, if it knows one. Returns the best checkpoint of the status.
fn report_best(
    world: &mut World,
    step: u64,
    best: Option<BestCheckpoint>,
) -> Option<BestCheckpoint> {
    world.seconds_pass(10);
    let progress = Progress {
        best_checkpoint: best,
        ..progress(step, Some(40), None)
    };
    let at = world.now;
    world.observed.progress = Some(ProgressSample { progress, at });
    world.settle();
    let shown = world.observed.status.checkpoint.as_ref();
    shown.and_then(|shown| shown.best)
}

#[test]
fn best_checkpoint_stays_in_the_status() {
    let mut world = keeps_best(BestMetric::Top1);
    assert_eq!(report_best(&mut world, 50, Some(BEST)), Some(BEST));
    // Another rank 0, which has not read the volume yet.
    assert_eq!(report_best(&mut world, 60, None), Some(BEST));
}

#[test]
fn best_checkpoint_of_another_metric_is_removed() {
    let mut world = keeps_best(BestMetric::Top1);
    assert_eq!(report_best(&mut world, 50, Some(BEST)), Some(BEST));
    world.job = keeps_best(BestMetric::Loss).job;
    assert_eq!(report_best(&mut world, 60, None), None);

    let mut world = keeps_best(BestMetric::Top1);
    assert_eq!(report_best(&mut world, 50, Some(BEST)), Some(BEST));
    world.job.checkpoint = Some(checkpoint());
    // Rank 0 reports no checkpoints after the resumption.
    report(&mut world, 60, None, None);
    world.settle();
    let shown = world.observed.status.checkpoint.clone().unwrap();
    assert_eq!((shown.step, shown.best), (Some(40), None));
}

#[test]
fn unchanged_checkpoints_write_no_status() {
    let full = Some("no space left");
    for (what, best, checkpoint, error) in [
        (
            "rank 0 does not know the best one",
            Some(BEST),
            Some(40),
            None,
        ),
        ("rank 0 knows no checkpoint", None, None, full),
        ("checkpoints are not reported", Some(BEST), None, None),
    ] {
        let mut world = keeps_best(BestMetric::Top1);
        report_best(&mut world, 50, best);
        report(&mut world, 50, checkpoint, error);
        world.settle();
        let before = world.observed.status.clone();
        report(&mut world, 50, checkpoint, error);
        assert_eq!(world.plan().status, before, "{what}");
    }
}

/// Rank 0 reports these steps of its checkpoint and of the copy in another pod. Returns what the
/// status shows of that copy.
fn peer_copy(world: &mut World, step: u64, peer: Option<(&str, u64)>) -> Option<(u64, String)> {
    world.seconds_pass(10);
    let progress = Progress {
        held_copy: peer.map(|(pod, step)| HeldCopy {
            pair: "a1".to_owned(),
            pod: pod.to_owned(),
            generation: 1,
            step,
        }),
        ..progress(step + 20, Some(step), None)
    };
    let at = world.now;
    world.observed.progress = Some(ProgressSample { progress, at });
    world.settle();
    let shown = world.observed.status.checkpoint.clone()?;
    shown.peer_step.zip(shown.peer_pod)
}

#[test]
fn copy_in_another_pod_is_shown_while_it_is_newer() {
    let mut world = trains();
    world.has_peer_copies();
    let found = peer_copy(&mut world, 40, Some(("digits-worker-2-0", 50)));
    assert_eq!(found, Some((50, "digits-worker-2-0".to_owned())));
    assert_eq!(
        peer_copy(&mut world, 60, Some(("digits-worker-2-0", 50))),
        None
    );
    assert_eq!(
        peer_copy(&mut world, 80, Some((&"x".repeat(254), 90))),
        None
    );
    let found = peer_copy(&mut world, 100, Some(("digits-worker-2-0", 110)));
    assert!(found.is_some());
    assert_eq!(peer_copy(&mut world, 101, None), None, "the holder is gone");
    world.saves(true);
    let found = peer_copy(&mut world, 120, Some(("digits-worker-2-0", 130)));
    assert_eq!(found, None, "the job has no such copies");
}
