use super::*;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A world that has done one step of so many milliseconds since `start`, and what it does then.
fn motion(start: Instant, step: u64, activity: Activity) -> (Motion, Instant) {
    let mut motion = Motion::begin(start);
    motion.step_begins(start);
    let now = start + Duration::from_millis(step);
    motion.step_ends(now);
    match activity {
        Activity::Steps => motion.step_begins(now),
        Activity::Evaluation | Activity::Saving => motion.enter(activity, now),
    }
    (motion, now)
}

#[test]
fn a_wait_is_over_when_a_healthy_world_would_have_come_to_a_boundary() {
    for (what, activity, step, waits, moves, expected) in [
        ("steps of 10 ms", Activity::Steps, 10, 1_999, None, None),
        (
            "steps of 10 ms",
            Activity::Steps,
            10,
            2_000,
            None,
            Some(Cut::Stuck(seconds(2))),
        ),
        ("steps of 4 s", Activity::Steps, 4_000, 11_999, None, None),
        (
            "steps of 4 s",
            Activity::Steps,
            4_000,
            12_000,
            None,
            Some(Cut::Stuck(seconds(12))),
        ),
        (
            "steps go on",
            Activity::Steps,
            10,
            14_999,
            Some(14_990),
            None,
        ),
        (
            "steps go on, and somebody is deaf",
            Activity::Steps,
            10,
            15_000,
            Some(14_990),
            Some(Cut::Unheard(seconds(15))),
        ),
        (
            "an evaluation has its time",
            Activity::Evaluation,
            10,
            89_999,
            None,
            None,
        ),
        (
            "and not for ever",
            Activity::Evaluation,
            10,
            90_000,
            None,
            Some(Cut::Stuck(seconds(90))),
        ),
        (
            "a save that moves is not deaf",
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
            Some(Cut::Stuck(seconds(90))),
        ),
    ] {
        let (mut motion, begun) = motion(Instant::now(), step, activity);
        motion.know(begun);
        if let Some(moves) = moves {
            motion.moves(begun + Duration::from_millis(moves));
        }
        let now = begun + Duration::from_millis(waits);
        assert_eq!(motion.is_over(now), expected, "{what}: {waits} ms");
    }
}

#[test]
fn what_was_known_long_before_an_evaluation_ends_gives_the_next_steps_their_time() {
    let (mut motion, begun) = motion(Instant::now(), 10, Activity::Evaluation);
    motion.know(begun);
    let ended = begun + seconds(80);
    motion.step_begins(ended);
    assert_eq!(motion.is_over(ended + seconds(1)), None);
    let stuck = motion.is_over(ended + seconds(2));
    assert_eq!(stuck, Some(Cut::Stuck(seconds(2))));
    assert_eq!(motion.longest_step(), Duration::from_millis(10));
}

#[test]
fn short_evaluations_between_steps_keep_nobody_deaf_for_ever() {
    let (mut motion, begun) = motion(Instant::now(), 10, Activity::Steps);
    motion.know(begun);
    // Half of the time each.
    let mut now = begun;
    let cut = loop {
        motion.step_begins(now);
        now += Duration::from_millis(10);
        motion.step_ends(now);
        if let Some(cut) = motion.is_over(now) {
            break cut;
        }
        motion.enter(Activity::Evaluation, now);
        now += Duration::from_millis(10);
    };
    assert_eq!(cut, Cut::Unheard(seconds(15)));
    assert_eq!(now - begun, Duration::from_millis(29_990));
}

#[test]
fn a_step_is_measured_from_start_to_start() {
    let start = Instant::now();
    let mut motion = Motion::begin(start);
    motion.step_begins(start);
    motion.step_ends(start + seconds(3));
    assert_eq!(motion.longest_step(), seconds(3));
    motion.step_begins(start + seconds(4));
    assert_eq!(motion.longest_step(), seconds(4));
}

#[test]
fn each_generation_has_a_patience_of_its_own_at_the_door() {
    let (mut door, start) = (Door::default(), Instant::now());
    let mut is_over =
        |generation, after| door.is_patience_over(generation, seconds(1), start + seconds(after));
    assert!(!is_over(3, 0) && !is_over(3, 3) && is_over(3, 4));
    assert!(!is_over(4, 4) && !is_over(4, 7) && is_over(4, 8));
    assert!(Door::default().is_patience_over(3, seconds(5), start));
}

/// Whoever it is for waits in vain here: the door is open as long as ever, in a step of any length, and the
/// newer generation is heard of at any place in one.
#[test]
fn the_door_closes_before_the_others_take_its_rank_for_deaf() {
    const PARTS: u32 = 20;
    for milliseconds in (10..=1_000)
        .step_by(90)
        .chain((1_250..=30_000).step_by(250))
    {
        let step = Duration::from_millis(milliseconds);
        for part in 0..PARTS {
            let start = Instant::now();
            let (mut motion, mut now) = motion(start, milliseconds, Activity::Steps);
            let known_since = now + step * part / PARTS;
            motion.know(known_since);
            let mut door = Door::default();
            let mut agreed = false;
            while !agreed {
                agreed = now >= known_since && door.is_patience_over(2, motion.longest_step(), now);
                let end = now + step;
                // Before it, for it moves there.
                let cut = motion.is_over(now + step.saturating_sub(Duration::from_nanos(1)));
                assert_eq!(cut, None, "{step:?}, part {part}");
                motion.step_ends(end);
                motion.step_begins(end);
                now = end;
            }
            let after = now - known_since;
            let most = (2 * step).max(PATIENCE_AT_THE_DOOR + 2 * step);
            assert!(after <= most, "{step:?}, part {part}: {after:?}");
        }
    }
}
