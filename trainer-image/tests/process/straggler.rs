//! Stragglers: a worker that is slower than the others is distinguished from those that wait for
//! it.

use serde_json::json;

use crate::harness::{Job, config};

/// Additional milliseconds per step of the slow worker.
const PAUSE: u64 = 60;

/// The sum of a metric's values so far.
fn value(job: &Job, (node, local_rank): (u32, u32), name: &str) -> f64 {
    let text = job.metrics(node, local_rank);
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {text}"))
        .trim()
        .parse()
        .unwrap()
}

#[test]
pub(crate) fn straggler_is_reported_and_waits_are_not_compute_time() {
    let mut config = config();
    config["steps"] = json!(60);
    let mut job = Job::slowed(&config, 2, 1, PAUSE);
    job.wait_for_nodes(&[0], "the report of the straggler", |status| {
        let progress = status.progress.as_ref();
        let straggler = progress.and_then(|progress| progress.straggler);
        straggler.is_some_and(|it| it.node_rank == 1 && it.factor > 1.5)
    });
    job.complete();
    let said = job.logs().matches("node rank 1 takes").count();
    assert_eq!(said, 1, "{}", job.logs());
    let pauses = 60.0 * PAUSE as f64 / 1_000.0;
    let own = "roundhouse_train_step_compute_seconds_sum";
    let communication = "roundhouse_train_step_section_seconds_total{section=\"communication\"}";
    for local_rank in [0, 1] {
        let (fast, slow) = ((0, local_rank), (1, local_rank));
        assert!(value(&job, slow, own) >= pauses);
        assert!(value(&job, fast, own) < pauses / 2.0);
        assert!(value(&job, fast, communication) > pauses / 2.0);
    }
}
