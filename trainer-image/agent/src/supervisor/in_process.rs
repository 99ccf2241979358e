//! The built-in trainer: its processes are started once, and stay for all generations.

use std::time::Duration;

use roundhouse_contract::environment::{COLLECTIVE_TIMEOUT_SECONDS, nccl};
use roundhouse_contract::{ExitCode, TerminationMessage, termination::Reason};
use rustix::process::Signal;
use tokio::time::Instant;

use super::failure::Failure;
use super::processes::Processes;
use super::signals::Signals;
use super::stall::{self, Watch};
use super::{at, grace};
use crate::metrics::Metrics;
use crate::options::Options;
use crate::ranks;
use crate::verdict::{self, CAUSE_WINDOW, Ended};
use crate::watchdog::{Stall, Watchdog};

/// Starts the processes and waits until all have ended.
pub(crate) async fn run(
    options: &Options,
    metrics: &Metrics,
    signals: &mut Signals,
) -> Result<(i32, TerminationMessage), Failure> {
    let mut processes = Processes::default();
    let limits = options.limits();
    processes.start(options, metrics, |local_rank| {
        let mut environment = options.launch_environment(local_rank).to_pairs();
        let timeout = limits.collective_timeout.as_secs();
        environment.insert(COLLECTIVE_TIMEOUT_SECONDS, timeout.to_string());
        // The user's word counts.
        let is_free = |(name, _): &(&str, String)| std::env::var_os(name).is_none();
        environment.extend(nccl::settings(timeout).into_iter().filter(is_free));
        environment
    })?;
    let mut worker = Worker {
        processes,
        watch: Watch::new(Watchdog::new(limits)),
        ended: Vec::new(),
        asked: false,
        stall: None,
    };
    worker.wait_for_all(options, metrics, signals).await;
    Ok(worker.verdict(options))
}

struct Worker {
    processes: Processes,
    watch: Watch,
    ended: Vec<Ended>,
    /// Whether the processes were asked to end: their ends explain nothing then.
    asked: bool,
    stall: Option<Stall>,
}

impl Worker {
    /// Until every process has ended, by itself or because it was asked.
    async fn wait_for_all(&mut self, options: &Options, metrics: &Metrics, signals: &mut Signals) {
        let mut grace = grace(options);
        let (mut ask_at, mut kill_at) = (None::<Instant>, None::<Instant>);
        let mut was_killed = false;
        // A process may have ended before the signal was listened to.
        self.reap(metrics);
        while !self.processes.are_gone() {
            if let Some(first) = verdict::cause(&self.ended)
                && kill_at.is_none()
                && ask_at.is_none()
            {
                let window = if first.end.is_collateral() {
                    CAUSE_WINDOW
                } else {
                    Duration::ZERO
                };
                ask_at = Some(Instant::now() + window);
            }
            tokio::select! {
                _ = signals.child.recv() => self.reap(metrics),
                _ = signals.terminate.recv() => ask_at = Some(Instant::now()),
                _ = signals.interrupt.recv() => ask_at = Some(Instant::now()),
                () = self.watch.tick(), if !self.asked => {
                    self.stall = self.watch.look(&self.processes, |local| ranks::status(&options.run_dir, local));
                    if self.stall.is_some() {
                        grace = grace.min(stall::GRACE);
                        ask_at = Some(Instant::now());
                    }
                }
                () = at(ask_at) => {
                    self.processes.signal_all(Signal::TERM);
                    self.asked = true;
                    (ask_at, kill_at) = (None, Some(Instant::now() + grace));
                }
                () = at(kill_at) => {
                    let left = self.processes.running().count();
                    eprintln!("[agent] {left} processes {}: SIGKILL", if was_killed {
                        "were killed and wait in the kernel, for a volume that does not answer"
                    } else {
                        "ignore SIGTERM"
                    });
                    was_killed = true;
                    self.processes.signal_all(Signal::KILL);
                    kill_at = Some(Instant::now() + grace);
                }
            }
        }
        self.processes.drain_logs().await;
    }

    fn reap(&mut self, metrics: &Metrics) {
        let on_request = self.asked;
        let ended = self.processes.reap(metrics).into_iter();
        self.ended.extend(ended.map(|(local_rank, end)| Ended {
            local_rank,
            end,
            on_request,
        }));
    }

    fn verdict(&self, options: &Options) -> (i32, TerminationMessage) {
        let status = |local_rank| ranks::status(&options.run_dir, local_rank);
        if let Some(stall) = &self.stall {
            return (ExitCode::Stalled.code(), stall.message());
        }
        if let Some(cause) = verdict::cause(&self.ended) {
            let local_rank = cause.local_rank;
            let status = status(local_rank);
            let generation = status.as_ref().map_or(0, |status| status.generation);
            let lines = &self.processes.last_lines;
            let message = verdict::explain(
                cause.end,
                ranks::failure(&options.run_dir, local_rank),
                status.as_ref(),
                lines.of(local_rank, generation).as_deref(),
            );
            return (cause.end.code(), message);
        }
        let first = (0..options.procs).find_map(status);
        if self.ended.iter().all(Ended::is_fine) {
            return (ExitCode::Done.code(), verdict::completed(first));
        }
        let mut message = verdict::completed(first);
        message.reason = Reason::Left;
        message.message = format!("left on request after step {}", message.step);
        (ExitCode::Left.code(), message)
    }
}
