use super::*;

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

/// Returns the estimate of a generation of `world_size` ranks whose first step takes `first`
/// seconds and whose other steps take `later` seconds.
fn taught(
    before: StepEstimate,
    world_size: u32,
    first: u64,
    later: u64,
    num_later: u32,
) -> StepEstimate {
    let mut now = Instant::now();
    let mut progress = GroupProgress::begin(now, before, world_size);
    for took in std::iter::once(first).chain((0..num_later).map(|_| later)) {
        progress.step_begins(now);
        now += seconds(took);
        progress.step_ends(now);
    }
    progress.estimate()
}

/// Returns when a generation is interrupted that makes no progress in its first step while a
/// newer one is known.
fn cut_of_a_first_step(estimate: StepEstimate, world_size: u32) -> Duration {
    let start = Instant::now();
    let mut progress = GroupProgress::begin(start, estimate, world_size);
    progress.know(start);
    progress.step_begins(start);
    (0..1_000)
        .map(seconds)
        .find(|after| progress.is_over(start + *after).is_some())
        .unwrap()
}

#[test]
fn first_step_timeout_comes_from_earlier_generations() {
    let nothing = StepEstimate::default();
    assert_eq!(cut_of_a_first_step(nothing, 4), seconds(300));
    let steps_of_8_s = taught(nothing, 4, 10, 8, 5);
    assert_eq!(cut_of_a_first_step(steps_of_8_s, 4), seconds(30));
    // With half of the ranks, each computes twice as much. With more ranks, communication may grow.
    assert_eq!(cut_of_a_first_step(steps_of_8_s, 2), seconds(60));
    assert_eq!(cut_of_a_first_step(steps_of_8_s, 8), seconds(30));
    // A generation that was interrupted before its first step keeps the estimate.
    let cut = GroupProgress::begin(Instant::now(), steps_of_8_s, 4).estimate();
    assert_eq!(cut, steps_of_8_s);
}

#[test]
fn long_first_step_does_not_lengthen_later_timeouts() {
    let estimate = taught(StepEstimate::default(), 2, 60, 1, 3);
    assert_eq!(estimate.longest_step, Some(seconds(1)));
    assert_eq!(estimate.first_step, Some(seconds(60)));
}

#[test]
fn shorter_steps_replace_the_estimate_after_a_while() {
    let long = taught(StepEstimate::default(), 1, 9, 9, 3);
    let early = taught(long, 4, 1, 1, STEPS_UNTIL_KNOWN - 2);
    assert_eq!(early.longest_step, Some(seconds(9)));
    let late = taught(long, 4, 1, 1, STEPS_UNTIL_KNOWN);
    assert_eq!(late.longest_step, Some(seconds(1)));
}

/// Workers arrive one after the other, faster than a first step ends. Each generation must still
/// commit a step, or no step is measured while they arrive.
#[test]
fn frequent_joins_do_not_interrupt_a_first_step() {
    for step in [seconds(8), seconds(90)] {
        let mut estimate = StepEstimate::default();
        for world_size in 2..10 {
            let start = Instant::now();
            let mut progress = GroupProgress::begin(start, estimate, world_size);
            progress.know(start + seconds(1));
            progress.step_begins(start);
            let before_the_end = start + step.saturating_sub(Duration::from_millis(1));
            assert_eq!(progress.is_over(before_the_end), None, "{world_size} ranks");
            progress.step_ends(start + step);
            estimate = progress.estimate();
        }
    }
}

#[test]
fn preparation_counts_as_part_of_the_first_step() {
    let start = Instant::now();
    let mut progress = GroupProgress::begin(start, StepEstimate::default(), 2);
    progress.prepare_steps(start);
    progress.step_begins(start + seconds(10));
    progress.step_ends(start + seconds(11));
    assert_eq!(progress.estimate().first_step, Some(seconds(11)));
    progress.step_begins(start + seconds(11));
    progress.step_ends(start + seconds(12));
    assert_eq!(progress.estimate().longest_step, Some(seconds(1)));
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

/// A host that runs one step ahead of its device: it learns the end of step k when step k + 1 has
/// begun, and then begins step k + 2 while the device runs step k + 1.
struct Ahead {
    progress: GroupProgress,
    step: Duration,
    now: Instant,
}

impl Ahead {
    /// Starts after a first step that took `first`; later steps take `step`.
    fn begin(first: Duration, step: Duration) -> Self {
        let now = Instant::now();
        let mut progress = GroupProgress::begin(now, StepEstimate::default(), 2);
        // The host waits for the first step of a generation.
        progress.step_begins(now);
        progress.step_ends(now + first);
        progress.step_begins(now + first);
        Self {
            progress,
            step,
            now: now + first,
        }
    }

    /// Begins the next step and learns the end of the one before. There is no timeout in between.
    fn next_step(&mut self) {
        self.progress.step_begins(self.now);
        self.now += self.step;
        let before = self.now.checked_sub(Duration::from_nanos(1)).unwrap();
        assert_eq!(self.progress.is_over(before), None, "{:?}", self.step);
        self.progress.step_ends(self.now);
    }
}

#[test]
fn overlapping_steps_are_measured_by_device_time() {
    let mut world = Ahead::begin(seconds(30), seconds(4));
    for _ in 0..5 {
        world.next_step();
    }
    assert_eq!(world.progress.longest_step(), seconds(4));
    assert_eq!(world.progress.estimate().first_step, Some(seconds(30)));
    // Ends that are learned late count once.
    assert_eq!(world.progress.num_ended, 6);
    assert_eq!(world.progress.num_begun, 7);
}

#[test]
fn launch_time_is_not_taken_for_a_step() {
    let mut world = Ahead::begin(seconds(40), seconds(8));
    world.progress.know(world.now);
    world.next_step();
    assert_eq!(world.progress.longest_step(), seconds(8));
}

#[test]
fn hosts_running_ahead_see_a_generation_in_time() {
    for milliseconds in (10..=1_000)
        .step_by(90)
        .chain((1_250..=30_000).step_by(250))
    {
        let step = Duration::from_millis(milliseconds);
        let mut world = Ahead::begin(step, step);
        world.next_step();
        world.next_step();
        // Right after a step has begun.
        world.progress.know(world.now);
        world.progress.step_begins(world.now);
        world.now += step;
        world.progress.step_ends(world.now);
        let mut join_wait = JoinWait::default();
        loop {
            let longest = world.progress.longest_step();
            let agrees = join_wait.is_patience_over(2, longest, world.now);
            world.next_step();
            if agrees {
                break;
            }
        }
        // First the step that reports the generation ends, then the step that has begun by then.
        world.next_step();
        world.next_step();
    }
}

#[test]
fn new_rank_uses_the_estimate_of_its_peers() {
    let now = Instant::now();
    let knows = taught(StepEstimate::default(), 2, 5, 1, 3).scaled_to(3);
    let received = StepEstimate::of_millis(knows.to_millis(), 3);
    assert_eq!(received, knows);
    let nothing = StepEstimate::default().to_millis();
    assert_eq!(
        StepEstimate::of_millis(nothing, 3),
        StepEstimate::default().scaled_to(3)
    );
    let mut newcomer = GroupProgress::begin(now, StepEstimate::default(), 3);
    newcomer.expect(received);
    newcomer.prepare_steps(now);
    newcomer.know(now);
    // Three times the first step that the others have measured.
    assert_eq!(newcomer.is_over(now + seconds(14)), None);
    assert!(newcomer.is_over(now + seconds(15)).is_some());
}
