use super::*;
use kube::runtime::watcher::Event;
use roundhouse_contract::HeldCopy;

use crate::memory::testing::{identity, memories};

fn key() -> JobKey {
    JobKey::new("ml", "uid")
}

fn follow(progress: &JobMemories, address: &str, now: Instant) {
    let first = (address.to_owned(), 1);
    progress.with(&key(), |it| it.progress.follow_at(first, None, now));
}

fn followed(address: &str) -> (JobMemories, Instant) {
    let (progress, now) = (memories(&["uid"]), Instant::now());
    follow(&progress, address, now);
    (progress, now)
}

fn last(progress: &JobMemories) -> Option<ProgressSample> {
    progress.with(&key(), |it| it.progress.last())
}

fn formed(progress: &JobMemories) -> Option<u64> {
    progress.with(&key(), |it| it.progress.formed())
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// How often the job is polled in this number of seconds, and the time at their end.
fn polled(progress: &JobMemories, from: Instant, num_seconds: u64) -> (usize, Instant) {
    let times = (0..num_seconds).map(|second| from + seconds(second));
    let num_polls = times.map(|now| progress.progress_polls(now).len()).sum();
    (num_polls, from + seconds(num_seconds))
}

fn step(step: u64) -> Report {
    Report {
        generation: 1,
        step,
        total_steps: 1_000,
        ..Report::default()
    }
}

#[test]
fn unanswered_polls_become_rare_and_never_stop() {
    let (progress, now) = followed("10.0.0.1");
    let (often, now) = polled(&progress, now, 60);
    assert_eq!(often, MAX_SILENT as usize);
    let (seldom, now) = polled(&progress, now, 6_000);
    assert_eq!(seldom, 100);
    // A reconcile of the same job changes nothing.
    follow(&progress, "10.0.0.1", now);
    assert_eq!(polled(&progress, now, 60).0, 1);
}

#[test]
fn formed_generation_wakes_a_job_without_progress() {
    let (progress, now) = followed("10.0.0.1");
    let (_, now) = polled(&progress, now, 300);
    assert_eq!(formed(&progress), None);
    assert!(progress.formed_reported(&key(), 0, now).is_some());
    assert_eq!(formed(&progress), Some(0));
    let (often, now) = polled(&progress, now, 15);
    assert_eq!(often, 4, "three seconds after the answer");
    assert!(progress.formed_reported(&key(), 0, now).is_none());
    assert!(progress.formed_reported(&key(), 2, now).is_some());
    assert_eq!(formed(&progress), Some(2));
    assert_eq!(last(&progress), None);
    // The generation of a progress report counts, too.
    let report = Report {
        generation: 3,
        ..step(1)
    };
    progress.progress_reported(&key(), report, now);
    assert_eq!(formed(&progress), Some(3));
}

#[test]
fn answer_or_new_address_restores_frequent_polls() {
    let (progress, now) = followed("10.0.0.1");
    let (_, now) = polled(&progress, now, 300);
    progress.progress_reported(&key(), step(1), now);
    let (often, now) = polled(&progress, now, 15);
    assert_eq!(often, 5, "each three seconds, and when its status is due");
    let (_, now) = polled(&progress, now, 300);
    follow(&progress, "10.0.0.2", now);
    assert_eq!(polled(&progress, now, 15).0, 5);
    assert!(last(&progress).is_some(), "the last report is kept");
}

#[test]
fn a_deleted_job_is_not_polled() {
    let (progress, now) = followed("10.0.0.1");
    progress.apply(&Event::Delete(identity("uid")));
    assert!(progress.progress_polls(now).is_empty());
    assert!(progress.progress_reported(&key(), step(1), now).is_none());
}

#[test]
fn steps_wake_the_job_rarely_and_urgent_reports_at_once() {
    let (progress, now) = followed("10.0.0.1");
    let wakes = |report: Report, second: u64| {
        let woken = progress.progress_reported(&key(), report, now + seconds(second));
        woken.is_some()
    };
    assert!(wakes(step(1), 0));
    assert!(!wakes(step(1), 60), "an equal report is no news");
    assert!(wakes(step(2), 60));
    assert!(!wakes(step(3), 69), "too soon");
    assert!(
        wakes(step(3), 71),
        "although it has the same step as before"
    );
    let trouble = Report {
        checkpoint_error: Some("the volume is full".to_owned()),
        ..step(5)
    };
    assert!(wakes(trouble, 71));
    assert!(wakes(step(6), 72), "the error is over");
    let next = Report {
        generation: 2,
        ..step(6)
    };
    assert!(wakes(next, 73));
    let last = Report {
        generation: 2,
        ..step(1_000)
    };
    assert!(wakes(last, 74));
}

#[test]
fn copy_in_another_pod_wakes_the_job_but_not_for_each_step() {
    let (progress, now) = followed("10.0.0.1");
    let wakes = |held: Option<(u64, u64)>| {
        let report = Report {
            held_copy: held.map(|(generation, step)| HeldCopy {
                pair: "a1".to_owned(),
                pod: "digits-worker-1-0".to_owned(),
                generation,
                step,
            }),
            ..step(1)
        };
        let woken = progress.progress_reported(&key(), report, now);
        woken.is_some()
    };
    assert!(wakes(None));
    assert!(wakes(Some((1, 10))));
    assert!(!wakes(Some((1, 20))));
    assert!(wakes(Some((2, 30))));
    assert!(wakes(None));
}

#[test]
fn wakes_follow_the_age_of_the_shown_progress() {
    let (progress, now) = followed("10.0.0.1");
    let wakes = |report: Report, second: u64| {
        let woken = progress.progress_reported(&key(), report, now + seconds(second) + MARGIN);
        woken.is_some()
    };
    let shown = |second: u64| {
        let (first, at) = (("10.0.0.1".to_owned(), 1), now + seconds(second));
        progress.with(&key(), |it| it.progress.follow_at(first, Some(at), at));
    };
    assert!(wakes(step(1), 0));
    // Another cause woke the job, and its status was written with the last report.
    shown(6);
    assert!(!wakes(step(2), 12));
    assert!(wakes(step(3), 16), "ten seconds after what is shown");
    // The write of the status failed.
    assert!(wakes(step(4), 19));
    shown(19);
    assert!(!wakes(step(5), 28));
    assert!(wakes(step(6), 29));
}

#[test]
fn job_is_polled_when_its_status_is_due() {
    let (progress, now) = followed("10.0.0.1");
    let is_polled = |millis: u64| {
        let polls = progress.progress_polls(now + Duration::from_millis(millis));
        !polls.is_empty()
    };
    progress.progress_reported(&key(), step(1), now);
    let shown: Vec<u64> = (0..=11_000)
        .step_by(10)
        .filter(|at| is_polled(*at))
        .collect();
    assert_eq!(shown, [0, 3_000, 6_000, 9_000, 10_010]);
}

#[test]
fn new_generation_is_polled_soon_among_many_jobs() {
    let (progress, now) = followed("10.0.0.1");
    let follow = |uid: &str, generation, now| {
        let (key, first) = (JobKey::new("ml", uid), ("10.0.0.1".to_owned(), generation));
        progress.with(&key, |it| it.progress.follow_at(first, None, now));
    };
    for other in 0..5_000 {
        let other = format!("other-{other}");
        progress.apply(&Event::Apply(identity(&other)));
        follow(&other, 1, now);
    }
    let times = |from: Instant| {
        let is_polled = |second: &u64| {
            let polls = progress.progress_polls(from + seconds(*second));
            polls.iter().any(|(job, _)| *job == key())
        };
        (0..60).filter(is_polled).collect::<Vec<u64>>()
    };
    assert_eq!(
        times(now),
        [0, 3, 6, 9, 12],
        "the next poll is 50 seconds later"
    );
    let now = now + seconds(20);
    follow("uid", 2, now);
    assert_eq!(times(now)[..3], [3, 6, 9], "a newer generation");
}
