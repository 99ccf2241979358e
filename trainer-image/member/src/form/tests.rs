use std::collections::BTreeMap;

use roundhouse_contract::Master;
use roundhouse_contract::environment::CheckpointEnvironment;
use roundhouse_elastic::ledger::{Head, RunIdentity};
use roundhouse_elastic::{
    Chain, CheckpointId, Claim, DataSchedule, Digest, LossScale, Machine, Scaling, Skips,
    TrainingPosition,
};

use super::*;
use crate::checkpoint::{Identity, Manifest};
use crate::group::threads::{Made, Threads};
use crate::member::Control;
use crate::membership::MembershipWatch;
use crate::signals::LeaveRequest;
use crate::state::tests::{Bytes, NUM_BYTES, table};
use crate::{Held, Keeping, Launch};

mod resume;

const HEAD: u8 = 7;

fn identity() -> Identity {
    Identity {
        model: "mlp".to_owned(),
        optimizer: "sgd".to_owned(),
        run: RunIdentity::of(&data_schedule(), 7),
        settings: BTreeMap::new(),
    }
}

fn data_schedule() -> DataSchedule {
    DataSchedule::of_steps(100, 10, 50)
}

/// What is held besides steps and samples has to come along, too.
const SKIPS: Skips = Skips {
    total: 3,
    in_a_row: 2,
};
const LOSS_SCALE: LossScale = LossScale {
    scale: 512.0,
    clean_steps: 7,
};

fn position(step: u64) -> TrainingPosition {
    TrainingPosition {
        step,
        samples: 10 * step,
        skips: SKIPS,
        loss_scale: Some(LOSS_SCALE),
        ..Scaling::new(None, &data_schedule()).start()
    }
}

/// A ledger's end.
fn head(generation: u64, step: u64) -> Head {
    Head {
        generation,
        step,
        hash: Digest::of(&[&generation.to_le_bytes(), &step.to_le_bytes()]),
    }
}

fn fresh() -> Held {
    let start = Head::start(&identity().run);
    Held::fresh(position(0), Chain::from(start))
}

fn live(generation: u64, step: u64) -> Held {
    let mut held = fresh();
    held.position = position(step);
    held.chain = Chain::from(head(generation, step));
    held.go_live(generation);
    held
}

/// A process before a generation: what it holds, and its bytes.
struct Process {
    held: Held,
    bytes: Bytes,
    /// Its volume, if it has one.
    volume: Option<std::path::PathBuf>,
    /// Whether it started before there was a checkpoint.
    forgets: bool,
}

fn process(held: Held, bytes: u8) -> Process {
    Process {
        held,
        bytes: Bytes::filled(bytes),
        volume: None,
        forgets: false,
    }
}

/// What became of it.
struct Formed {
    result: Result<Option<Origin>, Failure>,
    held: Held,
    bytes: Bytes,
    num_read: u64,
    /// Bytes that it has sent to other ranks and received from them.
    num_moved: usize,
}

impl Formed {
    fn claim(&self) -> Claim {
        self.held.claim()
    }

    fn origin(&self) -> Origin {
        *self.result.as_ref().unwrap().as_ref().unwrap()
    }
}

fn launch(process: &Process) -> Launch {
    let mut launch = Launch::alone("config".into(), "data".into(), None);
    launch.checkpoint = process.volume.clone().map(|dir| CheckpointEnvironment {
        dir,
        every_steps: None,
        every_seconds: None,
        keep: 2,
        best: None,
        job_uid: None,
    });
    launch
}

/// One rank forms generation 9.
fn form_one(process: Process, group: Threads) -> Formed {
    let launch = launch(&process);
    let Process {
        mut held,
        mut bytes,
        volume: _,
        forgets,
    } = process;
    let mut reporter = crate::report::Reporter::new(&launch).unwrap();
    let keeping = Keeping::prepare(&launch, identity(), table(), &mut reporter).unwrap();
    if let (Some(found), Origin::Fresh) = (
        keeping
            .as_ref()
            .and_then(Keeping::found)
            .filter(|_| !forgets),
        held.claim().origin,
    ) {
        held.stand_for(found);
    }
    let place = Place {
        generation: 9,
        rank: group.rank(),
        world_size: group.size(),
        procs_per_worker: 1,
        master: Master {
            address: String::new(),
            port: 0,
        },
        nonce: String::new(),
    };
    let file = std::path::Path::new("/nonexistent/membership");
    let (watch, _) = MembershipWatch::start(file);
    let made = Made::default();
    made.give(group);
    let control = Control {
        machine: Machine::new(0, 0),
        peers: Some(Peers::meet(file, watch, made, &LeaveRequest::default()).unwrap()),
        leave: LeaveRequest::default(),
    };
    let mut member = Member::prepared(control, held, keeping, &mut reporter);
    let result = member.form(&place, &mut bytes);
    let keeping = member.keeping.as_ref();
    let num_read = keeping.map_or(0, |keeping| keeping.directory.pulse().num_read());
    Formed {
        result,
        held: member.held.clone(),
        bytes,
        num_read,
        num_moved: 0,
    }
}

