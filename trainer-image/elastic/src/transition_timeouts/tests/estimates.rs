use super::*;

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
