//! Mode `InProcess`: the processes of the built-in trainer, or of a script that joins, stay for all
//! generations. The agent restarts a process that dies if its siblings hold the state (see
//! [`crate::in_place`]); otherwise the worker ends. In a sharded worker it restarts all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use roundhouse_contract::environment::LAST_SEEN_GENERATION;
use roundhouse_contract::{ExitCode, Phase, RankStatus, TerminationMessage, termination::Reason};
use tokio::time::{Instant, sleep};

use super::at;
use super::environment;
use super::failure::Failure;
use super::processes::{IfStuck, Processes, REST_GRACE};
use super::replica::{self, Replica};
use super::restarts::Restarts;
use super::signals::Signals;
use super::stall::{self, Watch};
use crate::metrics::Metrics;
use crate::nccl_log;
use crate::options::Options;
use crate::ranks;
use crate::say::say;
use crate::verdict::{self, CAUSE_WINDOW, End, Ended};
use crate::watchdog::{Stall, Watchdog};

mod lives;
mod saving;
mod sharded;

use lives::Lives;

/// Starts the processes and waits until all have ended.
pub(crate) async fn run(
    options: &Options,
    metrics: &Metrics,
    signals: &mut Signals,
) -> Result<(i32, TerminationMessage), Failure> {
    let mut worker = Worker {
        options,
        metrics,
        processes: Processes::default(),
        watch: Watch::new(Watchdog::new(options.limits()), &options.run_dir),
        restarts: Restarts::default(),
        replica: None,
        lives: Lives::of(options),
        ended: Vec::new(),
        unfinished: BTreeMap::new(),
        asked: false,
        stall: None,
        saving_since: None,
    };
    if worker.lives.is_none() {
        worker.start_all()?;
    }
    worker.wait_for_all(signals).await;
    Ok(worker.verdict())
}

struct Worker<'a> {
    options: &'a Options,
    metrics: &'a Metrics,
    processes: Processes,
    watch: Watch,
    restarts: Restarts,
    /// The processes of a sharded worker since they started together.
    replica: Option<Replica>,
    /// The lives of a replica of several pods.
    lives: Option<Lives>,
    /// Processes that have ended and are not restarted.
    ended: Vec<Ended>,
    /// Errors of script processes that exited with code 0 before their work was
    /// done, by local rank.
    unfinished: BTreeMap<u32, TerminationMessage>,
    /// Whether the processes were asked to end. Then their exits are not failures.
    asked: bool,
    stall: Option<Stall>,
    /// When the agent began to wait for processes to save their parts; `None` if it does not wait.
    saving_since: Option<Instant>,
}

