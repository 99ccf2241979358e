use std::path::Path;

use roundhouse_contract::BestMetric;
use roundhouse_contract::environment::CheckpointEnvironment;
use roundhouse_contract::membership::{Action as Instruction, Incarnation, Master, Membership};
use roundhouse_elastic::ledger::{Head, Terms};
use roundhouse_elastic::{Chain, Course, Event, Machine, Scaling};

use super::*;
use crate::checkpoint::Identity;
use crate::group::threads::{Made, Threads};
use crate::lobby::Peers;
use crate::member::{Hearing, Todo};
use crate::membership::MembershipWatch;
use crate::report::Reporter;
use crate::signals::LeaveRequest;
use crate::state::tests::{Bytes, table};
use crate::{Held, Keeping, Launch};

fn course() -> Course {
    Course::of_steps(100, 10, 50)
}

fn by_loss(volume: &Path) -> Launch {
    let mut launch = Launch::alone("config".into(), "data".into(), None);
    launch.checkpoint = Some(CheckpointEnvironment {
        dir: volume.to_owned(),
        every_steps: None,
        every_seconds: None,
        keep: 2,
        best: Some(BestMetric::Loss),
        job_uid: None,
    });
    launch
}

fn document(generation: u64, rank: u32, num_ranks: u32) -> Membership {
    Membership {
        generation,
        action: Instruction::Join,
        node_rank: rank,
        nodes: num_ranks,
        procs_per_worker: 1,
        master: Master {
            address: String::new(),
            port: 0,
        },
        members: String::new(),
        incarnation: Incarnation {
            pod_uid: String::new(),
            restarts: 0,
        },
        issued_at: String::new(),
    }
}

/// A rank of a training over a volume, and what it trains.
struct Trainee<'reporter> {
    member: Member<'reporter, Made>,
    bytes: Bytes,
    rank: u32,
    num_ranks: u32,
}

impl Trainee<'_> {
    /// The next generation forms, at the end of a step of the one before.
    fn join(&mut self, generation: u64, group: Option<Threads>) {
        let peers = self.member.peers.as_ref().unwrap();
        if let Some(group) = group {
            peers.rendezvous.give(group);
        }
        self.hear_of(generation);
        self.member.apply(Event::Boundary {
            agreed_generation: generation,
            all_leave: false,
        });
        let Todo::Form(place) = self.member.next_todo() else {
            panic!("no generation to form");
        };
        let origin = self.member.form(&place, &mut self.bytes).unwrap().unwrap();
        self.member.begin_training(&place, origin).unwrap();
        self.member.apply(Event::Formed);
        assert_eq!(self.member.next_todo(), Todo::Step);
    }

    fn hear_of(&mut self, generation: u64) {
        let document = document(generation, self.rank, self.num_ranks);
        self.member.machine.see(&document);
    }

    /// A step is committed.
    fn step(&mut self) {
        let batch = course().batch_at(&self.member.held.mark).unwrap();
        let own = self.member.begin_step().unwrap().saving;
        let sum = self.member.world().unwrap().sum_saving(&own).unwrap();
        self.member.count(&batch, false);
        self.member.keep(&batch, 0.5, &sum, &self.bytes).unwrap();
    }

    fn keeping(&mut self) -> &mut Keeping {
        self.member.keeping.as_mut().unwrap()
    }

    /// Step of the save in flight.
    fn in_flight(&mut self) -> Option<u64> {
        self.keeping().saver.in_flight().map(|(step, ..)| step)
    }
}

/// Each rank in a thread of its own trains in generation 1.
fn train<T: Send>(
    volume: &Path,
    num_ranks: u32,
    work: impl Fn(&mut Trainee<'_>) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..)
            .zip(Threads::group(num_ranks, &[]))
            .map(|(rank, group)| {
                let work = &work;
                scope.spawn(move || with_member(volume, rank, num_ranks, group, work))
            })
            .collect();
        ranks.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

fn with_member<T>(
    volume: &Path,
    rank: u32,
    num_ranks: u32,
    group: Threads,
    work: impl Fn(&mut Trainee<'_>) -> T,
) -> T {
    let identity = Identity {
        model: "mlp".to_owned(),
        optimizer: "sgd".to_owned(),
        course: Terms::of(&course(), 7),
    };
    let start = Chain::from(Head::start(&identity.course));
    let launch = by_loss(volume);
    let mut reporter = Reporter::new(&launch).unwrap();
    let keeping = Keeping::prepare(&launch, identity, table(), &mut reporter).unwrap();
    let file = Path::new("/nonexistent/membership");
    let (watch, _) = MembershipWatch::start(file);
    let hearing = Hearing {
        machine: Machine::new(0, 0),
        peers: Some(Peers::meet(file, watch, Made::default()).unwrap()),
        leave: LeaveRequest::default(),
    };
    let held = Held::fresh(Scaling::new(None, &course()).start(), start);
    let mut trainee = Trainee {
        member: Member::prepared(hearing, held, keeping, &mut reporter),
        bytes: Bytes::filled(1),
        rank,
        num_ranks,
    };
    trainee.join(1, Some(group));
    work(&mut trainee)
}

fn loss(loss: f64) -> Scores {
    Scores {
        loss: Some(loss),
        ..Scores::default()
    }
}

#[test]
fn the_save_of_the_best_state_begins_on_all_ranks() {
    let volume = tempfile::tempdir().unwrap();
    let begun = train(volume.path(), 2, |trainee| {
        trainee.step();
        let Trainee { member, bytes, .. } = trainee;
        member.keep_best(loss(0.5), bytes).unwrap();
        trainee.in_flight()
    });
    assert_eq!(begun, [Some(1), Some(1)]);
}

#[test]
fn no_rank_waits_for_an_earlier_save_when_one_rank_knows_a_newer_generation() {
    let volume = tempfile::tempdir().unwrap();
    let begun = train(volume.path(), 2, |trainee| {
        trainee.step();
        trainee.keeping().saver.hang();
        if trainee.rank == 1 {
            trainee.hear_of(2);
        }
        let Trainee { member, bytes, .. } = trainee;
        member.save_best(loss(0.5), bytes, Duration::MAX).unwrap();
        trainee.in_flight()
    });
    assert_eq!(begun, [None, None]);
}

#[test]
fn an_earlier_save_is_not_waited_for_longer_than_the_longest_wait() {
    let volume = tempfile::tempdir().unwrap();
    let begun = train(volume.path(), 2, |trainee| {
        trainee.step();
        if trainee.rank == 1 {
            trainee.keeping().saver.hang();
        }
        let Trainee { member, bytes, .. } = trainee;
        member.save_best(loss(0.5), bytes, Duration::ZERO).unwrap();
        trainee.in_flight()
    });
    assert_eq!(begun, [None, None]);
}
