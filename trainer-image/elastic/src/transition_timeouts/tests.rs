use super::*;

mod estimates;
mod host_ahead;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns a process group that has done one step of `step` milliseconds since `start`
/// and then begins `activity`.
fn progress(start: Instant, step: u64, activity: Activity) -> (GroupProgress, Instant) {
    let mut progress = GroupProgress::begin(start, StepEstimate::default(), 2);
    progress.step_begins(start);
    let now = start + Duration::from_millis(step);
    progress.step_ends(now);
    match activity {
        Activity::Steps => progress.step_begins(now),
        Activity::Sharing | Activity::Evaluation | Activity::Saving => {
            progress.enter(activity, now)
        }
    }
    (progress, now)
}

#[test]
fn wait_ends_when_a_healthy_group_would_have_ended_a_step() {
    for (what, activity, step, waits, moves, expected) in [
        ("steps of 10 ms", Activity::Steps, 10, 1_999, None, None),
        (
            "steps of 10 ms",
            Activity::Steps,
            10,
            2_000,
            None,
            Some(Timeout::NoProgress(seconds(2))),
        ),
        ("steps of 4 s", Activity::Steps, 4_000, 11_999, None, None),
        (
            "steps of 4 s",
            Activity::Steps,
            4_000,
            12_000,
            None,
            Some(Timeout::NoProgress(seconds(12))),
        ),
        (
            "steps continue",
            Activity::Steps,
            10,
            14_999,
            Some(14_990),
            None,
        ),
        (
            "steps continue, and a rank does not see the generation",
            Activity::Steps,
            10,
            15_000,
            Some(14_990),
            Some(Timeout::GenerationUnseen(seconds(15))),
        ),
        (
            "an evaluation within its timeout",
            Activity::Evaluation,
            10,
            89_999,
            None,
            None,
        ),
        (
            "an evaluation beyond its timeout",
            Activity::Evaluation,
            10,
            90_000,
            None,
            Some(Timeout::NoProgress(seconds(90))),
        ),
        (
            "a save that makes progress",
            Activity::Saving,
            10,
            600_000,
            Some(599_000),
            None,
        ),
        (
            "a save whose peer is silent",
            Activity::Saving,
            10,
            600_000,
            Some(510_000),
            Some(Timeout::NoProgress(seconds(90))),
        ),
    ] {
        let (mut progress, begun) = progress(Instant::now(), step, activity);
        progress.know(begun);
        if let Some(moves) = moves {
            progress.moves(begun + Duration::from_millis(moves));
        }
        let now = begun + Duration::from_millis(waits);
        assert_eq!(progress.is_over(now), expected, "{what}: {waits} ms");
    }
}

#[test]
fn evaluation_does_not_shorten_the_wait_for_steps() {
    let (mut progress, begun) = progress(Instant::now(), 10, Activity::Evaluation);
    progress.know(begun);
    let ended = begun + seconds(80);
    progress.step_begins(ended);
    assert_eq!(progress.is_over(ended + seconds(1)), None);
    let stuck = progress.is_over(ended + seconds(2));
    assert_eq!(stuck, Some(Timeout::NoProgress(seconds(2))));
    assert_eq!(progress.longest_step(), Duration::from_millis(10));
}

#[test]
fn short_evaluations_do_not_delay_a_generation_indefinitely() {
    let (mut progress, begun) = progress(Instant::now(), 10, Activity::Steps);
    progress.know(begun);
    // Evaluations take half of the time.
    let mut now = begun;
    let cut = loop {
        progress.step_begins(now);
        now += Duration::from_millis(10);
        progress.step_ends(now);
        if let Some(cut) = progress.is_over(now) {
            break cut;
        }
        progress.enter(Activity::Evaluation, now);
        now += Duration::from_millis(10);
    };
    assert_eq!(cut, Timeout::GenerationUnseen(seconds(15)));
    assert_eq!(now - begun, Duration::from_millis(29_990));
}

