use std::time::Duration;

use roundhouse_elastic::saving::Stage;
use roundhouse_elastic::state::{Names, Volume};
use roundhouse_elastic::{CheckpointId, Claim, Origin, StepEstimate};

use super::*;
use crate::group::threads::Threads;

#[test]
fn single_rank_agrees_with_itself() {
    let world = World::<Threads>::alone();
    let fine = RankVote {
        finite: true,
        leaving: false,
        newest_seen: 7,
        saving: Saving {
            stage: Stage::Durable,
            is_time: true,
            is_stuck: true,
            gives_up: false,
            durable_line: 4,
            is_copying: false,
            copy_failed: false,
        },
        own_time: Duration::from_millis(250),
    };
    let end = world.end_step(2.5, &fine).unwrap();
    assert!((end.loss_sum - 2.5).abs() < f64::EPSILON);
    assert_eq!(end.agreement.newest_generation, 7);
    assert!(end.agreement.all_finite);
    assert!(!end.agreement.all_leave);
    assert_eq!(end.compute_seconds, [0.25]);
    assert_eq!(end.saving.stages.num_durable, 1);
    assert!(end.saving.is_time && end.saving.durable_line == 4);
    assert!(end.saving.num_stuck == 1 && !end.saving.gives_up);
    assert_eq!(world.sum_saving(&fine.saving).unwrap(), end.saving);
    let diverged = RankVote {
        finite: false,
        leaving: true,
        ..fine
    };
    let end = world.end_step(f64::NAN, &diverged).unwrap();
    assert!(!end.agreement.all_finite && end.agreement.all_leave);
    let claim = Claim {
        origin: Origin::Live,
        generation: 2,
        step: 3,
        hash: (1 << 52) - 1,
    };
    let own = RankReport {
        claim,
        chain_bytes: 48,
        first_generation: 9,
        since_commit: SinceCommit {
            evaluated: 64,
            evaluation_counts: false,
            is_cut_short: false,
        },
        estimate: StepEstimate::of_millis([5_000, 0], 1),
        is_live: true,
        debt: (Duration::from_secs(9), true),
        carried: None,
        volume: Volume::Silent,
        is_superseded: false,
        state_bytes: 40,
    };
    let agreed = |own: &RankReport| world.agree_on_state(own, 4, 1).unwrap();
    let superseded = RankReport {
        is_superseded: true,
        ..own
    };
    assert_eq!(agreed(&superseded), Concluded::Superseded);
    let checkpoint = CheckpointId {
        generation: 3,
        step: 1,
    };
    for (checkpoint, generation) in [(Some(checkpoint), 12), (None, 13)] {
        let found = agreed(&RankReport {
            volume: Volume::Names(Names {
                checkpoint,
                generation,
            }),
            ..own
        });
        let expected = match checkpoint {
            Some(_) => Concluded::Search(Search {
                finder: 0,
                must_find: false,
            }),
            // Offset 9 plus generation 4.
            None => Concluded::Fenced {
                newer: 13,
                first_generation: 9,
            },
        };
        assert_eq!(found, expected);
    }
    let Concluded::Continue(agreed) = agreed(&own) else {
        panic!("there is a state")
    };
    let numbers = (
        agreed.chain_bytes,
        agreed.first_generation,
        agreed.evaluated,
    );
    assert_eq!((agreed.source.claim, numbers), (claim, (48, 9, 64)));
    assert_eq!((agreed.estimate, agreed.debt), (own.estimate, own.debt));
    let agreement = world.agree(5, true).unwrap();
    assert!(agreement.newest_generation == 5 && agreement.all_leave);
}

#[test]
fn leaving_process_does_not_abort_group() {
    let mut group = Threads::group(2, &[]);
    let other = group.pop().unwrap();
    let world = World::of(group.pop().unwrap());
    world.leave_at_the_end();
    assert!(!other.is_broken());
    let mut group = Threads::group(2, &[]);
    let other = group.pop().unwrap();
    World::of(group.pop().unwrap()).abandon();
    assert!(other.is_broken());
}

/// Runs `work` on each rank, each in its own thread.
fn each<T: Send>(size: u32, work: impl Fn(&World<Threads>) -> T + Sync) -> Vec<T> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = Threads::group(size, &[])
            .into_iter()
            .map(|group| {
                scope.spawn(move || {
                    let world = World::of(group);
                    let found = work(&world);
                    // No rank ends before the others have received its values.
                    world.barrier().unwrap();
                    found
                })
            })
            .collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

const FINE: RankVote = RankVote {
    finite: true,
    leaving: false,
    newest_seen: 1,
    saving: Saving {
        stage: Stage::Idle,
        is_time: false,
        is_stuck: false,
        gives_up: false,
        durable_line: 0,
        is_copying: false,
        copy_failed: false,
    },
    own_time: Duration::ZERO,
};

#[test]
fn large_losses_that_cancel_pass_the_checksum() {
    for sums in each(3, |world| {
        let own = [1e15 + 0.5, -1e15, 0.25][world.rank() as usize];
        let sums = world.sum_signed(&[own, -own]).unwrap();
        let end = world.end_step(own, &FINE).unwrap();
        (sums[0], sums[1], end.loss_sum)
    }) {
        assert_eq!(sums, (0.75, -0.75, 0.75));
    }
}

#[test]
fn sums_of_the_largest_numbers_pass_the_checksum() {
    for (sums, loss) in each(2, |world| {
        let is_first = world.rank() == 0;
        let values = [if is_first { -f64::MAX } else { 0.0 }, f64::MAX, 1.0];
        let end = world.end_step(f64::MAX, &FINE).unwrap();
        (world.sum_signed(&values).unwrap(), end.loss_sum)
    }) {
        assert_eq!(sums, [-f64::MAX, f64::INFINITY, 2.0]);
        assert!(loss.is_infinite());
    }
}

#[test]
fn nan_loss_of_one_rank_makes_loss_nan() {
    for (loss, all_finite, ranks) in each(3, |world| {
        let own = if world.rank() == 2 { f64::NAN } else { 1.0 };
        let end = world.end_step(own, &FINE).unwrap();
        let ranks = world.ranks_that(!own.is_finite()).unwrap();
        (end.loss_sum, end.agreement.all_finite, ranks)
    }) {
        assert!(loss.is_nan() && !all_finite);
        assert_eq!(ranks, [2]);
    }
}

#[test]
fn loss_sums_all_ranks_despite_bad_gradient() {
    for (loss, all_finite) in each(2, |world| {
        let own = RankVote {
            finite: world.rank() == 0,
            ..FINE
        };
        let end = world.end_step(2.0, &own).unwrap();
        (end.loss_sum, end.agreement.all_finite)
    }) {
        assert_eq!((loss, all_finite), (4.0, false));
    }
}
