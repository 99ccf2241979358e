use std::time::Instant;

use roundhouse_api::TrainingJobStatus;

use super::expectations::{Seen, Written};
use super::testing::{identity, memories};
use super::*;

fn key(uid: &str) -> JobKey {
    JobKey::from(&identity(uid))
}

/// Something in each part of the memory of the job.
fn remember(memories: &JobMemories, uid: &str) {
    let status = TrainingJobStatus::default();
    memories.with(&key(uid), |memory| {
        memory.expectations.wrote(Written::Status, 7);
        memory.backoff.after_error(None);
        memory.recent_pods.insert("digits-worker-0-0".to_owned());
        memory.status_delay.wait(&status, &status);
        memory.taken_names.insert("Service digits".to_owned());
    });
}

fn waits(memories: &JobMemories, uid: &str) -> bool {
    let wait = |memory: &mut JobMemory| memory.expectations.wait(|_| Seen::Absent);
    memories.with(&key(uid), wait).is_some()
}

fn number(memories: &JobMemories) -> usize {
    memories.lock().jobs.all().len()
}

#[test]
fn a_deleted_job_leaves_nothing() {
    let memories = memories(&["a", "b"]);
    remember(&memories, "a");
    assert!(waits(&memories, "a") && !waits(&memories, "b"));
    memories.apply(&Event::Delete(identity("a")));
    assert!(!memories.exists(&key("a")) && memories.exists(&key("b")));
    assert!(!waits(&memories, "a"));
    // A reconcile or a write of the job ends after its deletion.
    remember(&memories, "a");
    assert_eq!(number(&memories), 1);
    // A job of the same name begins with nothing.
    remember(&memories, "b");
    memories.apply(&Event::Apply(identity("c")));
    assert!(waits(&memories, "b") && !waits(&memories, "c"));
}

#[test]
fn a_list_without_a_job_leaves_nothing_of_it() {
    let memories = memories(&["a", "b"]);
    remember(&memories, "a");
    remember(&memories, "b");
    memories.apply(&Event::Init);
    memories.apply(&Event::InitApply(identity("b")));
    assert!(waits(&memories, "a"), "until the list is complete");
    memories.apply(&Event::InitDone);
    assert!(!memories.exists(&key("a")) && waits(&memories, "b"));
    assert_eq!(number(&memories), 1);
}

#[test]
fn a_deleted_job_is_not_polled() {
    let memories = memories(&["a"]);
    memories.apply(&Event::Delete(identity("a")));
    assert!(memories.progress_polls(Instant::now()).is_empty());
    assert!(memories.worker_polls().is_empty());
}
