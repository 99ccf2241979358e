//! Traces of training steps on request. The agent writes a [`TraceRequest`] to the run directory.
//! Kineto then records the next steps in the Chrome trace format, which Perfetto opens.
//!
//! A recording slows steps down and takes memory, so it is short. It ends after the requested
//! number of steps, after [`MOST_OPERATIONS`], after [`MOST_TIME`], or before an evaluation or the
//! end of training, whichever comes first. The training thread stops the recording, which can delay
//! peers by a second. Another thread writes the file.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use roundhouse_c10d::{Event, Recording, Trace};
use roundhouse_contract::{TraceRequest, paths};
use roundhouse_report::{say, say_error};
use tch::Device;

/// Interval between two searches of the run directory for a request.
const INTERVAL: Duration = Duration::from_millis(200);
/// A recording ends with the first pass over a micro-batch after this number of operations. Kineto
/// needs up to 10 µs and 240 bytes of the file for each operation: up to 1 s and 24 MB.
const MOST_OPERATIONS: u64 = 100_000;
/// A recording ends with the first pass after this time.
const MOST_TIME: Duration = Duration::from_secs(5);
/// Time between the end of a recording and the next one.
const PAUSE: Duration = Duration::from_mins(1);

/// Records steps on request. An error ends the trace, never the training.
#[derive(Debug)]
pub struct Tracer {
    request: Option<PathBuf>,
    device: Device,
    look_at: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    Idle,
    Recording(Running),
    Writing(JoinHandle<()>),
}

#[derive(Debug)]
struct Running {
    trace: Trace,
    result: PathBuf,
    num_steps_left: u32,
    until: Instant,
}

impl Running {
    fn is_over(&self, now: Instant) -> bool {
        self.num_steps_left == 0
            || self.trace.num_operations() >= MOST_OPERATIONS
            || now >= self.until
    }
}

impl Tracer {
    /// Watches a run directory for requests. Without a directory it records nothing.
    #[must_use]
    pub fn new(run_dir: Option<&Path>, local_rank: u32, device: Device) -> Self {
        Self {
            request: run_dir.map(|run_dir| paths::rank_trace_request(run_dir, local_rank)),
            device,
            look_at: Instant::now(),
            state: State::Idle,
        }
    }

    /// Call this when a training step begins.
    pub fn step_begins(&mut self) {
        self.step_begins_at(Instant::now());
    }

    /// Call this when a pass over a micro-batch has ended.
    pub fn pass_ends(&mut self) {
        self.pass_ends_at(Instant::now());
    }

    /// Call this when a training step has ended.
    pub fn step_ends(&mut self) {
        self.step_ends_at(Instant::now());
    }

    /// Call this before anything other than a training step. A recording ends with its steps so
    /// far.
    pub fn steps_end(&mut self) {
        if let State::Recording(running) = &mut self.state {
            running.num_steps_left = 0;
            self.end_if_over(Instant::now());
        }
    }

    /// Call this when a training step has failed. A recording is discarded.
    pub fn step_fails(&mut self) {
        if let State::Recording(_) = &self.state {
            self.state = State::Idle;
            self.refuse("a step in it has failed");
        }
    }

    fn step_begins_at(&mut self, now: Instant) {
        if now < self.look_at || self.is_busy() {
            return;
        }
        self.look_at = now + INTERVAL;
        let Some(text) = self
            .request
            .as_ref()
            .and_then(|path| std::fs::read_to_string(path).ok())
        else {
            return;
        };
        match begin(&text, self.device, now) {
            Ok(running) => self.state = State::Recording(running),
            Err(reason) => self.refuse(&reason),
        }
    }

    fn step_ends_at(&mut self, now: Instant) {
        if let State::Recording(running) = &mut self.state {
            running.num_steps_left = running.num_steps_left.saturating_sub(1);
            self.end_if_over(now);
        }
    }

    fn pass_ends_at(&mut self, now: Instant) {
        self.end_if_over(now);
    }

    /// Whether a recording is running or being written.
    fn is_busy(&self) -> bool {
        match &self.state {
            State::Idle => false,
            State::Recording(_) => true,
            State::Writing(thread) => !thread.is_finished(),
        }
    }

    fn end_if_over(&mut self, now: Instant) {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Recording(running) if running.is_over(now) => self.end(running),
            state => self.state = state,
        }
    }

    fn end(&mut self, running: Running) {
        let Running { trace, result, .. } = running;
        let Some(request) = self.request.clone() else {
            return;
        };
        // Wait for the device: the trace would lack operations that have not run yet.
        let started = Event::record(self.device)
            .and_then(|launched| launched.wait())
            .and_then(|()| trace.stop())
            .map_err(|error| error.to_string())
            .and_then(|recording| {
                std::thread::Builder::new()
                    .name("trace".to_owned())
                    .spawn(move || finish(recording, &result, &request))
                    .map_err(|error| error.to_string())
            });
        self.look_at = Instant::now() + PAUSE;
        match started {
            Ok(thread) => self.state = State::Writing(thread),
            Err(reason) => self.refuse(&reason),
        }
    }

    /// Removes the request without a trace, so that the agent can request one again.
    fn refuse(&mut self, reason: &str) {
        self.look_at = Instant::now() + PAUSE;
        say_error(&format!("no trace: {reason}"));
        if let Some(request) = &self.request {
            let _ = std::fs::remove_file(request);
        }
    }
}

fn begin(request: &str, device: Device, now: Instant) -> Result<Running, String> {
    let TraceRequest { num_steps, result } =
        serde_json::from_str(request).map_err(|error| format!("the request: {error}"))?;
    let trace = Trace::start(device).map_err(|error| error.to_string())?;
    Ok(Running {
        trace,
        result,
        num_steps_left: num_steps.clamp(1, TraceRequest::MOST_STEPS),
        until: now + MOST_TIME,
    })
}

/// Writes the trace, then removes the request.
fn finish(recording: Recording, result: &Path, request: &Path) {
    match write(recording, result) {
        Ok(()) => say(&format!("a trace is in {}", result.display())),
        Err(reason) => say_error(&format!("no trace: {reason}")),
    }
    let _ = std::fs::remove_file(request);
}

/// Writes the file atomically: readers see the complete file or no file.
fn write(recording: Recording, result: &Path) -> Result<(), String> {
    let partial = result.with_extension("partial");
    let written = recording
        .write(&partial)
        .map_err(|error| error.to_string())
        .and_then(|()| {
            std::fs::rename(&partial, result)
                .map_err(|error| format!("{}: {error}", result.display()))
        });
    if written.is_err() {
        let _ = std::fs::remove_file(partial);
    }
    written
}

#[cfg(test)]
mod tests;
