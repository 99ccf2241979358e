//! Traces of training steps on request. The agent leaves a [`TraceRequest`] in the run directory; Kineto records the
//! next steps in the format of Chrome, which Perfetto opens.
//!
//! A recording slows the steps down and takes memory, so it is short: it ends after the steps that were asked for,
//! after [`MOST_OPERATIONS`], after [`MOST_TIME`], or before anything else than a training step, whichever comes first.
//! The thread that trains stops the recording, for which peers may wait a second. Another thread writes the file.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use roundhouse_c10d::{Event, Recording, Trace};
use roundhouse_contract::{TraceRequest, paths};
use roundhouse_member::report::{say, say_error};
use tch::Device;

/// How often the run directory is searched for a request.
const INTERVAL: Duration = Duration::from_millis(200);
/// A recording ends with the first pass over a micro-batch after so many operations. Kineto needs up to 10 µs for each
/// when the recording stops, and 240 bytes of the file: a second and 24 MB.
const MOST_OPERATIONS: u64 = 100_000;
/// A recording ends with the first pass after this time.
const MOST_TIME: Duration = Duration::from_secs(5);
/// Time between the end of a recording and the next one.
const PAUSE: Duration = Duration::from_mins(1);

/// Records steps when it is asked to. An error ends the trace, never the training.
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
    /// Looks for requests in a run directory. Without one, nothing is recorded.
    #[must_use]
    pub fn new(run_dir: Option<&Path>, local_rank: u32, device: Device) -> Self {
        Self {
            request: run_dir.map(|run_dir| paths::rank_trace_request(run_dir, local_rank)),
            device,
            look_at: Instant::now(),
            state: State::Idle,
        }
    }

    /// A training step begins.
    pub fn step_begins(&mut self) {
        self.step_begins_at(Instant::now());
    }

    /// A pass over a micro-batch has ended.
    pub fn pass_ends(&mut self) {
        self.pass_ends_at(Instant::now());
    }

    /// A training step has ended.
    pub fn step_ends(&mut self) {
        self.step_ends_at(Instant::now());
    }

    /// Something else than a training step comes now. A recording ends with the steps that it has.
    pub fn steps_end(&mut self) {
        if let State::Recording(running) = &mut self.state {
            running.num_steps_left = 0;
            self.end_if_over(Instant::now());
        }
    }

    /// A training step has failed. A recording is dropped.
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

    /// Whether a recording is being made or written.
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
        // What the device has not done yet would be missing.
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

    /// There will be no trace: the agent may ask again.
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

/// Readers see the whole file or none.
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