#[test]
fn step_is_measured_from_start_to_start() {
    let start = Instant::now();
    let mut progress = GroupProgress::begin(start, StepEstimate::default(), 2);
    progress.step_begins(start);
    progress.step_ends(start + seconds(3));
    assert_eq!(progress.longest_step(), seconds(3));
    progress.step_begins(start + seconds(4));
    assert_eq!(progress.longest_step(), seconds(4));
}

#[test]
fn reading_a_checkpoint_keeps_the_first_chunk_timeout() {
    let start = Instant::now();
    let mut progress = GroupProgress::begin(start, StepEstimate::default(), 2);
    progress.know(start);
    progress.reads(start + seconds(20));
    assert_eq!(progress.is_over(start + seconds(49)), None);
    let stuck = progress.is_over(start + seconds(50));
    assert_eq!(stuck, Some(Timeout::NoProgress(seconds(30))));
}

#[test]
fn sending_a_state_continues_while_bytes_move() {
    let start = Instant::now();
    let mut progress = GroupProgress::begin(start, StepEstimate::default(), 3);
    progress.know(start);
    // 20 s in chunks of half a second, the first one after 10 s.
    let first = start + seconds(10);
    assert_eq!(progress.is_over(first), None);
    progress.moves(first);
    let mut now = first;
    while now < start + seconds(30) {
        now += Duration::from_millis(500);
        assert_eq!(progress.is_over(now), None, "{:?}", now - start);
        progress.moves(now);
    }
    // The longest chunk was the first.
    assert_eq!(progress.is_over(now + seconds(29)), None);
    let stuck = progress.is_over(now + seconds(30));
    assert_eq!(stuck, Some(Timeout::NoProgress(seconds(30))));
    // Time that was not spent on steps does not count against ranks that have not seen the
    // generation.
    progress.step_begins(now);
    progress.step_ends(now + seconds(1));
    assert_eq!(progress.is_over(now + seconds(2)), None);
}

#[test]
fn store_timeout_covers_the_steps_until_others_leave() {
    assert_eq!(StepEstimate::store_timeout(Duration::ZERO), seconds(120));
    assert_eq!(StepEstimate::store_timeout(seconds(60)), seconds(480));
}

#[test]
fn each_generation_has_its_own_join_wait() {
    let (mut join_wait, start) = (JoinWait::default(), Instant::now());
    let mut is_over = |generation, after| {
        join_wait.is_patience_over(generation, seconds(1), start + seconds(after))
    };
    assert!(!is_over(3, 0) && !is_over(3, 3) && is_over(3, 4));
    assert!(!is_over(4, 4) && !is_over(4, 7) && is_over(4, 8));
    assert!(JoinWait::default().is_patience_over(3, seconds(5), start));
}

/// The new ranks never arrive here: the join wait takes its full time, in steps of any length, and
/// the newer generation becomes known at any point of a step.
#[test]
fn join_wait_ends_before_the_notification_timeout() {
    const PARTS: u32 = 20;
    for milliseconds in (10..=1_000)
        .step_by(90)
        .chain((1_250..=30_000).step_by(250))
    {
        let step = Duration::from_millis(milliseconds);
        for part in 0..PARTS {
            let start = Instant::now();
            let (mut progress, mut now) = progress(start, milliseconds, Activity::Steps);
            let known_since = now + step * part / PARTS;
            progress.know(known_since);
            let mut join_wait = JoinWait::default();
            let mut agreed = false;
            while !agreed {
                agreed = now >= known_since
                    && join_wait.is_patience_over(2, progress.longest_step(), now);
                let end = now + step;
                // Just before the end of the step, which is progress.
                let cut = progress.is_over(now + step.saturating_sub(Duration::from_nanos(1)));
                assert_eq!(cut, None, "{step:?}, part {part}");
                progress.step_ends(end);
                progress.step_begins(end);
                now = end;
            }
            let after = now - known_since;
            let most = (2 * step).max(join_wait::MIN_WAIT + 2 * step);
            assert!(after <= most, "{step:?}, part {part}: {after:?}");
        }
    }
}
