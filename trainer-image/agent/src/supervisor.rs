//! Starts the processes, waits for signals and ends, and ends as they did.
//!
//! All children are reaped in one place, orphans included: the agent is PID 1, so every process of
//! the pod that loses its parent becomes its child.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use roundhouse_contract::{ExitCode, TerminationMessage, termination::Reason};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, wait};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use crate::http::{self, Shared};
use crate::logs::{LastLines, Source, forward};
use crate::metrics::Metrics;
use crate::options::Options;
use crate::ranks;
use crate::verdict::{self, CAUSE_WINDOW, End, Ended};

/// How long the logs of processes that have ended are read on.
const LOG_DRAIN: Duration = Duration::from_secs(1);

/// Why the agent itself cannot go on.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("cannot use the run directory {path}: {source}")]
    RunDir {
        path: String,
        source: std::io::Error,
    },
    #[error("cannot start {program}: {source}; check the command after `--`")]
    Spawn {
        program: String,
        source: std::io::Error,
    },
    #[error("cannot listen on {address}: {source}; give another --http-address")]
    Listen {
        address: String,
        source: std::io::Error,
    },
    #[error("cannot wait for signals: {0}")]
    Signals(std::io::Error),
    #[error("cannot start the runtime: {0}")]
    Runtime(std::io::Error),
    #[error("cannot register metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Runs to the end and returns the exit code.
#[must_use]
pub fn run(options: &Options) -> i32 {
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
    workers.wait_for_all(options, &metrics).await?;
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
    async fn wait_for_all(&mut self, options: &Options, metrics: &Metrics) -> Result<(), Failure> {
        let mut children = signal(SignalKind::child()).map_err(Failure::Signals)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(Failure::Signals)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::Signals)?;
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
                _ = children.recv() => self.reap(metrics),
                _ = terminate.recv() => ask_at = Some(Instant::now()),
                _ = interrupt.recv() => ask_at = Some(Instant::now()),
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
        Ok(())
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

/// Idle OpenMP threads spin by default, which starves the others where processes share cores. The
/// user's word counts.
fn threads_that_sleep() -> Option<(&'static str, &'static str)> {
    const POLICY: &str = "OMP_WAIT_POLICY";
    std::env::var_os(POLICY)
        .is_none()
        .then_some((POLICY, "PASSIVE"))
}

fn start_process(
    options: &Options,
    local_rank: u32,
    last: &LastLines,
    readers: &mut Vec<JoinHandle<()>>,
) -> Result<i32, Failure> {
    let (program, arguments) = options
        .command
        .split_first()
        .ok_or_else(|| Failure::Spawn {
            program: "nothing".to_owned(),
            source: std::io::ErrorKind::InvalidInput.into(),
        })?;
    let mut child = Command::new(program)
        .args(arguments)
        .envs(options.launch_environment(local_rank).to_pairs())
        .envs(threads_that_sleep())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|source| Failure::Spawn {
            program: program.clone(),
            source,
        })?;
    let source = Source {
        worker_index: options.worker_index,
        local_rank,
        run_dir: options.run_dir.clone(),
    };
    if let Some(stdout) = child.stdout.take() {
        let source = source.clone();
        readers.push(std::thread::spawn(move || {
            forward(stdout, std::io::stdout(), &source, None)
        }));
    }
    if let Some(stderr) = child.stderr.take() {
        let last = last.clone();
        readers.push(std::thread::spawn(move || {
            forward(stderr, std::io::stderr(), &source, Some(&last))
        }));
    }
    // The handle is dropped, not waited on: `reap` collects by pid.
    i32::try_from(child.id()).map_err(|_| Failure::Spawn {
        program: program.clone(),
        source: std::io::ErrorKind::InvalidData.into(),
    })
}
