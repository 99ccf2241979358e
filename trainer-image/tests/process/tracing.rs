//! Traces of steps on request, while training continues.

use serde_json::{Value, json};

use crate::g06_slices::write_tokens;
use crate::g07_checkpoints::endless;
use crate::harness::{Job, digits, on_device};

/// The names of the events in a trace of the first process. Events within a fused update are left
/// out: on a CPU its kernel reads scalars, on a GPU it does not.
fn names(job: &Job, num_steps: u32) -> Vec<String> {
    job.wait_for("steps", |status| status.step > 0);
    let trace: Value = serde_json::from_str(&job.trace(num_steps)).unwrap();
    let events: Vec<Event> = trace["traceEvents"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Event::read)
        .collect();
    let is_fused = |event: &&Event| event.name.starts_with("aten::_fused_");
    let fused: Vec<&Event> = events.iter().filter(is_fused).collect();
    let outside = |event: &&Event| !fused.iter().any(|fused| event.is_within(fused));
    let names = events.iter().filter(outside);
    names.map(|event| event.name.clone()).collect()
}

/// An operation in a trace, with times in microseconds.
struct Event {
    name: String,
    thread: Value,
    begin: f64,
    end: f64,
}

impl Event {
    fn read(event: &Value) -> Option<Self> {
        let begin = event["ts"].as_f64()?;
        Some(Self {
            name: event["name"].as_str()?.to_owned(),
            thread: event["tid"].clone(),
            begin,
            end: begin + event["dur"].as_f64()?,
        })
    }

    /// Whether another operation has called this one.
    fn is_within(&self, other: &Self) -> bool {
        self.name != other.name
            && self.thread == other.thread
            && self.begin >= other.begin
            && self.end <= other.end
    }
}

/// Counts events in a trace of the first process.
fn counts(job: &Job, num_steps: u32) -> impl Fn(&str) -> usize {
    let names = names(job, num_steps);
    move |wanted| names.iter().filter(|name| *name == wanted).count()
}

/// An MLP with one hidden layer has two products in a forward pass, and two in a backward pass.
const FORWARD: &str = "aten::addmm";
const BACKWARD: &str = "autograd::engine::evaluate_function: AddmmBackward0";

#[test]
fn trace_has_the_requested_number_of_whole_steps() {
    let mut config = endless();
    config["eval"] = json!({"everyEpochs": 0});
    let job = Job::train(&config, 2, 1);
    let num_of = counts(&job, 3);
    // There are fewer if the machine is so slow that three steps take 5 s.
    let num_forward = num_of(FORWARD);
    assert!([2, 4, 6].contains(&num_forward), "{num_forward}");
    assert_eq!(num_of(BACKWARD), num_forward);
    job.wait_for_steps(10);
}

#[test]
fn trace_ends_before_an_evaluation() {
    let mut config = endless();
    // An epoch has fewer steps than the request.
    config["globalBatchSize"] = json!(256);
    let job = Job::train(&config, 2, 1);
    let num_of = counts(&job, 20);
    let num_forward = num_of(FORWARD);
    assert!((2..40).contains(&num_forward), "{num_forward}");
    assert_eq!(num_of(BACKWARD), num_forward, "no pass of an evaluation");
}

/// Operations by which the host reads numbers of a tensor. On a GPU the host waits there for all
/// earlier work.
const READS: [&str; 4] = [
    "aten::item",
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::equal",
];

/// A training for each model and each optimizer: its name, and its differences from [`endless`].
fn models() -> [(&'static str, Value); 4] {
    let tokens = json!({"format": "tokens", "train": "train.bin", "tokens": {"context": 16}});
    [
        (
            "mlp",
            json!({
                "optimizer": {"name": "lars", "learningRate": 0.01, "ema": {"decay": 0.9}},
            }),
        ),
        (
            "gpt2",
            json!({
                "model": {"layers": 1, "heads": 2, "width": 16, "context": 16, "vocabulary": 64, "dropout": 0.1},
                "data": tokens,
                "optimizer": {"name": "adamw", "learningRate": 1e-4, "maxGradNorm": 1.0},
            }),
        ),
        (
            "bert",
            json!({
                "model": {"layers": 1, "heads": 2, "width": 16, "context": 16, "vocabulary": 64},
                "data": tokens,
                "optimizer": {"name": "lamb", "learningRate": 1e-4},
            }),
        ),
        (
            "resnet18",
            json!({
                "model": {"stem": "cifar", "ghostBatch": 4},
                "optimizer": {"name": "sgd", "learningRate": 1e-4, "momentum": 0.9},
            }),
        ),
    ]
}

#[test]
fn device_committed_step_reads_no_number_on_the_host() {
    let directory = tempfile::tempdir().unwrap();
    write_tokens(directory.path());
    for (name, settings) in models() {
        let mut config = endless();
        for (key, value) in settings.as_object().unwrap() {
            config[key] = value.clone();
        }
        config["model"]["name"] = json!(name);
        config["globalBatchSize"] = json!(16);
        config["eval"] = json!({"everyEpochs": 0});
        let has_tokens = config["data"]["format"] == "tokens";
        let data_dir = if has_tokens {
            directory.path().to_owned()
        } else {
            digits()
        };
        let job = on_device(|| Job::train_on(&config, &data_dir, 2, 1));
        let names = names(&job, 3);
        let has = |wanted: &str| names.iter().any(|name| name == wanted);
        assert!(has("c10d::allreduce_"), "{name}: no step in {names:?}");
        for read in READS {
            assert!(!has(read), "{name}: {read} in a step");
        }
    }
}

/// Number of collectives per step of an MLP whose gradients are one bucket.
fn num_collectives(config: &Value) -> f64 {
    let job = Job::train(config, 2, 1);
    let names = names(&job, 3);
    let num = |is_meant: &dyn Fn(&str) -> bool| names.iter().filter(|it| is_meant(it)).count();
    let num_steps = num(&|name| name == FORWARD) / 2;
    assert!(num_steps > 0, "{names:?}");
    num(&|name| name.starts_with("c10d::")) as f64 / num_steps as f64
}

#[test]
fn cpu_step_has_only_gradient_collectives() {
    let mut config = endless();
    config["eval"] = json!({"everyEpochs": 0});
    let exactly = |found: f64, expected: f64| {
        assert!((found - expected).abs() < 1e-9, "{found}, not {expected}");
    };
    exactly(num_collectives(&config), 1.0);
    // Votes cannot be sent in 16 bits, and a host that runs ahead does not know them.
    exactly(on_device(|| num_collectives(&config)), 2.0);
    config["ddp"] = json!({"compression": "bf16"});
    exactly(num_collectives(&config), 2.0);
}
