//! Starts the processes, waits for signals and ends, and ends as they did.
//!
//! All children are reaped in one place, orphans included: the agent is PID 1, so every process of
//! the pod that loses its parent becomes its child.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use roundhouse_contract::{ExitCode, TerminationMessage, environment, termination::Reason};
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process_group, set_parent_process_death_signal, wait,
};
use tokio::time::{Instant, sleep_until};

use crate::http::{self, Shared};
use crate::logs::LastLines;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::ranks;
use crate::verdict::{self, CAUSE_WINDOW, End, Ended};

mod failure;
mod process;
mod signals;

use failure::Failure;
use process::start_process;
use signals::Signals;

/// How long the logs of processes that have ended are read on.
const LOG_DRAIN: Duration = Duration::from_secs(1);

/// Runs to the end and returns the exit code.
#[must_use]
pub fn run(options: &Options) -> i32 {
    if std::env::var_os(environment::END_WITH_PARENT).is_some() {
        // Who started this one is gone without a word: its processes are asked to end, too.
        let _ = set_parent_process_death_signal(Some(Signal::TERM));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(supervise(options)),
        Err(error) => Err(Failure::Runtime(error)),
    };
    let (code, message) = result.unwrap_or_else(|failure| {
        let message = TerminationMessage {
            reason: Reason::InternalError,
            rank: None,
            generation: 0,
            step: 0,
            message: failure.to_string(),
            progress: None,
        };
        (ExitCode::Internal.code(), message)
    });
    eprintln!("[agent] {}: {}", message.reason.as_str(), message.message);
    if let Ok(json) = message.to_json() {
        // The file is the kubelet's; outside a pod there may be none.
        let _ = std::fs::write(&options.termination_log, json);
    }
    code
}

async fn supervise(options: &Options) -> Result<(i32, TerminationMessage), Failure> {
    // First of all: the kernel drops signals that PID 1 does not handle.
    let mut signals = Signals::listen()?;
    ranks::prepare(&options.run_dir, options.procs).map_err(|source| Failure::RunDir {
        path: options.run_dir.display().to_string(),
        source,
    })?;
    let metrics = Arc::new(Metrics::new(options.procs)?);
    let listener = http::bind(options.http_address)
        .await
        .map_err(|source| Failure::Listen {
            address: options.http_address.to_string(),
            source,
        })?;
    if let Ok(address) = listener.local_addr() {
        eprintln!("[agent] serving http on {address}");
    }
    let shared = Shared {
        options: Arc::new(options.clone()),
        metrics: Arc::clone(&metrics),
    };
    tokio::spawn(async move { axum::serve(listener, http::router(shared)).await });

    let mut workers = Workers::start(options, &metrics)?;
    workers.wait_for_all(options, &metrics, &mut signals).await;
    Ok(workers.verdict(options))
}

struct Workers {
    /// Running processes by pid; each leads a process group of its own.
    running: BTreeMap<i32, u32>,
    ended: Vec<Ended>,
    last_lines: LastLines,
    readers: Vec<JoinHandle<()>>,
    /// Whether the processes were asked to end: their ends explain nothing then.
    asked: bool,
}

impl Workers {
    fn start(options: &Options, metrics: &Metrics) -> Result<Self, Failure> {
        let mut workers = Self {
            running: BTreeMap::new(),
            ended: Vec::new(),
            last_lines: LastLines::default(),
            readers: Vec::new(),
            asked: false,
        };
        for local_rank in 0..options.procs {
            match start_process(
                options,
                local_rank,
                &workers.last_lines,
                &mut workers.readers,
            ) {
                Ok(pid) => {
                    workers.running.insert(pid, local_rank);
                    metrics.set_up(local_rank, true);
                }
                Err(failure) => {
                    workers.signal_all(Signal::KILL);
                    return Err(failure);
                }
            }
        }
        Ok(workers)
    }

    /// Until every process has ended, by itself or because it was asked.
    async fn wait_for_all(&mut self, options: &Options, metrics: &Metrics, signals: &mut Signals) {
        let grace = Duration::from_secs(options.grace_seconds);
        let (mut ask_at, mut kill_at) = (None::<Instant>, None::<Instant>);
        // A process may have ended before the signal was listened to.
        self.reap(metrics);
        while !self.running.is_empty() {
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
                () = at(ask_at) => {
                    self.signal_all(Signal::TERM);
                    self.asked = true;
                    (ask_at, kill_at) = (None, Some(Instant::now() + grace));
                }
                () = at(kill_at) => {
                    eprintln!("[agent] {} processes ignore SIGTERM: SIGKILL", self.running.len());
                    self.signal_all(Signal::KILL);
                    kill_at = Some(Instant::now() + grace);
                }
            }
        }
        self.drain_logs().await;
    }

    /// Gives the last log lines time to arrive; a stranger that still holds a pipe is not waited for.
    async fn drain_logs(&self) {
        let deadline = Instant::now() + LOG_DRAIN;
        while !self.readers.iter().all(JoinHandle::is_finished) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Collects everything that has ended, our processes and strangers alike.
    fn reap(&mut self, metrics: &Metrics) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let Some(local_rank) = self.running.remove(&pid.as_raw_nonzero().get()) else {
                continue;
            };
            let end = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => End::Exited(code),
                (None, Some(signal)) => End::Signaled(signal),
                (None, None) => continue,
            };
            metrics.set_up(local_rank, false);
            self.ended.push(Ended {
                local_rank,
                end,
                on_request: self.asked,
            });
        }
    }

    fn signal_all(&self, signal: Signal) {
        for pid in self.running.keys().filter_map(|pid| Pid::from_raw(*pid)) {
            // It may have ended in this moment.
            let _ = kill_process_group(pid, signal);
        }
    }

    fn verdict(&self, options: &Options) -> (i32, TerminationMessage) {
        let status = |local_rank| ranks::status(&options.run_dir, local_rank);
        if let Some(cause) = verdict::cause(&self.ended) {
            let local_rank = cause.local_rank;
            let message = verdict::explain(
                cause.end,
                ranks::failure(&options.run_dir, local_rank),
                status(local_rank).as_ref(),
                self.last_lines.of(local_rank).as_deref(),
            );
            return (cause.end.code(), message);
        }
        if self.ended.iter().all(|ended| ended.end == End::Exited(0)) {
            let first = (0..options.procs).find_map(status);
            return (ExitCode::Done.code(), verdict::completed(first));
        }
        let mut message = verdict::completed((0..options.procs).find_map(status));
        message.reason = Reason::Left;
        message.message = format!("left on request after step {}", message.step);
        (ExitCode::Left.code(), message)
    }
}

/// Waits until a moment; for ever if there is none.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
