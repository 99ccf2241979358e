//! A generation that is broken although all its members live: a connection was cut, or one of them was
//! silent for longer than the others wait. Its members say so by not being Ready, and need the next one. A process
//! that died in place breaks it, too: then the agent of its worker tells so.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use roundhouse_api::{LastFailure, failures};

use crate::draft::Draft;
use crate::failures::budget::newest_step;
use crate::generation::members::fingerprint;
use crate::generation::worker::end_in_place;
use crate::observed::Pod;
use crate::status::progress;
use crate::status::{time, time_left};

/// How long a member may take to hear of its generation, and to be Ready again.
const PATIENCE: Duration = Duration::from_secs(15);
/// The same for a worker of several processes whose agent tells nothing: one of them may have been started anew and
/// still load its data, while the others wait at the store for up to two minutes.
const PATIENCE_UNTOLD: Duration = Duration::from_secs(120);
/// The same for a member of a generation that has formed, as its rank 0 says: what is known of the member is older than that,
/// as after an outage of the API server, or it has lost its peers at once.
const PATIENCE_FORMED: Duration = Duration::from_secs(120);
/// How long a member must not have been Ready: the kubelet may tell of the death that explains it a moment later.
const BELIEF: Duration = Duration::from_secs(2);
/// A member that stops being Ready so soon after may be late with the news of the generation before, or its node's clock is
/// ahead by as much as clocks of one cluster may differ.
const LATE_NEWS: SignedDuration = SignedDuration::from_secs(30);
/// Most members that are named as those that did not answer.
const MAX_SUSPECTS: usize = 3;

/// A member of the newest generation that has lost it, if there is one.
pub(crate) fn first<'a>(draft: &mut Draft<'a>) -> Option<&'a Pod> {
    let now = draft.now;
    let members = draft.members.that_live();
    // A member is gone: that explains why others are not Ready.
    if fingerprint(&members) != draft.members.raised_for {
        return None;
    }
    // Members that save the results let newcomers wait, which are not Ready then. That is a failure only if no member
    // is Ready.
    if progress::is_complete(draft) && members.iter().any(|pod| pod.ready) {
        return None;
    }
    // A member on a node that does not answer may still train, so it is not counted.
    let issued_at = last_issued(&members)?;
    let has_formed = draft.observed.formed >= Some(draft.members.generation);
    let unready = members
        .into_iter()
        .filter(|pod| !pod.ready && !pod.unreachable);
    let is_alone = draft
        .status
        .membership
        .as_ref()
        .is_some_and(|it| it.world_size == 1);
    let mut found = None;
    for pod in unready {
        if end_in_place(pod).is_some() {
            found = found.or(Some(pod));
            continue;
        }
        // A world of one has no peers that it could lose.
        if is_alone {
            continue;
        }
        let is_untold = draft.job.procs_per_worker > 1 && pod.processes.is_none();
        // By the node's clock; what lies ahead says nothing.
        let since = pod.ready_at.filter(|at| *at <= now);
        let span = if has_formed && since.is_none_or(|at| at < issued_at) {
            PATIENCE_FORMED
        } else if is_untold {
            PATIENCE_UNTOLD
        } else {
            PATIENCE
        };
        let since_then = since.is_some_and(|at| at.duration_since(issued_at) > LATE_NEWS);
        // It may not have heard of its generation, or be forming it. Nobody has told this operator before it looked after jobs.
        let told_at = issued_at.max(draft.observed.watched_since.unwrap_or(issued_at));
        let patience = time_left(told_at, span, now).filter(|_| !since_then);
        let belief = since.and_then(|at| time_left(at, BELIEF, now));
        match patience.max(belief) {
            Some(left) => draft.requeue(left),
            None => found = found.or(Some(pod)),
        }
    }
    found
}

/// When the last member was told of its generation: nobody can form it before. With thousands of workers that is long
/// after the first.
pub(super) fn last_issued(members: &[&Pod]) -> Option<Timestamp> {
    let documents = members.iter().filter_map(|pod| pod.membership.as_ref());
    let times = documents.filter_map(|document| document.issued_at.parse().ok());
    times.max()
}

/// Whether a failure is one of this kind.
pub(crate) fn is_told(failure: &LastFailure) -> bool {
    failure.exit_code.is_none() && failure.reason == failures::PEERS_LOST
}

/// What is told of it.
pub(crate) fn describe(draft: &Draft<'_>, pod: &Pod) -> LastFailure {
    let generation = draft.members.generation;
    let suspects = suspects(draft).map_or_else(String::new, |names| format!(", probably {names}"));
    LastFailure {
        time: time(draft.now),
        worker: pod.name.clone(),
        rank: None,
        node: pod.node.clone(),
        reason: failures::PEERS_LOST.to_owned(),
        exit_code: None,
        step: Some(newest_step(draft, None)).filter(|step| *step > 0),
        message: format!(
            "generation {generation} broke although none of its workers died: a connection was cut, or one did \
             not answer for longer than the others wait{suspects}"
        ),
    }
}

/// The members that the others have probably waited for: those that are still Ready. `None` if there are many: then the others
/// may only have noticed the loss sooner.
fn suspects(draft: &Draft<'_>) -> Option<String> {
    let members = draft.members.that_live();
    let (ready, lost): (Vec<&Pod>, Vec<&Pod>) = members
        .into_iter()
        .filter(|pod| !pod.unreachable)
        .partition(|pod| pod.ready);
    let is_clear = !ready.is_empty() && ready.len() <= MAX_SUSPECTS.min(lost.len());
    is_clear.then(|| {
        let mut names = ready.into_iter().map(named).collect::<Vec<_>>();
        names.sort_unstable();
        names.join(", ")
    })
}

/// A member by its name and its ranks.
fn named(pod: &Pod) -> String {
    let ranks = pod.membership.as_ref().map(|place| {
        let (first, num) = (place.rank(0), place.procs_per_worker);
        match num {
            0 | 1 => format!(" (rank {first})"),
            _ => format!(" (ranks {first} to {})", first + num - 1),
        }
    });
    pod.name.clone() + &ranks.unwrap_or_default()
}
