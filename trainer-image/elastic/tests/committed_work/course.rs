//! One random course.

use std::collections::BTreeMap;

use roundhouse_elastic::checkpoint::superfluous;
use roundhouse_elastic::state::plan::finder;
use roundhouse_elastic::state::{Names, Plan, StateSource, Volume};
use roundhouse_elastic::{CheckpointId, Claim, Digest, Head, Origin, splitmix};

use crate::Rule;
use crate::process::Process;

const NUM_PROCESSES: usize = 4;
const KEEP: usize = 1;

/// What must not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Violation {
    /// A generation continues with an older state than one that takes part has.
    OlderState,
    /// A generation begins, or continues with a checkpoint, although the volume has not answered.
    SilentVolume,
    /// The state is told as lost, although a process that takes part has it.
    LostThoughThere,
    /// A state in memory was overwritten although no byte of the newer one came.
    TornWithoutAByte,
    /// Two states have one name.
    TwoContents,
    /// Retention has deleted the newest checkpoint, or one with more steps.
    Deleted,
    /// No step is committed although everything is back.
    NoProgress,
}

/// A save whose parts are durable, and that has no name yet.
#[derive(Clone, Copy, Debug)]
struct Late {
    writer: u64,
    nonce: u64,
    head: Head,
}

pub(crate) struct Course {
    random: u64,
    without: Option<Rule>,
    processes: Vec<Process>,
    answers: bool,
    /// The checkpoints by name.
    checkpoints: BTreeMap<CheckpointId, Head>,
    /// Generations that have begun a ledger, each with the nonce of its world.
    ledgers: BTreeMap<u64, u64>,
    late: Vec<Late>,
    /// The newest generation that the operator knows.
    generation: u64,
    /// Whether the operator has forgotten generations.
    was_restored: bool,
    /// Members of the world that trains, and its nonce.
    world: Vec<usize>,
    nonce: u64,
    /// Everything works from now on.
    is_repaired: bool,
    /// The state after each committed step of each generation.
    committed: BTreeMap<(u64, u64), Digest>,
    num_commits: u64,
}

impl Course {
    pub(crate) fn new(seed: u64, without: Option<Rule>) -> Self {
        let mut course = Self {
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
        };
        course.processes = (0..NUM_PROCESSES).map(|_| course.started()).collect();
        course
    }

