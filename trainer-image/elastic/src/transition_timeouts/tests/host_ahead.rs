use super::*;

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
