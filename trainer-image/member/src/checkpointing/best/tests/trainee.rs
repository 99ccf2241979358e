//! Ranks that train with a volume, each in a thread, for the tests of the best checkpoint.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Mutex;

use roundhouse_contract::BestMetric;
use roundhouse_contract::environment::CheckpointEnvironment;
use roundhouse_elastic::best::Scores;
use roundhouse_elastic::ledger::{Head, LedgerIdentity};
use roundhouse_elastic::saving::Stage;
use roundhouse_elastic::{Chain, DataSchedule, Event, Machine, Origin, Place, Scaling};

use crate::checkpoint::Identity;
use crate::group::threads::{Made, Threads};
use crate::lobby::{Peers, document};
use crate::member::{Control, Member, Todo};
use crate::membership::MembershipWatch;
use crate::signals::LeaveRequest;
use crate::state::tests::{Bytes, table};
use crate::world::Saving;
use crate::{Checkpointing, Launch, LocalState};

fn data_schedule() -> DataSchedule {
    DataSchedule::of_steps(100, 10, 50)
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
        local: None,
    });
    launch
}

/// A rank of a training with a volume, and its state.
pub(super) struct Trainee<'reporter> {
    pub(super) member: Member<'reporter, Made>,
    pub(super) bytes: Bytes,
    pub(super) rank: u32,
    num_ranks: u32,
}

impl Trainee<'_> {
    /// Forms the next generation at a step boundary and begins training in it.
    pub(super) fn join(&mut self, generation: u64, group: Threads) {
        let (place, origin) = self.form(generation, group);
        self.member
            .begin_training(&place, origin, &self.bytes)
            .unwrap();
        self.member.apply(Event::Formed);
        assert_eq!(self.next_todo(), Todo::Step);
    }

    pub(super) fn form(&mut self, generation: u64, group: Threads) -> (Place, Origin) {
        self.member.peers.as_ref().unwrap().rendezvous.give(group);
        self.see_generation(generation);
        self.member.apply(Event::Boundary {
            agreed_generation: generation,
            all_leave: false,
        });
        let Todo::Form(place) = self.next_todo() else {
            panic!("no generation to form");
        };
        let origin = self.member.form(&place, &mut self.bytes).unwrap().unwrap();
        (place, origin)
    }

    fn next_todo(&mut self) -> Todo {
        let Ok(todo) = self.member.next_todo(|| Ok::<_, Infallible>(()));
        todo
    }

    pub(super) fn see_generation(&mut self, generation: u64) {
        let document = document(generation, self.rank, self.num_ranks);
        self.member.machine.see(&document);
    }

    /// Evaluates the state of the last step.
    pub(super) fn evaluate(&mut self, value: f64) {
        self.member.keep_best(loss(value), &self.bytes).unwrap();
    }

    pub(super) fn step(&mut self) {
        let own = self.member.begin_step().unwrap().saving;
        self.commit(&own);
    }

    /// Commits a step before this rank knows the result of its part of the save in flight.
    pub(super) fn step_while_parts_are_written(&mut self) {
        self.commit(&Saving {
            stage: Stage::Busy,
            ..Saving::default()
        });
    }

    fn commit(&mut self, own: &Saving) {
        let batch = data_schedule()
            .batch_at(&self.member.local_state.position)
            .unwrap();
        let sum = self.member.world().unwrap().sum_saving(own).unwrap();
        self.member.count(&batch, false);
        self.member.note(&batch, 0.5, &sum);
        self.member.save_on(&sum, &self.bytes).unwrap();
    }

    pub(super) fn checkpointing(&mut self) -> &mut Checkpointing {
        self.member.checkpointing.as_mut().unwrap()
    }

    /// Step of the save in flight.
    pub(super) fn in_flight(&mut self) -> Option<u64> {
        self.checkpointing()
            .saver
            .in_flight()
            .map(|(step, ..)| step)
    }

    /// Acts as if another process had replaced a rank.
    pub(super) fn lose_save_on(&mut self, rank: u32) {
        if self.rank == rank {
            self.checkpointing().abandon_save();
        }
    }

    /// Waits until this rank has no part of a save in flight.
    pub(super) fn wait_until_idle(&mut self) {
        while self.checkpointing().saver.stage() != Stage::Idle {
            self.member.begin_step().unwrap();
            std::thread::yield_now();
        }
    }

    /// Waits until this rank's part of the save in flight is durable.
    pub(super) fn wait_until_durable(&mut self) {
        while self.checkpointing().saver.stage() == Stage::Busy {
            self.member.begin_step().unwrap();
            std::thread::yield_now();
        }
        assert_eq!(self.checkpointing().saver.stage(), Stage::Durable);
    }
}

/// Trains in generation 1 with each rank in its own thread.
pub(super) fn train<T: Send>(
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
        ledger: LedgerIdentity::of(&data_schedule(), 7),
        settings: BTreeMap::new(),
    };
    let start = Chain::from(Head::start(&identity.ledger));
    let launch = by_loss(volume);
    let mut reporter = launch.reporter().unwrap();
    let checkpointing = Checkpointing::prepare(&launch, identity, table(), &mut reporter).unwrap();
    let file = Path::new("/nonexistent/membership");
    let (watch, _) = MembershipWatch::start(file);
    let control = Control {
        machine: Machine::new(0, 0),
        peers: Some(Peers::meet(file, watch, Made::default(), &LeaveRequest::default()).unwrap()),
        leave: LeaveRequest::default(),
    };
    let local_state = LocalState::fresh(Scaling::new(None, &data_schedule()).start(), start);
    let mut trainee = Trainee {
        member: Member::prepared(control, local_state, checkpointing, &mut reporter),
        bytes: Bytes::filled(1),
        rank,
        num_ranks,
    };
    trainee.join(1, group);
    work(&mut trainee)
}

pub(super) fn loss(loss: f64) -> Scores {
    Scores {
        loss: Some(loss),
        ..Scores::default()
    }
    .finite()
}

/// The group of a generation, from which each rank takes its own handle.
pub(super) fn next_group(num_ranks: u32) -> Vec<Mutex<Option<Threads>>> {
    let group = Threads::group(num_ranks, &[]).into_iter();
    group.map(|rank| Mutex::new(Some(rank))).collect()
}

pub(super) fn own(group: &[Mutex<Option<Threads>>], trainee: &Trainee<'_>) -> Threads {
    let at = usize::try_from(trainee.rank).unwrap();
    group[at].lock().unwrap().take().unwrap()
}
