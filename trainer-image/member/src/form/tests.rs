use std::collections::BTreeMap;

use roundhouse_contract::Master;
use roundhouse_contract::environment::CheckpointEnvironment;
use roundhouse_elastic::ledger::{Head, LedgerIdentity};
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
use crate::{Checkpointing, Launch, LocalState};

mod broadcast;
mod resume;

const HEAD: u8 = 7;

fn identity() -> Identity {
    Identity {
        model: "mlp".to_owned(),
        optimizer: "sgd".to_owned(),
        ledger: LedgerIdentity::of(&data_schedule(), 7),
        settings: BTreeMap::new(),
    }
}

fn data_schedule() -> DataSchedule {
    DataSchedule::of_steps(100, 10, 50)
}

/// Parts of a position that must be sent with the state.
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

/// The end of a ledger.
fn head(generation: u64, step: u64) -> Head {
    Head {
        generation,
        step,
        hash: Digest::of(&[&generation.to_le_bytes(), &step.to_le_bytes()]),
    }
}

fn fresh() -> LocalState {
    let start = Head::start(&identity().ledger);
    LocalState::fresh(position(0), Chain::from(start))
}

fn live(generation: u64, step: u64) -> LocalState {
    let mut local_state = fresh();
    local_state.position = position(step);
    local_state.chain = Chain::from(head(generation, step));
    local_state.go_live(generation);
    local_state
}

/// A process before a generation: its local state and its bytes.
struct Process {
    local_state: LocalState,
    bytes: Bytes,
    /// Directory of its checkpoints, if it has one.
    volume: Option<std::path::PathBuf>,
    /// Whether it started before the first checkpoint.
    forgets: bool,
}

fn process(local_state: LocalState, bytes: u8) -> Process {
    Process {
        local_state,
        bytes: Bytes::filled(bytes),
        volume: None,
        forgets: false,
    }
}

/// Result of forming a generation.
struct Formed {
    result: Result<Option<Origin>, Failure>,
    local_state: LocalState,
    bytes: Bytes,
    num_read: u64,
    /// Bytes that it has sent to other ranks and received from them.
    num_moved: usize,
}

impl Formed {
    fn claim(&self) -> Claim {
        self.local_state.claim()
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
        local: None,
    });
    launch
}

/// Forms generation 9 as one rank.
fn form_one(process: Process, group: Threads) -> Formed {
    let launch = launch(&process);
    let Process {
        mut local_state,
        mut bytes,
        volume: _,
        forgets,
    } = process;
    let mut reporter = launch.reporter().unwrap();
    let checkpointing =
        Checkpointing::prepare(&launch, identity(), table(), &mut reporter).unwrap();
    if let (Some(found), Origin::Fresh) = (
        checkpointing
            .as_ref()
            .and_then(Checkpointing::found)
            .filter(|_| !forgets),
        local_state.claim().origin,
    ) {
        local_state.stand_for(found);
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
    let mut member = Member::prepared(control, local_state, checkpointing, &mut reporter);
    let result = member.form(&place, &mut bytes);
    let checkpointing = member.checkpointing.as_ref();
    let num_read = checkpointing.map_or(0, |checkpointing| {
        checkpointing.directory.io_watch().num_read()
    });
    Formed {
        result,
        local_state: member.local_state.clone(),
        bytes,
        num_read,
        num_moved: 0,
    }
}

/// Forms a generation with all ranks, each in its own thread. `lost` names ranks with the number of
/// the group call in which they are lost; 1 is the agreement. The calls of a sender are then the
/// chunk, the words and the barrier, and those of a receiver are the same. A rank that forwards the
/// chunk first receives it.
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
fn state_goes_only_to_ranks_that_lack_it() {
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
        assert_eq!(rank.local_state.position, position(20));
        assert_eq!(rank.claim(), live(8, 20).claim());
        assert_eq!(rank.local_state.generation(), 9);
    }
}

#[test]
fn evaluated_state_is_sent_if_evaluation_changes_state() {
    for (counts, expected) in [(true, [2, 2, 2]), (false, [1, 2, 1])] {
        let ranks = [(1, 0), (2, 30), (1, 0)].map(|(bytes, evaluated)| {
            let mut local_state = live(4, 3);
            // Only one rank may know that evaluations change the state.
            (local_state.evaluated, local_state.evaluation_counts) =
                (evaluated, counts && evaluated > 0);
            process(local_state, bytes)
        });
        let formed = form(ranks.into(), &[]);
        for (one, byte) in formed.iter().zip(expected) {
            assert_eq!(one.origin(), Origin::Live);
            assert_eq!(one.bytes, Bytes::filled(byte), "{counts}");
            assert_eq!(one.local_state.evaluated, if counts { 30 } else { 0 });
        }
    }
}

