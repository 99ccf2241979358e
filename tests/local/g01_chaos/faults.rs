//! Draws random faults and injects them into the processes of a run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fastrand::Rng;
use roundhouse_tests::local::LocalRun;
use roundhouse_tests::processes::send;
use rustix::process::Signal;

/// The limit of a wait for a step. A busy machine may need many times as long as an idle one.
const PATIENCE: Duration = Duration::from_mins(8);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Event {
    KillRank,
    KillAgent,
    /// Kills all processes of all workers within a millisecond. The steps since the newest
    /// checkpoint are trained again.
    KillAll,
    /// Kills a process while the next generation connects or transfers the state.
    KillInChange,
    Drain,
    Stop,
    Scale,
    /// Adds or removes a spare, which replaces the next lost member.
    Spare,
}

const EVENTS_BY_WEIGHT: [Event; 20] = [
    Event::KillRank,
    Event::KillRank,
    Event::KillRank,
    Event::KillRank,
    Event::KillAgent,
    Event::KillAgent,
    Event::KillAll,
    Event::KillInChange,
    Event::KillInChange,
    Event::KillInChange,
    Event::Drain,
    Event::Drain,
    Event::Stop,
    Event::Stop,
    Event::Stop,
    Event::Stop,
    Event::Scale,
    Event::Scale,
    Event::Scale,
    Event::Spare,
];

pub(super) struct Chaos {
    pub(super) rng: Rng,
    pub(super) run: LocalRun,
    /// The most workers and spares together.
    most_workers: u32,
    workers: u32,
    spares: u32,
    stopped: Vec<(u32, Instant)>,
    counts: BTreeMap<Event, u64>,
}

impl Chaos {
    /// Faults of a job with three workers.
    pub(super) fn of(run: LocalRun, seed: u64, most_workers: u32) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            run,
            most_workers,
            workers: 3,
            spares: 0,
            stopped: Vec::new(),
            counts: BTreeMap::new(),
        }
    }

    /// Draws an event and injects it. Returns whether it was possible.
    pub(super) fn inject(&mut self) -> bool {
        let event = self.rng.choice(EVENTS_BY_WEIGHT).unwrap();
        let happened = self.try_inject(event);
        *self.counts.entry(event).or_default() += u64::from(happened);
        happened
    }

    fn try_inject(&mut self, event: Event) -> bool {
        let agents = self.run.agents();
        let Some(agent) = self.rng.choice(&agents) else {
            return false;
        };
        // A worker that dies before it is prepared restarts after 10 s, 20 s, 40 s and so on. The
        // test would only wait.
        let ends = matches!(event, Event::KillRank | Event::KillAgent | Event::Drain);
        if ends && !agent.is_prepared {
            return false;
        }
        if event == Event::KillAll && !agents.iter().all(|agent| agent.is_prepared) {
            return false;
        }
        match (event, self.rng.choice(&agent.ranks)) {
            (Event::KillRank, Some(rank)) => send(*rank, Signal::KILL),
            (Event::KillAgent, _) => send(agent.pid, Signal::KILL),
            (Event::Drain, _) => send(agent.pid, Signal::TERM),
            (Event::Stop, Some(rank)) => {
                // One pause in ten can be longer than the peers wait.
                let longest = if self.rng.u8(..10) == 0 { 4_000 } else { 400 };
                let pause = Duration::from_millis(self.rng.u64(10..longest));
                self.stopped.push((*rank, Instant::now() + pause));
                send(*rank, Signal::STOP)
            }
            (Event::Scale, _) => {
                self.workers = self.rng.u32(1..=self.most_workers - self.spares);
                self.run.scale(self.workers).is_ok()
            }
            (Event::Spare, _) => {
                let most = u32::from(self.workers < self.most_workers);
                self.spares = self.rng.u32(..=most);
                let spares = self.spares;
                let edited = self
                    .run
                    .edit(|spec| spec["workers"]["spares"] = spares.into());
                edited.is_ok()
            }
            (Event::KillAll, _) => {
                let ranks = agents.iter().flat_map(|agent| &agent.ranks);
                // `any` would stop after the first process.
                ranks.filter(|rank| send(**rank, Signal::KILL)).count() > 0
            }
            (Event::KillInChange, Some(_)) => self.kill_in_change(),
            (Event::KillRank | Event::Stop | Event::KillInChange, None) => false,
        }
    }

    /// Kills a process, waits until the next generation forms, and kills another process within 60
    /// ms.
    fn kill_in_change(&mut self) -> bool {
        let prepared = |run: &LocalRun| -> Vec<u32> {
            let agents = run.agents().into_iter().filter(|agent| agent.is_prepared);
            agents.flat_map(|agent| agent.ranks).collect()
        };
        let generation = self.run.generation();
        let Some(first) = self.rng.choice(prepared(&self.run)) else {
            return false;
        };
        if !send(first, Signal::KILL) {
            return false;
        }
        let deadline = Instant::now() + Duration::from_secs(1);
        while self.run.generation() == generation && Instant::now() < deadline {
            self.pause(Duration::from_millis(1));
        }
        let moment = Duration::from_micros(self.rng.u64(..60_000));
        self.pause(moment);
        let second = self.rng.choice(prepared(&self.run));
        second.is_none_or(|second| send(second, Signal::KILL))
    }

    /// Waits for a while, and continues stopped processes whose pause ends meanwhile.
    pub(super) fn pause(&mut self, pause: Duration) {
        let until = Instant::now() + pause;
        while Instant::now() < until {
            let now = Instant::now();
            self.stopped.retain(|(pid, until)| {
                let over = *until <= now;
                let _ = over && send(*pid, Signal::CONT);
                !over
            });
            std::thread::sleep(pause.min(Duration::from_millis(5)));
        }
    }

    /// Waits until another step is committed. It may be an earlier one, after the death of all
    /// workers.
    pub(super) fn wait_for_a_step(&mut self) -> anyhow::Result<()> {
        let (before, deadline) = (self.run.step(), Instant::now() + PATIENCE);
        while [0, before].contains(&self.run.step()) {
            self.pause(Duration::from_millis(20));
            anyhow::ensure!(Instant::now() < deadline, "no step: {}", self.run.output());
        }
        Ok(())
    }

    pub(super) fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// The number of injected faults of each kind, for the log.
    pub(super) fn counts(&self) -> String {
        format!("{:?}", self.counts)
    }
}
