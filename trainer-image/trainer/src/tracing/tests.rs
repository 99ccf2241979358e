use tch::{Kind, Tensor};
use tempfile::TempDir;

use super::*;

struct Fixture {
    directory: TempDir,
    tracer: Tracer,
    now: Instant,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let tracer = Tracer::new(Some(directory.path()), 0, Device::Cpu);
        Self {
            directory,
            tracer,
            now: Instant::now(),
        }
    }

    fn request(&self) -> PathBuf {
        paths::rank_trace_request(self.directory.path(), 0)
    }

    fn result(&self) -> PathBuf {
        self.directory.path().join("trace.json")
    }

    fn ask(&mut self, num_steps: u32) {
        self.ask_with(
            &serde_json::to_string(&TraceRequest {
                num_steps,
                result: self.result(),
            })
            .unwrap(),
        );
    }

    /// Writes a request after the pause that follows the previous recording.
    fn ask_with(&mut self, text: &str) {
        self.tracer.look_at = self.now;
        std::fs::write(self.request(), text).unwrap();
    }

    fn begin(&mut self) {
        self.tracer.step_begins_at(self.now);
    }

    fn pass(&mut self) {
        self.pass_of(1);
    }

    fn pass_of(&mut self, num_products: usize) {
        let ones = Tensor::ones([8, 8], (Kind::Float, Device::Cpu));
        for _ in 0..num_products {
            let _ = ones.matmul(&ones);
        }
        self.tracer.pass_ends_at(self.now);
    }

    fn step(&mut self) {
        self.begin();
        self.pass();
        self.tracer.step_ends_at(self.now);
    }

    /// Counts the products in the trace.
    fn num_products(&mut self) -> usize {
        match std::mem::replace(&mut self.tracer.state, State::Idle) {
            State::Writing(thread) => thread.join().unwrap(),
            state => panic!("nothing is being written: {state:?}"),
        }
        assert!(!self.request().exists(), "the request is answered");
        let text = std::fs::read_to_string(self.result()).unwrap();
        std::fs::remove_file(self.result()).unwrap();
        let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let products = events
            .iter()
            .filter(|event| event["name"] == "aten::matmul");
        products.count()
    }
}

// One test, because a process has one trace at a time.
#[test]
fn recording_is_short_and_contains_only_training_steps() {
    let mut fixture = Fixture::new();
    fixture.step();
    assert!(!fixture.tracer.is_busy(), "there is no request");

    // A recording ends after the requested number of steps.
    fixture.ask(2);
    fixture.step();
    assert!(fixture.request().exists() && !fixture.result().exists());
    fixture.step();
    assert_eq!(fixture.num_products(), 2);

    // The next recording begins a minute later at the earliest.
    let text = serde_json::to_string(&TraceRequest {
        num_steps: 1,
        result: fixture.result(),
    });
    std::fs::write(fixture.request(), text.unwrap()).unwrap();
    fixture.step();
    assert!(!fixture.tracer.is_busy() && fixture.request().exists());

    // A recording ends before an evaluation and does not contain its passes.
    fixture.ask(5);
    fixture.step();
    fixture.tracer.steps_end();
    fixture.pass();
    assert_eq!(fixture.num_products(), 1);

    // A recording ends within a step that has many operations.
    fixture.ask(1);
    fixture.begin();
    let (num_passes, in_a_pass) = (100, 1_000);
    for _ in 0..num_passes {
        fixture.pass_of(in_a_pass);
    }
    let num_products = fixture.num_products();
    assert!(num_products > 0 && num_products < num_passes * in_a_pass);
    assert_eq!(num_products % in_a_pass, 0, "with the end of a pass");

    // A recording ends within a step that takes long.
    fixture.ask(1);
    fixture.begin();
    fixture.pass();
    fixture.now += MOST_TIME;
    fixture.pass();
    fixture.pass();
    assert_eq!(fixture.num_products(), 2);

    // A failed step discards the recording, and the agent can request another one. An unreadable
    // request is removed in the same way.
    fixture.ask(2);
    fixture.step();
    fixture.tracer.step_fails();
    assert!(!fixture.request().exists() && !fixture.tracer.is_busy());
    fixture.ask_with("5");
    fixture.step();
    assert!(!fixture.request().exists() && !fixture.tracer.is_busy());
}
