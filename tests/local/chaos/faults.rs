//! The faults: each is drawn, and strikes processes of a run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fastrand::Rng;
use roundhouse_tests::local::LocalRun;
use roundhouse_tests::processes::send;
use rustix::process::Signal;

use super::MOST_WORKERS;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Event {
    KillRank,
    KillAgent,
    /// All processes of all workers within a millisecond: what no checkpoint holds is trained again.
    KillAll,
    /// A process dies a moment after the workers changed, which is while they connect or the state moves.
    KillInChange,
    Drain,
    Stop,
    Scale,
    /// A spare more or less, which replaces the next member that is lost.
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
    stopped: Vec<(u32, Instant)>,
    counts: BTreeMap<Event, u64>,
}

impl Chaos {
    pub(super) fn of(run: LocalRun, seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            run,
            stopped: Vec::new(),
            counts: BTreeMap::new(),
        }
    }

    /// Draws an event; whether it could happen.
    pub(super) fn strike(&mut self) -> bool {
        let event = self.rng.choice(EVENTS_BY_WEIGHT).unwrap();
        let happens = self.happens(event);
        *self.counts.entry(event).or_default() += u64::from(happens);
        happens
    }

    fn happens(&mut self, event: Event) -> bool {
        let agents = self.run.agents();
        let Some(agent) = self.rng.choice(&agents) else {
            return false;
        };
        // A worker that dies before it is prepared is started again after 10 s, 20 s, 40 s: nothing would happen then.
        let ends = matches!(event, Event::KillRank | Event::KillAgent | Event::Drain);
        if ends && !agent.is_prepared {
            return false;
        }
        if event == Event::KillAll && !agents.iter().all(|agent| agent.is_prepared) {
            return false;
        }
        match (event, agent.ranks.first()) {
            (Event::KillRank, Some(rank)) => send(*rank, Signal::KILL),
            (Event::KillAgent, _) => send(agent.pid, Signal::KILL),
            (Event::Drain, _) => send(agent.pid, Signal::TERM),
            (Event::Stop, Some(rank)) => {
                // Now and then for longer than its peers wait.
                let longest = if self.rng.u8(..10) == 0 { 4_000 } else { 400 };
                let pause = Duration::from_millis(self.rng.u64(10..longest));
                self.stopped.push((*rank, Instant::now() + pause));
                send(*rank, Signal::STOP)
            }
            (Event::Scale, _) => {
                let workers = self.rng.u32(1..=MOST_WORKERS);
                self.run.scale(workers).is_ok()
            }
            (Event::Spare, _) => {
                let spares = self.rng.u32(..=1);
                let edited = self
                    .run
                    .edit(|spec| spec["workers"]["spares"] = spares.into());
                edited.is_ok()
            }
            (Event::KillAll, _) => {
                let ranks = agents.iter().flat_map(|agent| &agent.ranks);
                // Not `any`, which would stop at the first.
                ranks.filter(|rank| send(**rank, Signal::KILL)).count() > 0
            }
            (Event::KillInChange, Some(_)) => self.kill_in_change(),
            (Event::KillRank | Event::Stop | Event::KillInChange, None) => false,
        }
    }

    /// Kills one process, waits until another generation forms, and kills one more at some moment of it.
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

    /// Lets time pass, and those continue whose pause is over.
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

    pub(super) fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// How often each fault has struck.
    pub(super) fn counts(&self) -> String {
        format!("{:?}", self.counts)
    }
}