/// All ranks form a generation, each in a thread of its own. Some are lost in a call of their group: rank and its number,
/// where 1 is the agreement. Those of a rank that sends are then the chunk, the words and the barrier; those of one that
/// receives are the same. One that passes the chunk on first receives it.
fn form(processes: Vec<Process>, lost: &[(u32, u64)]) -> Vec<Formed> {
    let size = u32::try_from(processes.len()).unwrap();
    let group = Threads::group(size, lost);
    let counts = group[0].counts();
    let mut formed: Vec<Formed> = std::thread::scope(|scope| {
        let ranks: Vec<_> = processes
            .into_iter()
            .zip(group)
            .map(|(process, group)| scope.spawn(|| form_one(process, group)))
            .collect();
        ranks.into_iter().map(|it| it.join().unwrap()).collect()
    });
    for (rank, one) in (0..).zip(&mut formed) {
        one.num_moved = counts.num_moved(rank);
    }
    formed
}

#[test]
fn a_rank_without_the_state_gets_it_and_those_that_have_it_keep_their_own() {
    let formed = form(
        vec![
            process(live(8, 20), 1),
            process(live(8, 20), 1),
            process(fresh(), 9),
            process(live(8, 19), 5),
        ],
        &[],
    );
    for rank in &formed {
        assert_eq!(rank.origin(), Origin::Live);
        assert_eq!(rank.bytes, Bytes::filled(1));
        assert_eq!(rank.held.position, position(20));
        assert_eq!(rank.claim(), live(8, 20).claim());
        assert_eq!(rank.held.generation(), 9);
    }
}

#[test]
fn of_equal_states_that_which_was_evaluated_is_sent_if_evaluations_change_the_state() {
    for (counts, expected) in [(true, [2, 2, 2]), (false, [1, 2, 1])] {
        let ranks = [(1, 0), (2, 30), (1, 0)].map(|(bytes, evaluated)| {
            let mut held = live(4, 3);
            // One rank alone may know that it does.
            (held.evaluated, held.evaluation_counts) = (evaluated, counts && evaluated > 0);
            process(held, bytes)
        });
        let formed = form(ranks.into(), &[]);
        for (one, byte) in formed.iter().zip(expected) {
            assert_eq!(one.origin(), Origin::Live);
            assert_eq!(one.bytes, Bytes::filled(byte), "{counts}");
            assert_eq!(one.held.evaluated, if counts { 30 } else { 0 });
        }
    }
}

#[test]
fn of_states_after_one_step_that_whose_step_was_not_cut_short_is_sent() {
    // If all were, each may have been at another point.
    for (cut, expected) in [([true, false, false], 2), ([true, true, true], 1)] {
        let ranks = [1, 2, 2].into_iter().zip(cut).map(|(byte, is_cut_short)| {
            let mut held = live(4, 3);
            held.is_cut_short = is_cut_short;
            process(held, byte)
        });
        for one in form(ranks.collect(), &[]) {
            assert_eq!(one.bytes, Bytes::filled(expected), "{cut:?}");
            assert!(!one.held.is_cut_short);
        }
    }
}

#[test]
fn a_sender_that_is_lost_while_the_state_moves_costs_no_holder_its_state() {
    // In the chunk, and in the words after it.
    for (call, torn) in [(2, false), (3, true)] {
        let formed = form(
            vec![
                process(live(8, 20), 1),
                process(live(8, 20), 1),
                process(fresh(), 9),
            ],
            &[(0, call)],
        );
        let before = live(8, 20).claim();
        let [_, holder, joiner] = formed.as_slice() else {
            panic!("three ranks")
        };
        assert!(matches!(holder.result, Err(Failure::PeerLost(_))));
        assert_eq!((holder.claim(), &holder.bytes), (before, &Bytes::filled(1)));
        let expected = if torn { before.torn() } else { Claim::FRESH };
        assert_eq!(joiner.claim(), expected, "in call {call}");
        // The next generation continues with the holder's.
        let next = formed.into_iter().skip(1).map(|rank| Process {
            held: rank.held,
            bytes: rank.bytes,
            volume: None,
            forgets: false,
        });
        for rank in form(next.collect(), &[]) {
            assert_eq!(
                (rank.origin(), rank.held.position),
                (Origin::Live, position(20))
            );
            assert_eq!(rank.bytes, Bytes::filled(1));
        }
    }
}

/// How many bytes are written tells whether a state is torn, not that some were expected.
#[test]
fn a_rank_that_is_a_step_behind_keeps_its_state_until_a_byte_of_the_newer_one_comes() {
    let processes = || vec![process(live(8, 20), 1), process(live(8, 19), 5)];
    // The sender is lost before the first chunk, and in the words after the last one.
    for (call, expected) in [(2, live(8, 19).claim()), (3, live(8, 20).claim().torn())] {
        let formed = form(processes(), &[(0, call)]);
        assert!(matches!(formed[1].result, Err(Failure::PeerLost(_))));
        assert_eq!(formed[1].claim(), expected, "in call {call}");
    }
}

