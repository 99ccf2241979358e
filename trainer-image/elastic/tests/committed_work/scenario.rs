//! One random scenario: its events and its end. The submodules contain the effects of the events.

use std::collections::{BTreeMap, HashMap};

use roundhouse_elastic::saving::Carried;
use roundhouse_elastic::{CheckpointId, Digest, Head, splitmix};

use crate::Rule;
use crate::process::Process;

mod forming;
mod sharing;
mod training;
mod volume;

const NUM_PROCESSES: usize = 4;
const KEEP: usize = 1;

/// A violation of a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Violation {
    /// A generation continues with an older state than one of its members has.
    OlderState,
    /// A generation starts, or continues with a checkpoint, although the volume has not answered.
    SilentVolume,
    /// The state is reported as lost although a member has it.
    LostThoughThere,
    /// A state in memory was overwritten although no byte of the newer state arrived.
    TornWithoutAByte,
    /// Two different states have one name.
    TwoContents,
    /// A generation continues a save of a state that is not in its history.
    OtherHistory,
    /// Retention has deleted the newest checkpoint, or one with more steps.
    Deleted,
    /// No step is committed although all faults are repaired.
    NoProgress,
}

/// A save that has no name yet.
#[derive(Clone, Copy, Debug)]
struct Late {
    save: Carried,
    /// The generation that completes the save: the one that began it, or one that continued it.
    generation: u64,
    nonce: u64,
    head: Head,
}

pub(crate) struct Scenario {
    random: u64,
    without: Option<Rule>,
    processes: Vec<Process>,
    answers: bool,
    /// The checkpoints, by name.
    checkpoints: BTreeMap<CheckpointId, Head>,
    /// The nonce of the process group, for each generation that has begun a ledger.
    ledgers: BTreeMap<u64, u64>,
    late: Vec<Late>,
    /// The newest generation that the operator knows.
    generation: u64,
    /// Whether the operator has lost the numbers of generations.
    was_restored: bool,
    /// Members of the process group that trains, and its nonce.
    world: Vec<usize>,
    nonce: u64,
    /// No more faults from now on.
    is_repaired: bool,
    /// The state after each committed step of each generation.
    committed: BTreeMap<(u64, u64), Digest>,
    num_commits: u64,
    /// The state before each committed step, by the state after it.
    former: HashMap<Digest, Digest>,
}

impl Scenario {
    pub(crate) fn new(seed: u64, without: Option<Rule>) -> Self {
        let mut scenario = Self {
            random: splitmix::finalize(seed),
            without,
            processes: Vec::new(),
            answers: true,
            checkpoints: BTreeMap::new(),
            ledgers: BTreeMap::new(),
            late: Vec::new(),
            generation: 0,
            was_restored: false,
            world: Vec::new(),
            nonce: 0,
            is_repaired: false,
            committed: BTreeMap::new(),
            num_commits: 0,
            former: HashMap::new(),
        };
        scenario.processes = (0..NUM_PROCESSES).map(|_| scenario.started()).collect();
        scenario
    }

    pub(crate) fn run(mut self) -> Result<(), Violation> {
        for _ in 0..10 + self.below(25) {
            self.act()?;
        }
        self.recovers()
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(splitmix::INCREMENT);
        splitmix::finalize(self.random) % bound
    }

    fn one_of(&mut self, number: usize) -> usize {
        usize::try_from(self.below(number as u64)).unwrap_or_default()
    }

    fn in_a_hundred(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    fn act(&mut self) -> Result<(), Violation> {
        match self.below(100) {
            0..12 => self.kill(),
            12..28 => self.restart(),
            28..38 => {
                let index = self.any();
                self.processes[index].is_reached ^= true;
                if self.world.contains(&index) {
                    self.world.clear();
                }
            }
            38..42 => self.answers ^= true,
            // The operator's status is restored from a backup.
            42..44 => {
                self.generation = self.generation.saturating_sub(2);
                self.was_restored = true;
            }
            44..60 => self.commit()?,
            60..70 => self.save()?,
            70..73 => self.begin_late_save(),
            73..76 => self.complete_late_save()?,
            _ => {
                let members = self.reached();
                self.form(&members)?;
            }
        }
        Ok(())
    }

    fn any(&mut self) -> usize {
        self.one_of(NUM_PROCESSES)
    }

    fn reached(&mut self) -> Vec<usize> {
        let mut members: Vec<usize> = (0..NUM_PROCESSES)
            .filter(|index| self.processes[*index].is_alive && self.processes[*index].is_reached)
            .collect();
        // Spares and late processes are not always members.
        if self.in_a_hundred(30) && members.len() > 1 {
            let place = self.one_of(members.len());
            members.remove(place);
        }
        members
    }

    fn newest(&self) -> Option<(CheckpointId, Head)> {
        self.checkpoints
            .last_key_value()
            .map(|(id, head)| (*id, *head))
    }

    fn started(&self) -> Process {
        Process::start(start(), self.newest().map(|(_, head)| head))
    }

    fn kill(&mut self) {
        let all = self.in_a_hundred(25);
        for index in 0..NUM_PROCESSES {
            if all || self.in_a_hundred(40) {
                self.processes[index].is_alive = false;
                self.world.clear();
            }
        }
    }

    /// A starting process waits for the volume.
    fn restart(&mut self) {
        for index in 0..NUM_PROCESSES {
            if self.answers && !self.processes[index].is_alive && self.in_a_hundred(60) {
                self.processes[index] = self.started();
            }
        }
    }

    /// Repairs all faults. Then a step must be committed, from the newest state.
    fn recovers(&mut self) -> Result<(), Violation> {
        (self.answers, self.is_repaired) = (true, true);
        for _ in 0..6 {
            for index in 0..NUM_PROCESSES {
                self.processes[index].is_reached = true;
                if !self.processes[index].is_alive {
                    self.processes[index] = self.started();
                }
            }
            let all: Vec<usize> = (0..NUM_PROCESSES).collect();
            self.form(&all)?;
            let before = self.num_commits;
            let world = self.world.clone();
            self.step(&world)?;
            if self.num_commits > before {
                return Ok(());
            }
        }
        Err(Violation::NoProgress)
    }
}

fn digest(number: u64) -> Digest {
    let mut bytes = [0; Digest::NUM_BYTES];
    bytes[..8].copy_from_slice(&splitmix::finalize(number).to_le_bytes());
    Digest::from_bytes(bytes)
}

fn start() -> Head {
    Head {
        generation: 0,
        step: 0,
        hash: digest(0),
    }
}
