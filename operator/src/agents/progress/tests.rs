use super::*;

fn key() -> JobKey {
    JobKey::new("ml", "uid")
}

fn follow(progress: &Progress, address: &str, now: Instant) {
    let job = JobName::new("ml", "digits");
    progress.follow_at(&key(), job, (address.to_owned(), 1), None, now);
}

fn followed(address: &str) -> (Progress, Instant) {
    let (progress, now) = (Progress::default(), Instant::now());
    follow(&progress, address, now);
    (progress, now)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// How often the job is asked in so many seconds, and when they are over.
fn asked(progress: &Progress, from: Instant, num_seconds: u64) -> (usize, Instant) {
    let exists = |_: &JobKey, _: &JobName| true;
    let times = (0..num_seconds).map(|second| from + seconds(second));
    let num_asked = times.map(|now| progress.questions(exists, now).len()).sum();
    (num_asked, from + seconds(num_seconds))
}

fn step(step: u64) -> Told {
    Told {
        generation: 1,
        step,
        total_steps: 1_000,
        ..Told::default()
    }
}

#[test]
fn a_job_that_never_answers_is_asked_less_often_and_for_ever() {
    let (progress, now) = followed("10.0.0.1");
    let (often, now) = asked(&progress, now, 60);
    assert_eq!(often, MAX_SILENT as usize);
    let (seldom, now) = asked(&progress, now, 6_000);
    assert_eq!(seldom, 100);
    // A reconcile of the same job changes nothing.
    follow(&progress, "10.0.0.1", now);
    assert_eq!(asked(&progress, now, 60).0, 1);
}

#[test]
fn a_job_without_progress_is_heard_and_is_woken_when_a_generation_has_formed() {
    let (progress, now) = followed("10.0.0.1");
    let (_, now) = asked(&progress, now, 300);
    assert_eq!(progress.formed(&key()), None);
    assert!(progress.hear_formed(&key(), 0, now).is_some());
    assert_eq!(progress.formed(&key()), Some(0));
    let (often, now) = asked(&progress, now, 15);
    assert_eq!(often, 4, "three seconds after the answer");
    assert!(progress.hear_formed(&key(), 0, now).is_none());
    assert!(progress.hear_formed(&key(), 2, now).is_some());
    assert_eq!(progress.formed(&key()), Some(2));
    assert_eq!(progress.of(&key()), None);
    // That of its progress counts, too.
    let told = Told {
        generation: 3,
        ..step(1)
    };
    progress.hear(&key(), told, now);
    assert_eq!(progress.formed(&key()), Some(3));
}

#[test]
fn an_answer_and_another_address_are_asked_often_again() {
    let (progress, now) = followed("10.0.0.1");
    let (_, now) = asked(&progress, now, 300);
    progress.hear(&key(), step(1), now);
    let (often, now) = asked(&progress, now, 15);
    assert_eq!(often, 5, "each three seconds, and when its status is due");
    let (_, now) = asked(&progress, now, 300);
    follow(&progress, "10.0.0.2", now);
    assert_eq!(asked(&progress, now, 15).0, 5);
    assert!(progress.of(&key()).is_some(), "what was told is kept");
}

#[test]
fn a_job_that_is_gone_is_forgotten() {
    let (progress, now) = followed("10.0.0.1");
    assert!(progress.questions(|_, _| false, now).is_empty());
    assert!(progress.hear(&key(), step(1), now).is_none());
    assert!(progress.lock().is_empty());
}

#[test]
fn steps_wake_their_job_now_and_then_and_what_is_urgent_at_once() {
    let (progress, now) = followed("10.0.0.1");
    let wakes = |told: Told, second: u64| {
        let woken = progress.hear(&key(), told, now + seconds(second));
        woken.is_some()
    };
    assert!(wakes(step(1), 0));
    assert!(!wakes(step(1), 60), "the same again is no news");
    assert!(wakes(step(2), 60));
    assert!(!wakes(step(3), 69), "so soon");
    assert!(wakes(step(3), 71), "also if it has not come further since");
    let trouble = Told {
        checkpoint_error: Some("the volume is full".to_owned()),
        ..step(5)
    };
    assert!(wakes(trouble, 71));
    assert!(wakes(step(6), 72), "it is over");
    let next = Told {
        generation: 2,
        ..step(6)
    };
    assert!(wakes(next, 73));
    let last = Told {
        generation: 2,
        ..step(1_000)
    };
    assert!(wakes(last, 74));
}

#[test]
fn a_job_is_woken_by_the_age_of_what_its_status_shows() {
    let (progress, now) = followed("10.0.0.1");
    let wakes = |told: Told, second: u64| {
        let woken = progress.hear(&key(), told, now + seconds(second) + MARGIN);
        woken.is_some()
    };
    let shown = |second: u64| {
        let job = JobName::new("ml", "digits");
        let (first, at) = (("10.0.0.1".to_owned(), 1), now + seconds(second));
        progress.follow_at(&key(), job, first, Some(at), at);
    };
    assert!(wakes(step(1), 0));
    // Something else woke it, and the status was written with what was told then.
    shown(6);
    assert!(!wakes(step(2), 12));
    assert!(wakes(step(3), 16), "ten seconds after what is shown");
    // The write has failed.
    assert!(wakes(step(4), 19));
    shown(19);
    assert!(!wakes(step(5), 28));
    assert!(wakes(step(6), 29));
}

#[test]
fn a_job_is_asked_when_its_status_is_due() {
    let (progress, now) = followed("10.0.0.1");
    let exists = |_: &JobKey, _: &JobName| true;
    let asks = |millis: u64| {
        let asked = progress.questions(exists, now + Duration::from_millis(millis));
        !asked.is_empty()
    };
    progress.hear(&key(), step(1), now);
    let shown: Vec<u64> = (0..=11_000).step_by(10).filter(|at| asks(*at)).collect();
    assert_eq!(shown, [0, 3_000, 6_000, 9_000, 10_010]);
}

#[test]
fn whether_a_generation_has_formed_is_asked_soon_although_many_jobs_train() {
    let (progress, now) = followed("10.0.0.1");
    let job = JobName::new("ml", "digits");
    let follow = |uid: &str, generation, now| {
        let (key, first) = (JobKey::new("ml", uid), ("10.0.0.1".to_owned(), generation));
        progress.follow_at(&key, job.clone(), first, None, now);
    };
    for other in 0..5_000 {
        follow(&format!("other-{other}"), 1, now);
    }
    let exists = |_: &JobKey, _: &JobName| true;
    let times = |from: Instant| {
        let is_asked = |second: &u64| {
            let asked = progress.questions(exists, from + seconds(*second));
            asked.iter().any(|(job, _)| *job == key())
        };
        (0..60).filter(is_asked).collect::<Vec<u64>>()
    };
    assert_eq!(times(now), [0, 3, 6, 9, 12], "then in fifty seconds");
    let now = now + seconds(20);
    follow("uid", 2, now);
    assert_eq!(times(now)[..3], [3, 6, 9], "a newer generation");
}