    pub(crate) fn run(mut self) -> Result<(), Violation> {
        for _ in 0..10 + self.below(25) {
            self.act()?;
        }
        self.ends_well()
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
        // Spares and late ones do not always take part.
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

    /// A process that starts waits for the volume.
    fn restart(&mut self) {
        for index in 0..NUM_PROCESSES {
            if self.answers && !self.processes[index].is_alive && self.in_a_hundred(60) {
                self.processes[index] = self.started();
            }
        }
    }

    // Training.

    fn commit(&mut self) -> Result<(), Violation> {
        for _ in 0..=self.below(2) {
            let members = self.world.clone();
            self.step(&members)?;
        }
        if self.world.len() > 1 && self.in_a_hundred(25) {
            // The last sum succeeds on some ranks and fails on others.
            let first = self.one_of(self.world.len());
            let some: Vec<usize> = self.world.iter().copied().skip(first).collect();
            self.step(&some)?;
            self.world.clear();
        }
        Ok(())
    }

    fn step(&mut self, members: &[usize]) -> Result<(), Violation> {
        let Some(first) = members.first() else {
            return Ok(());
        };
        let (former, generation) = (
            self.processes[*first].head,
            self.processes[*first].generation,
        );
        if self.is_fenced(generation, self.nonce) {
            self.world.clear();
            return Ok(());
        }
        self.num_commits += 1;
        let head = Head {
            generation,
            step: former.step + 1,
            hash: digest(self.num_commits),
        };
        let earlier = self.committed.insert((generation, head.step), head.hash);
        // Beside a silent volume nothing tells two worlds of one number apart. Their checkpoints are told apart.
        if earlier.is_some() && !self.was_restored {
            return Err(Violation::TwoContents);
        }
        for index in members {
            self.processes[*index].head = head;
        }
        Ok(())
    }

    // The volume.

    fn save(&mut self) -> Result<(), Violation> {
        self.begin_late_save();
        self.complete_late_save()
    }

    fn begin_late_save(&mut self) {
        if let Some(first) = self.world.first().filter(|_| self.answers) {
            let Process {
                head, generation, ..
            } = self.processes[*first];
            if head.step > 0 {
                self.late.push(Late {
                    writer: generation,
                    nonce: self.nonce,
                    head,
                });
            }
        }
    }

    /// The ledger's number is the fence for older generations.
    fn complete_late_save(&mut self) -> Result<(), Violation> {
        if !self.answers {
            return Ok(());
        }
        let Some(Late {
            writer,
            nonce,
            head,
        }) = self.late.pop()
        else {
            return Ok(());
        };
        if self.is_fenced(writer, nonce) {
            return Ok(());
        }
        self.ledgers.insert(writer, nonce);
        let id = if self.has(Rule::Name) {
            CheckpointId::of(&head)
        } else {
            CheckpointId {
                generation: writer,
                step: head.step,
            }
        };
        let earlier = self.checkpoints.insert(id, head);
        if earlier.is_some_and(|earlier| earlier != head) {
            return Err(Violation::TwoContents);
        }
        self.delete_old()
    }

    fn delete_old(&mut self) -> Result<(), Violation> {
        let Some((newest, _)) = self.newest() else {
            return Ok(());
        };
        let all: Vec<_> = self.checkpoints.keys().map(|id| (*id, true)).collect();
        for old in superfluous(&all, KEEP, None) {
            if old >= newest || old.step > newest.step {
                return Err(Violation::Deleted);
            }
            self.checkpoints.remove(&old);
        }
        Ok(())
    }

    /// Whether a newer generation has written, or another world of this number.
    fn is_fenced(&self, generation: u64, nonce: u64) -> bool {
        let is_other = self
            .ledgers
            .get(&generation)
            .is_some_and(|own| *own != nonce);
        let is_newer = self.written() > generation || is_other;
        self.answers && is_newer
    }

    fn written(&self) -> u64 {
        let saved = self.checkpoints.keys().map(|id| id.generation);
        let all = saved.chain(self.ledgers.keys().copied());
        all.max().unwrap_or(0)
    }

    // Forming.

    /// The operator raises a generation of these processes.
    fn form(&mut self, members: &[usize]) -> Result<(), Violation> {
        self.world.clear();
        if members.is_empty() {
            return Ok(());
        }
        self.generation += 1;
        self.nonce += 1;
        let generation = self.generation;
        let mut offers: Vec<Option<Claim>> = vec![None; members.len()];
        let mut has_searched = false;
        let source = loop {
            let claims = self.claims(members, &offers);
            match self.plan(&claims, has_searched, generation) {
                Plan::Continue(source) => break source,
                Plan::Search => {
                    has_searched = true;
                    let live: Vec<bool> = members
                        .iter()
                        .map(|it| self.processes[*it].is_live())
                        .collect();
                    let at = finder(&live, &vec![true; members.len()]);
                    let found = self.newest().map_or_else(start, |(_, head)| head);
                    if live[at] {
                        offers[at] =
                            Some(self.seen(Claim::of(Origin::Loaded, &found), found.generation));
                    } else {
                        self.processes[members[at]].stand_for(found);
                    }
                }
                // Until the next generation, or the end.
                Plan::Wait => return Ok(()),
                Plan::Lost(_) => {
                    let has_it = |it: &usize| {
                        self.processes[*it].is_live() && self.processes[*it].head.step > 0
                    };
                    if members.iter().any(has_it) {
                        return Err(Violation::LostThoughThere);
                    }
                    for index in members {
                        self.processes[*index].is_alive = false;
                    }
                    return Ok(());
                }
                Plan::Fenced(newer) => {
                    // They end, and the operator hears the number.
                    for index in members {
                        self.processes[*index].is_alive = false;
                    }
                    self.generation = self.generation.max(newer);
                    return Ok(());
                }
            }
        };
        self.check(members, &source)?;
        self.share(members, &source, generation)
    }

    fn claims(&self, members: &[usize], offers: &[Option<Claim>]) -> Vec<Claim> {
        let one = |(index, offer): (&usize, &Option<Claim>)| {
            let process = &self.processes[*index];
            let own = self.seen(process.claim(), process.generation);
            offer.map_or(own, |offer| own.max(offer))
        };
        members.iter().zip(offers).map(one).collect()
    }

    /// Without [`Rule::Head`] a claim names the last generation that formed with the state.
    fn seen(&self, claim: Claim, generation: u64) -> Claim {
        if self.has(Rule::Head) || claim.origin != Origin::Live {
            claim
        } else {
            Claim {
                generation,
                ..claim
            }
        }
    }

    fn plan(&self, claims: &[Claim], has_searched: bool, generation: u64) -> Plan {
        let is_live = StateSource::of(claims).is_ok_and(|it| it.claim.origin == Origin::Live);
        let looks = if is_live {
            Rule::LookOfLive
        } else {
            Rule::Look
        };
        let checkpoint = self
            .newest()
            .map(|(id, _)| id)
            .filter(|_| !has_searched && self.has(looks));
        let volume = match self.answers {
            true => Volume::Names(Names {
                checkpoint,
                generation: self.written(),
            }),
            false if self.has(Rule::Wait) => Volume::Silent,
            false => Volume::Absent,
        };
        match Plan::of(claims, &volume, generation) {
            Plan::Continue(_) if !self.has(Rule::Order) => Plan::Continue(by_origin(claims)),
            plan => plan,
        }
    }

    /// Promise: what is continued with is the newest of all that takes part.
    fn check(&self, members: &[usize], source: &StateSource) -> Result<(), Violation> {
        let live = members.iter().map(|it| &self.processes[*it]);
        let live = live.filter(|it| it.is_live()).map(|it| it.head);
        let saved = self.checkpoints.values().filter(|_| self.answers).copied();
        let there = live.chain(saved).map(|head| CheckpointId::of(&head));
        let head = self.head_of(members, source);
        if there
            .max()
            .is_some_and(|newest| newest > CheckpointId::of(&head))
        {
            return Err(Violation::OlderState);
        }
        if !self.answers && source.claim.origin != Origin::Live {
            return Err(Violation::SilentVolume);
        }
        Ok(())
    }

    /// The state that is continued with: the sender's, or the checkpoint that it has found.
    fn head_of(&self, members: &[usize], source: &StateSource) -> Head {
        let sender = &self.processes[members[source.rank]];
        if source.claim.origin == Origin::Loaded && sender.origin != Origin::Loaded {
            self.newest().map_or_else(start, |(_, head)| head)
        } else {
            sender.head
        }
    }

    fn share(
        &mut self,
        members: &[usize],
        source: &StateSource,
        generation: u64,
    ) -> Result<(), Violation> {
        let head = self.head_of(members, source);
        let sender = members[source.rank];
        let claim = source.claim;
        if claim.origin == Origin::Loaded {
            if !self.answers {
                return Ok(());
            }
            // All bytes were checked before.
            self.processes[sender].stand_for(head);
        }
        let keeps = |process: &Process| {
            claim.origin == Origin::Live && process.is_live() && process.head == head
        };
        let receivers = members.iter().copied().filter(|it| *it != sender);
        let receivers: Vec<usize> = receivers
            .filter(|it| !keeps(&self.processes[*it]))
            .collect();
        let fate = if self.is_repaired { 9 } else { self.below(10) };
        match fate {
            // The sender dies before the first byte, or in the middle.
            0 if !receivers.is_empty() => {
                for index in &receivers {
                    let whole = self.processes[*index].is_live();
                    if !self.has(Rule::Torn) {
                        self.processes[*index].begin_to_receive(&claim);
                        if whole && self.processes[*index].torn.is_some() {
                            return Err(Violation::TornWithoutAByte);
                        }
                    }
                }
                self.processes[sender].is_alive = false;
                return Ok(());
            }
            1 if !receivers.is_empty() => {
                for index in &receivers {
                    self.processes[*index].begin_to_receive(&claim);
                }
                self.processes[sender].is_alive = false;
                return Ok(());
            }
            // A connection is lost: some ranks have all, and some a part.
            2 if !receivers.is_empty() => {
                let whole = self.one_of(receivers.len());
                for (at, index) in receivers.iter().enumerate() {
                    if at < whole {
                        self.processes[*index].go_live(head, generation);
                    } else {
                        self.processes[*index].begin_to_receive(&claim);
                    }
                }
                return Ok(());
            }
            _ => {}
        }
        for index in members {
            self.processes[*index].go_live(head, generation);
        }
        self.world = members.to_vec();
        if self.answers {
            self.ledgers.insert(generation, self.nonce);
        }
        Ok(())
    }

    /// Everything is back: a step is committed, and what is newest is continued with.
    fn ends_well(&mut self) -> Result<(), Violation> {
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

/// The order that puts a state in memory before any checkpoint.
fn by_origin(claims: &[Claim]) -> StateSource {
    let worth = |claim: &Claim| (claim.origin, claim.generation, claim.step);
    let best = claims
        .iter()
        .copied()
        .max_by_key(worth)
        .unwrap_or(Claim::FRESH);
    StateSource {
        claim: best,
        rank: claims.iter().position(|claim| *claim == best).unwrap_or(0),
        must_send: true,
        lost: None,
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
