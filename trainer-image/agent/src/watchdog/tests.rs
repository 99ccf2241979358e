use roundhouse_contract::environment::CollectiveTimeouts;

use super::*;

mod policies;
mod stopped;

const SECOND: Duration = Duration::from_secs(1);

fn status(phase: Phase, generation: u64, step: u64) -> RankStatus {
    RankStatus {
        phase,
        rank: Some(3),
        generation,
        step,
        forming: 0,
        volume_moves: 0,
        patience_seconds: 0,
        progress: None,
    }
}

fn training(step: u64) -> RankStatus {
    status(Phase::Training, 1, step)
}

const fn seen(local_rank: u32, status: Option<RankStatus>) -> Seen {
    Seen {
        local_rank,
        status,
        is_stopped: false,
    }
}

/// One process that is checked once per second.
struct Watch {
    dog: Watchdog,
    now: Instant,
}

impl Watch {
    fn new(policy: Policy) -> Self {
        let default = CollectiveTimeouts::default();
        let half = policy.collective_timeout();
        let timeouts = CollectiveTimeouts {
            first_step: half,
            later: half,
            ..default
        };
        let dog = Watchdog::new(Limits {
            policy,
            timeouts,
            runs_script: false,
        });
        Self {
            dog,
            now: Instant::now(),
        }
    }

    /// Keeps a status for some seconds. Returns the seconds after which the process counts as hung.
    fn hold(&mut self, status: &RankStatus, seconds: u32) -> Option<(u32, Stall)> {
        (1..=seconds).find_map(|second| {
            self.now += SECOND;
            let stall = self.dog.look(self.now, [seen(0, Some(status.clone()))]);
            stall.map(|stall| (second, stall))
        })
    }

    /// Runs steps of equal duration.
    fn steps(&mut self, steps: u64, seconds: u32) -> &mut Self {
        for step in 0..steps {
            assert_eq!(self.hold(&training(step), seconds), None, "step {step}");
        }
        self
    }

    /// Returns the seconds without progress after which the process counts as hung.
    fn limit(&mut self, status: &RankStatus) -> Option<u32> {
        self.hold(status, 10_000).map(|(second, _)| second)
    }
}

#[test]
fn quick_steps_are_judged_after_their_peers_give_up() {
    // 30 s of the collective, 10 s of margin, the step itself, and one more check.
    assert_eq!(
        Watch::new(Policy::Auto).steps(5, 1).limit(&training(5)),
        Some(43)
    );
}

#[test]
fn slow_steps_are_judged_by_the_longest() {
    let mut watch = Watch::new(Policy::Auto);
    watch.steps(3, 20);
    assert_eq!(watch.limit(&training(3)), Some(102));
}

#[test]
fn stall_message_has_time_and_position() {
    let mut watch = Watch::new(Policy::Auto);
    let (_, stall) = watch.steps(3, 20).hold(&training(3), 200).unwrap();
    let words = stall.message();
    assert_eq!(
        (words.reason, words.rank, words.generation, words.step),
        (Reason::Stalled, Some(3), 1, 3)
    );
    assert_eq!(
        words.message,
        "no step for 101 s (longest step so far 20 s); last: step 3 of generation 1, phase Training"
    );
}

#[test]
fn first_step_has_a_longer_limit() {
    let mut watch = Watch::new(Policy::Auto);
    let (second, stall) = watch.hold(&training(0), 1_000).unwrap();
    assert_eq!(second, 302);
    assert!(
        stall.message().message.starts_with("no first step"),
        "{stall:?}"
    );
}

#[test]
fn new_generation_is_measured_with_the_old_one_as_floor() {
    let mut watch = Watch::new(Policy::Auto);
    watch.steps(3, 80);
    assert_eq!(watch.limit(&status(Phase::Training, 2, 3)), Some(402));
}

#[test]
fn longest_step_of_all_generations_is_known() {
    let mut watch = Watch::new(Policy::Auto);
    assert_eq!(watch.dog.longest_step(), Duration::ZERO);
    watch.steps(3, 80);
    watch.limit(&status(Phase::Training, 2, 3));
    let longest = watch.dog.longest_step().as_secs();
    assert!((80..90).contains(&longest), "{longest}");
}

