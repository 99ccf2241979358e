//! Runs the agent: handles signals, serves HTTP, supervises the processes in the way of the mode,
//! and writes the termination message.

use std::sync::Arc;

use roundhouse_bounded_http::Limits;
use roundhouse_contract::{ExitCode, Mode, Reason, TerminationMessage, paths};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use tokio::time::{Instant, sleep_until};

use crate::http::{self, Shared, server};
use crate::metrics::Metrics;
use crate::options::Options;
use crate::ranks;
use crate::say::say;

mod environment;
mod failure;
mod in_process;
mod inherited;
mod memory;
mod process;
mod processes;
mod replica;
mod restart;
mod restarts;
mod signals;
mod stall;
mod statuses;
mod user;

use failure::Failure;
use processes::{IfStuck, Processes};
use signals::Signals;

pub use environment::device_settings;
pub(crate) use failure::is_text_without_interpreter;
pub(crate) use process::parent_to_end_with;

/// Runs until the worker ends and returns the exit code.
#[must_use]
pub fn run(options: &Options) -> i32 {
    if let Err(error) = roundhouse_process_tree::adopt_orphans() {
        say(&format!("cannot adopt orphaned processes: {error}"));
    }
    if let Some(parent) = process::parent_to_end_with() {
        // If the parent process dies without a request, the kernel sends SIGTERM to this agent.
        let _ = set_parent_process_death_signal(Some(Signal::TERM));
        if getppid() != Some(parent) {
            // The parent was gone before the call; no process has been started.
            return ExitCode::Left.code();
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(supervise(options)),
        Err(error) => Err(Failure::Runtime(error)),
    };
    http::remove_traces();
    let (code, message) = result.unwrap_or_else(|failure| {
        let code = failure.exit_code(options.runs_script());
        let message = TerminationMessage {
            reason: Reason::of(code),
            rank: None,
            generation: 0,
            step: 0,
            message: failure.to_string(),
            progress: None,
        };
        (code.code(), message)
    });
    say(&format!("{}: {}", message.reason.as_str(), message.message));
    if let Ok(json) = message.to_json() {
        // The kubelet creates the file. Outside a pod it may not exist.
        let _ = std::fs::write(&options.termination_log, json);
    }
    code
}

async fn supervise(options: &Options) -> Result<(i32, TerminationMessage), Failure> {
    // This must come first: the kernel drops signals that PID 1 does not handle.
    let mut signals = Signals::listen()?;
    inherited::prepare(options.mode);
    ranks::prepare(&options.run_dir, options.procs).map_err(|source| Failure::RunDir {
        path: options.run_dir.display().to_string(),
        source,
    })?;
    let metrics = Arc::new(Metrics::new(options.procs)?);
    // This must come before the HTTP server reports that the worker is ready.
    let script =
        (options.mode == Mode::Restart).then(|| restart::Worker::enter_lobby(options, &metrics));
    let shared = Shared {
        options: Arc::new(options.clone()),
        metrics: Arc::clone(&metrics),
    };
    let router = http::router(shared);
    let address = server::start("http", options.http_address, Limits::default(), router)
        .await
        .map_err(|source| Failure::Listen {
            address: options.http_address,
            source,
        })?;
    say(&format!("serving http on {address}"));
    // A local executor, which assigns no port, reads the address here to check that the agent is
    // alive.
    let _ = std::fs::write(paths::agent_address(&options.run_dir), address.to_string());

    let result = match script {
        Some(worker) => worker.run(&mut signals).await,
        None => in_process::run(options, &metrics, &mut signals).await,
    };
    if result.is_err() {
        // Some of several processes may have started already.
        let mut rest = Processes::default();
        rest.clear(Instant::now(), IfStuck::GiveUp).await;
    }
    result
}

/// Returns the exit code and the message for a script that cannot be started.
pub(crate) fn cannot_start(program: &str, source: std::io::Error) -> (ExitCode, String) {
    let failure = Failure::Spawn {
        program: program.to_owned(),
        source,
    };
    (failure.exit_code(true), failure.to_string())
}

/// Waits until a moment; indefinitely if there is none.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