/// What an agreement leaves: some ranks have formed the generation, and some have not.
#[test]
fn equal_states_have_equal_claims_whatever_generations_they_were_members_of() {
    let mut formed = live(8, 20);
    formed.go_live(9);
    let processes = vec![process(formed, 1), process(live(8, 20), 1)];
    // A rank that is lost in the first chunk would be an error if a state was sent.
    for rank in form(processes, &[(0, 2)]) {
        assert_eq!(
            (rank.origin(), rank.claim()),
            (Origin::Live, live(8, 20).claim())
        );
    }
}

#[test]
fn a_generation_that_committed_no_step_supersedes_none() {
    // The first has committed step 21 alone, and the second was a member of a generation without a step since.
    let mut later = live(8, 20);
    later.go_live(9);
    for rank in form(vec![process(live(8, 21), 2), process(later, 1)], &[]) {
        assert_eq!(rank.held.position, position(21));
        assert_eq!(rank.bytes, Bytes::filled(2));
    }
}

#[test]
fn a_state_that_is_gone_with_its_holders_is_an_error_and_not_a_new_beginning() {
    let mut torn = fresh();
    torn.begin_to_receive(&live(8, 20).claim());
    for rank in form(vec![process(torn, 3), process(fresh(), 9)], &[]) {
        let lost = Failure::StateLost {
            generation: 8,
            step: 20,
        };
        let failure = rank.result.unwrap_err();
        assert_eq!(failure.to_string(), lost.to_string());
        assert_eq!(failure.exit_code(), roundhouse_contract::ExitCode::PeerLost);
    }
}

#[test]
fn initial_weights_that_are_alike_are_not_torn_by_a_sender_that_is_lost() {
    let processes = || {
        vec![
            process(fresh(), 1),
            process(fresh(), 1),
            process(fresh(), 2),
        ]
    };
    // The second has passed the chunk on, and is lost in the words.
    let formed = form(processes(), &[(1, 4)]);
    let claims: Vec<_> = formed[1..].iter().map(Formed::claim).collect();
    // The last one has got some that were others.
    assert_eq!(claims, [Claim::FRESH, Claim::FRESH.torn()]);
    for rank in form(processes(), &[]) {
        assert_eq!(
            (rank.origin(), rank.bytes),
            (Origin::Fresh, Bytes::filled(1))
        );
    }
}

/// What a rank that only sends, or only receives, moves in all: one chunk and the words, each with its seal.
fn one_copy() -> usize {
    Bytes::filled(0).0.len() + 8 + live(8, 20).words().len() + 8
}

#[test]
fn a_rank_that_has_the_state_and_serves_no_other_moves_nothing() {
    let holders = || (0..3).map(|_| process(live(8, 20), 1));
    let one = one_copy();
    // One newcomer: the lowest rank serves it.
    let formed = form(holders().chain([process(fresh(), 9)]).collect(), &[]);
    let moved: Vec<_> = formed.iter().map(|rank| rank.num_moved).collect();
    assert_eq!(moved, [one, 0, 0, one]);
    // Each newcomer has a rank that serves it alone.
    let newcomers = (0..2).map(|_| process(fresh(), 9));
    let formed = form(holders().chain(newcomers).collect(), &[]);
    let moved: Vec<_> = formed.iter().map(|rank| rank.num_moved).collect();
    assert_eq!(moved, [one, one, 0, one, one]);
    for rank in &formed {
        assert_eq!(rank.bytes, Bytes::filled(1));
        assert_eq!(rank.claim(), live(8, 20).claim());
    }
}

#[test]
fn ranks_that_lack_the_state_pass_it_on() {
    let processes = (0..4).map(|rank| match rank {
        2 => process(live(8, 20), 1),
        _ => process(fresh(), 9),
    });
    let formed = form(processes.collect(), &[]);
    let moved: Vec<_> = formed.iter().map(|rank| rank.num_moved).collect();
    let one = one_copy();
    // 2 to 0 to 1 to 3: no rank sends it twice.
    assert_eq!(moved, [2 * one, 2 * one, one, one]);
    for rank in &formed {
        assert_eq!(
            (rank.origin(), rank.held.position),
            (Origin::Live, position(20))
        );
        assert_eq!(rank.bytes, Bytes::filled(1));
    }
}

/// The ranks that wait for it may be gone by then.
#[test]
fn a_rank_that_has_received_everything_has_a_whole_state() {
    let formed = form(
        vec![process(live(8, 20), 1), process(fresh(), 9)],
        // In the barrier at the end.
        &[(0, 4)],
    );
    assert!(matches!(formed[1].result, Err(Failure::PeerLost(_))));
    assert_eq!(formed[1].claim(), live(8, 20).claim());
    assert_eq!(formed[1].bytes, Bytes::filled(1));
}