#[test]
fn each_phase_has_its_own_limit() {
    for (phase, limit) in [
        (Phase::Preparing, Some(1_802)),
        (Phase::Lobby, None),
        (Phase::Stranded, None),
        (Phase::Forming, Some(392)),
        (Phase::Evaluating, Some(1_802)),
        (Phase::Saving, Some(1_802)),
        (Phase::SavingPart, Some(1_802)),
        (Phase::Done, Some(302)),
    ] {
        let mut watch = Watch::new(Policy::Auto);
        assert_eq!(watch.limit(&status(phase, 1, 0)), limit, "{phase:?}");
    }
}

#[test]
fn moving_bytes_extend_saves_but_not_training() {
    let moved = |phase, volume_moves| RankStatus {
        volume_moves,
        ..status(phase, 1, 7)
    };
    for phase in [Phase::Saving, Phase::Preparing] {
        let mut watch = Watch::new(Policy::Auto);
        for bytes in 0..20 {
            assert_eq!(watch.hold(&moved(phase, bytes), 300), None, "{phase:?}");
        }
        assert_eq!(watch.limit(&moved(phase, 19)), Some(1_502), "{phase:?}");
    }
    let mut watch = Watch::new(Policy::Auto);
    watch.steps(7, 1);
    let stall = (0..100).find_map(|bytes| watch.hold(&moved(Phase::Training, bytes), 1));
    assert!(stall.is_some(), "a hang during a save");
}

#[test]
fn process_without_a_status_is_preparing() {
    let mut watch = Watch::new(Policy::Auto);
    let mut stall = None;
    for _ in 0..1_900 {
        watch.now += SECOND;
        stall = stall.or(watch.dog.look(watch.now, [seen(1, None)]));
    }
    assert_eq!(
        stall.unwrap().message().message,
        "no progress for 1801 s; no status so far"
    );
}

#[test]
fn peers_time_out_before_the_watchdog_judges() {
    for (seconds, timeout) in [
        (None, None),
        (Some(0), None),
        (Some(1), Some(1)),
        (Some(10), Some(5)),
        (Some(600), Some(300)),
    ] {
        let policy = Policy::from_seconds(seconds);
        let timeout = timeout.map(Duration::from_secs);
        assert_eq!(policy.collective_timeout(), timeout);
    }
    // Whatever limit was learned, peers in a collective of a hung process give up first.
    let timeouts = CollectiveTimeouts::default();
    let limits = Limits {
        policy: Policy::Auto,
        timeouts,
        runs_script: false,
    };
    for longest in std::iter::once(None).chain((0..2_000).map(|n| Some(SECOND * n))) {
        let judged = limits.of(Phase::Training, longest, None).unwrap();
        let step = longest.map_or_else(
            || timeouts.of_first_step(Duration::ZERO),
            |longest| timeouts.of_step(longest),
        );
        assert!(judged > step + longest.unwrap_or_default());
        let first = limits.of(Phase::Training, None, longest).unwrap();
        assert!(first > timeouts.of_first_step(longest.unwrap_or_default()));
        // The step was launched at the end of the last reported step.
        let ahead = longest.map(|longest| timeouts.of_step_launched_ahead(longest));
        assert!(judged > ahead.unwrap_or_default());
        let judged = limits.of(Phase::Evaluating, longest, None).unwrap();
        assert!(judged > timeouts.beside_steps(longest) + longest.unwrap_or_default());
    }
    let judged = limits.of(Phase::Saving, None, None).unwrap();
    assert!(judged > timeouts.beside_steps(None));
}

#[test]
fn time_between_distant_checks_does_not_count() {
    let mut watch = Watch::new(Policy::Auto);
    watch.steps(3, 1);
    assert_eq!(watch.hold(&training(3), 5), None);
    watch.now += Duration::from_hours(8);
    assert_eq!(watch.hold(&training(3), 20), None);
    assert_eq!(watch.hold(&training(4), 5), None);
}

#[test]
fn process_idle_for_the_longest_time_is_named() {
    let mut watch = Watch::new(Policy::from_seconds(Some(10)));
    let mut stall = None;
    for second in 0..20 {
        watch.now += SECOND;
        let late = training(u64::from(second >= 3));
        stall = stall.or(watch
            .dog
            .look(watch.now, [seen(0, Some(late)), seen(1, Some(training(0)))]));
    }
    assert_eq!(stall.unwrap().local_rank, 1);
}
