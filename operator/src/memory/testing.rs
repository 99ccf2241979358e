//! Memories of jobs for tests.

use kube::runtime::watcher::Event;
use roundhouse_planner::JobIdentity;

use super::JobMemories;
use super::repairs::Pauses;

/// A job with this UID.
pub(crate) fn identity(uid: &str) -> JobIdentity {
    JobIdentity {
        namespace: "ml".to_owned(),
        name: "digits".to_owned(),
        uid: uid.to_owned(),
    }
}

/// The memories of jobs with these UIDs.
pub(crate) fn memories(uids: &[&str]) -> JobMemories {
    let memories = JobMemories::new(Pauses::default());
    for uid in uids {
        memories.apply(&Event::Apply(identity(uid)));
    }
    memories
}
