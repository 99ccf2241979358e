//! A trace of some steps on request: the agent leaves a file in the run directory that says of how many, and the process
//! leaves the trace there. It is recorded by Kineto, in the format of Chrome that Perfetto opens.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use roundhouse_c10d::Trace;
use roundhouse_contract::paths;
use roundhouse_member::report::{say, say_error};
use tch::Device;

/// How often a request is looked for.
const INTERVAL: Duration = Duration::from_millis(200);

/// Records steps when it is asked to. An error ends the trace and never training.
#[derive(Debug)]
pub struct Tracer {
    files: Option<Files>,
    device: Device,
    look_at: Instant,
    running: Option<Running>,
}

#[derive(Debug)]
struct Files {
    request: PathBuf,
    result: PathBuf,
}

#[derive(Debug)]
struct Running {
    trace: Trace,
    num_left: u32,
}

impl Tracer {
    /// Looks for requests in a run directory; without one there are none.
    #[must_use]
    pub fn new(run_dir: Option<&Path>, local_rank: u32, device: Device) -> Self {
        let files = run_dir.map(|run_dir| Files {
            request: paths::rank_trace_request(run_dir, local_rank),
            result: paths::rank_trace(run_dir, local_rank),
        });
        Self {
            files,
            device,
            look_at: Instant::now(),
            running: None,
        }
    }

    /// A step begins.
    pub fn step_begins(&mut self) {
        let Some(files) = &self.files else { return };
        if self.running.is_some() || Instant::now() < self.look_at {
            return;
        }
        self.look_at = Instant::now() + INTERVAL;
        let Ok(request) = std::fs::read_to_string(&files.request) else {
            return;
        };
        // Once only, whatever comes of it.
        let _ = std::fs::remove_file(&files.request);
        let num_left = request.trim().parse().unwrap_or(0);
        if num_left == 0 {
            return;
        }
        match Trace::start(self.device) {
            Ok(trace) => self.running = Some(Running { trace, num_left }),
            Err(error) => say_error(&format!("no trace: {error}")),
        }
    }

    /// A step has ended; a trace of one that failed is dropped.
    pub fn step_ends(&mut self, has_failed: bool) {
        let Some(mut running) = self.running.take() else {
            return;
        };
        if has_failed {
            say_error("no trace: a step in it has failed");
            return;
        }
        running.num_left -= 1;
        if running.num_left > 0 {
            self.running = Some(running);
            return;
        }
        if let Some(files) = &self.files {
            match write(running.trace, &files.result) {
                Ok(()) => say(&format!("a trace is in {}", files.result.display())),
                Err(reason) => say_error(&format!("no trace: {reason}")),
            }
        }
    }
}

/// As a whole or not at all.
fn write(trace: Trace, result: &Path) -> Result<(), String> {
    let partial = result.with_extension("partial");
    trace.stop(&partial).map_err(|error| error.to_string())?;
    std::fs::rename(&partial, result).map_err(|error| format!("{}: {error}", result.display()))
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor};

    use super::*;

    fn step(tracer: &mut Tracer, has_failed: bool) {
        tracer.look_at = Instant::now();
        tracer.step_begins();
        let ones = Tensor::ones([8, 8], (Kind::Float, Device::Cpu));
        let _ = ones.matmul(&ones);
        tracer.step_ends(has_failed);
    }

    // One test, because a process has one trace at a time.
    #[test]
    fn as_many_steps_as_are_asked_for_are_recorded_once() {
        let root = tempfile::tempdir().unwrap();
        let mut tracer = Tracer::new(Some(root.path()), 0, Device::Cpu);
        let request = paths::rank_trace_request(root.path(), 0);
        let result = paths::rank_trace(root.path(), 0);
        step(&mut tracer, false);
        assert!(!result.exists(), "nobody has asked");
        std::fs::write(&request, "2").unwrap();
        step(&mut tracer, false);
        assert!(!request.exists() && !result.exists());
        step(&mut tracer, false);
        let text = std::fs::read_to_string(&result).unwrap();
        let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let products = events
            .iter()
            .filter(|event| event["name"] == "aten::matmul");
        assert_eq!(products.count(), 2, "one of each step");
        std::fs::remove_file(&result).unwrap();
        for (asked, has_failed) in [("1", true), ("none", false)] {
            std::fs::write(&request, asked).unwrap();
            step(&mut tracer, has_failed);
            assert!(!request.exists() && !result.exists(), "{asked}");
        }
    }
}