impl Worker<'_> {
    /// Waits until every process has ended, by itself or on request.
    async fn wait_for_all(&mut self, signals: &mut Signals) {
        let mut grace = self.options.grace();
        let (mut ask_at, mut kill_at) = (None::<Instant>, None::<Instant>);
        let mut was_killed = false;
        // A process may have ended before the signal handler was installed.
        self.reap();
        while !self.processes.are_gone() || self.restarts_replica() || self.awaits_life() {
            self.report_replica().await;
            if let Some(first) = verdict::cause(&self.ended)
                && kill_at.is_none()
                && ask_at.is_none()
            {
                let window = if first.end.is_peer_failure() {
                    CAUSE_WINDOW
                } else {
                    Duration::ZERO
                };
                ask_at = Some(Instant::now() + window);
            }
            tokio::select! {
                _ = signals.child.recv() => self.reap(),
                _ = signals.terminate.recv() => ask_at = Some(Instant::now()),
                _ = signals.interrupt.recv() => ask_at = Some(Instant::now()),
                () = self.watch.tick(), if !self.asked => {
                    let run_dir = &self.options.run_dir;
                    nccl_log::keep_small(run_dir, self.processes.running().map(|(_, local)| local));
                    self.stall = self.watch.look(&self.processes, |local| ranks::status(run_dir, local));
                    if self.stall.is_some() {
                        grace = grace.min(stall::GRACE);
                        ask_at = Some(Instant::now());
                    }
                }
                () = at(self.restarts.due()), if !self.asked && self.may_restart() => {
                    if self.replica.is_some() {
                        self.restart_replica().await;
                    } else {
                        self.restart();
                    }
                }
                () = sleep(lives::POLL_INTERVAL), if self.lives.is_some() && !self.asked => {
                    self.follow_lives().await;
                }
                () = at(ask_at) => {
                    self.give_up_restarts();
                    self.processes.ask_to_leave();
                    self.asked = true;
                    (ask_at, kill_at) = (None, Some(Instant::now() + grace));
                }
                () = at(kill_at) => {
                    let left = self.processes.running().count();
                    say(&format!("{left} processes {}: sending SIGKILL", if was_killed {
                        "were killed but wait in the kernel for a volume that does not answer"
                    } else {
                        "ignore SIGTERM"
                    }));
                    was_killed = true;
                    self.processes.kill_all();
                    kill_at = Some(Instant::now() + grace);
                }
            }
        }
        self.ended.extend(self.restarts.give_up());
        let now = Instant::now();
        let until = match kill_at {
            Some(_) if was_killed => now,
            Some(kill_at) => kill_at,
            None => now + REST_GRACE.min(grace),
        };
        self.processes.clear(until, IfStuck::GiveUp).await;
        self.processes.drain_logs().await;
    }

    /// Cancels restarts that are due. What has waited for one has ended for good. In a replica of
    /// several pods, processes that lost one in another pod have not failed.
    fn give_up_restarts(&mut self) {
        let mut waiting = self.restarts.give_up();
        if self.lives.is_some() {
            waiting.retain(|ended| !ended.on_request && !ended.end.is_peer_failure());
        }
        self.ended.extend(waiting);
    }

    /// Collects processes that have ended and decides which of them to restart.
    fn reap(&mut self) {
        let mut all = self.processes.reap(self.metrics);
        if self.replica.is_some() {
            all.sort_by_key(|(_, end)| replica::suspicion(*end));
        }
        for (local_rank, end) in all {
            let end = self.judged(local_rank, end);
            let killed = self.replica.as_ref();
            let killed = killed.is_some_and(|it| it.has_killed(local_rank, end));
            if self.ends_with_life(local_rank, end, killed) {
                continue;
            }
            let ended = Ended {
                local_rank,
                end,
                on_request: self.asked || killed,
            };
            let restarts_with_others = killed && self.restarts.due().is_some();
            let may_restart = !self.asked && self.ended.is_empty();
            if restarts_with_others || may_restart && self.accepts(&ended) {
                self.restarts.put_off(ended, self.step());
            } else {
                self.ended.extend(self.restarts.give_up());
                self.ended.push(ended);
            }
            if !self.asked && replica::breaks_replica(end) {
                self.end_replica(local_rank, killed);
            }
        }
    }

    /// Judges the end of a process. A script that never joined, or left its loop early, has not
    /// done its work, even if its exit code is 0.
    fn judged(&mut self, local_rank: u32, end: End) -> End {
        if self.asked || !self.options.runs_script() {
            return end;
        }
        let status = self.status(local_rank);
        let Some(message) = verdict::unfinished(end, status.as_ref()) else {
            return end;
        };
        self.unfinished.insert(local_rank, message);
        End::Exited(ExitCode::ConfigInvalid.code())
    }

    /// Restarts the processes whose pause is over.
    fn restart(&mut self) {
        let waiting = self.restarts.give_up().into_iter();
        let causes: Vec<_> = waiting.map(|ended| (self.explain(&ended), ended)).collect();
        for (_, ended) in &causes {
            if let Some(status) = self.status(ended.local_rank) {
                self.restarts.has_formed(ended.local_rank, &status);
            }
        }
        self.restarts.begin(self.step(), &causes);
        self.restarts.keep(self.options);
        for (_, ended) in causes {
            let local_rank = ended.local_rank;
            let former = self.restarts.last_seen_generation(local_rank);
            self.metrics.count_restart();
            ranks::forget(&self.options.run_dir, local_rank);
            self.processes.last_lines.forget_one(local_rank);
            self.watch.forget_one(local_rank);
            let mut environment = environment::of_process(self.options, local_rank);
            environment.insert(LAST_SEEN_GENERATION, former.to_string());
            let started =
                self.processes
                    .start_one(self.options, self.metrics, environment, local_rank);
            if let Err(failure) = started {
                say(&failure.to_string());
                self.ended.push(ended);
            }
        }
    }

    /// Returns the last statuses of the running processes.
    fn siblings(&self) -> Vec<RankStatus> {
        let running = self.processes.running();
        running
            .filter_map(|(_, local_rank)| self.status(local_rank))
            .collect()
    }

    /// Returns the highest step that any process has reported.
    fn step(&self) -> u64 {
        let all = (0..self.options.procs).filter_map(|local_rank| self.status(local_rank));
        all.map(|status| status.step).max().unwrap_or(0)
    }

    fn status(&self, local_rank: u32) -> Option<RankStatus> {
        let last = self
            .replica
            .as_ref()
            .and_then(|it| it.last_status(local_rank));
        last.cloned()
            .or_else(|| ranks::status(&self.options.run_dir, local_rank))
    }

    /// Returns the reason why a process ended, from its own report if there is one.
    fn explain(&self, ended: &Ended) -> TerminationMessage {
        let local_rank = ended.local_rank;
        if let Some(message) = self.unfinished.get(&local_rank) {
            return message.clone();
        }
        let status = self.status(local_rank);
        let generation = status.as_ref().map_or(0, |status| status.generation);
        let own_words = ranks::failure(&self.options.run_dir, local_rank);
        let is_unreported_script = own_words.is_none() && self.options.runs_script();
        let message = verdict::explain(
            ended.end,
            own_words,
            status.as_ref(),
            self.processes
                .last_lines
                .of(local_rank, generation)
                .as_deref(),
            self.processes.has_memory(),
        );
        if is_unreported_script {
            verdict::before_join(message, status.as_ref())
        } else {
            message
        }
    }

    fn verdict(&self) -> (i32, TerminationMessage) {
        if let Some(stall) = &self.stall {
            return (ExitCode::Stalled.code(), stall.message());
        }
        if let Some(cause) = verdict::cause(&self.ended) {
            let mut message = self.explain(cause);
            if let Some(words) = self.restarts.words() {
                message.message = format!("{words}; {}", message.message);
            }
            return (cause.end.code(), message);
        }
        let first = (0..self.options.procs).find_map(|local_rank| self.status(local_rank));
        // A script may exit with code 0 on SIGTERM in the middle of its training.
        let is_done = |status: &RankStatus| status.phase == Phase::Done;
        let is_unfinished = self.options.runs_script() && !first.as_ref().is_some_and(is_done);
        // An agent that waited for a life had no process.
        let has_left = self.asked && (is_unfinished || self.ended.is_empty());
        if self.ended.iter().all(Ended::is_fine) && !has_left {
            return (ExitCode::Done.code(), verdict::completed(first));
        }
        let mut message = verdict::completed(first);
        message.reason = Reason::Left;
        message.message = format!("left on request after step {}", message.step);
        (ExitCode::Left.code(), message)
    }
}
