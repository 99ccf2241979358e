//! Undisturbed trainings: with two workers, and with one process without an agent.

use serde_json::json;

use crate::harness::{Job, config, digits, trainer};

#[test]
fn digits_reach_95_percent_with_two_workers() {
    let mut config = config();
    config["model"] = json!({"name": "cnn"});
    config["schedule"] = json!({"name": "cosine", "warmupSteps": 20});
    config["steps"] = json!(480);
    let mut job = Job::train(&config, 2, 1);
    job.complete();
    let progress = job.progress();
    let accuracy = progress.eval_accuracy.unwrap();
    assert!(accuracy >= 0.95, "{accuracy}\n{}", job.logs());
    assert_eq!(
        (progress.step, progress.total_steps, progress.world_size),
        (480, 480, 2)
    );
    for node in 0..2 {
        let metrics = job.metrics(node, 0);
        let value = |name: &str| {
            let prefix = format!("roundhouse_train_{name} ");
            let line = metrics.lines().find_map(|line| line.strip_prefix(&prefix));
            line.and_then(|text| text.parse::<f64>().ok())
                .unwrap_or_else(|| panic!("{name} is not in:\n{metrics}"))
        };
        for (name, expected) in [
            ("step", 480.0),
            ("epoch", 20.0),
            ("world_size", 2.0),
            ("generation", 1.0),
            ("samples_total", 30_000.0),
            ("step_seconds_count", 480.0),
            ("eval_accuracy", accuracy),
        ] {
            assert!(
                (value(name) - expected).abs() < 1e-9,
                "{name} is {}",
                value(name)
            );
        }
    }
}

#[test]
fn process_trains_alone_without_an_agent() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let mut config = config();
    config["steps"] = json!(30);
    std::fs::write(path("config"), config.to_string()).unwrap();
    let output = trainer()
        .arg("--config")
        .arg(path("config"))
        .arg("--data-dir")
        .arg(digits())
        .arg("--save-weights")
        .arg(path("weights"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("test accuracy"), "{text}");
    assert!(path("weights").exists());
}