#[test]
fn state_of_a_complete_step_is_preferred() {
    // If the step was cut short on all ranks, each may have stopped at another point.
    for (cut, expected) in [([true, false, false], 2), ([true, true, true], 1)] {
        let ranks = [1, 2, 2].into_iter().zip(cut).map(|(byte, is_cut_short)| {
            let mut local_state = live(4, 3);
            local_state.is_cut_short = is_cut_short;
            process(local_state, byte)
        });
        for one in form(ranks.collect(), &[]) {
            assert_eq!(one.bytes, Bytes::filled(expected), "{cut:?}");
            assert!(!one.local_state.is_cut_short);
        }
    }
}

#[test]
fn lost_sender_leaves_holders_with_their_state() {
    // Lost in the chunk, and in the words after it.
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
        let [_, holder, newcomer] = formed.as_slice() else {
            panic!("three ranks")
        };
        assert!(matches!(holder.result, Err(Failure::PeerLost(_))));
        assert_eq!((holder.claim(), &holder.bytes), (before, &Bytes::filled(1)));
        let expected = if torn { before.torn() } else { Claim::FRESH };
        assert_eq!(newcomer.claim(), expected, "in call {call}");
        // The next generation continues with the holder's state.
        let next = formed.into_iter().skip(1).map(|rank| Process {
            local_state: rank.local_state,
            bytes: rank.bytes,
            volume: None,
            forgets: false,
        });
        for rank in form(next.collect(), &[]) {
            assert_eq!(
                (rank.origin(), rank.local_state.position),
                (Origin::Live, position(20))
            );
            assert_eq!(rank.bytes, Bytes::filled(1));
        }
    }
}

/// A state is torn once a byte was written, not when bytes were expected.
#[test]
fn older_state_is_torn_only_by_the_first_received_byte() {
    let processes = || vec![process(live(8, 20), 1), process(live(8, 19), 5)];
    // The sender is lost before the first chunk, and in the words after the last one.
    for (call, expected) in [(2, live(8, 19).claim()), (3, live(8, 20).claim().torn())] {
        let formed = form(processes(), &[(0, call)]);
        assert!(matches!(formed[1].result, Err(Failure::PeerLost(_))));
        assert_eq!(formed[1].claim(), expected, "in call {call}");
    }
}

/// After an agreement some ranks have formed the generation and some have not.
#[test]
fn equal_states_have_equal_claims() {
    let mut formed = live(8, 20);
    formed.go_live(9);
    let processes = vec![process(formed, 1), process(live(8, 20), 1)];
    // The loss of a rank in the first chunk would be an error if a state were sent.
    for rank in form(processes, &[(0, 2)]) {
        assert_eq!(
            (rank.origin(), rank.claim()),
            (Origin::Live, live(8, 20).claim())
        );
    }
}

#[test]
fn generation_without_step_supersedes_none() {
    // The first rank alone has committed step 21. The second was since then in a generation without
    // a step.
    let mut later = live(8, 20);
    later.go_live(9);
    for rank in form(vec![process(live(8, 21), 2), process(later, 1)], &[]) {
        assert_eq!(rank.local_state.position, position(21));
        assert_eq!(rank.bytes, Bytes::filled(2));
    }
}

#[test]
fn lost_state_is_an_error_not_a_fresh_start() {
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
fn equal_initial_weights_survive_a_lost_sender() {
    let processes = || {
        vec![
            process(fresh(), 1),
            process(fresh(), 1),
            process(fresh(), 2),
        ]
    };
    // The second rank has forwarded the chunk and is lost in the words.
    let formed = form(processes(), &[(1, 4)]);
    let claims: Vec<_> = formed[1..].iter().map(Formed::claim).collect();
    // The last rank has received bytes that differ from its own.
    assert_eq!(claims, [Claim::FRESH, Claim::FRESH.torn()]);
    for rank in form(processes(), &[]) {
        assert_eq!(
            (rank.origin(), rank.bytes),
            (Origin::Fresh, Bytes::filled(1))
        );
    }
}
