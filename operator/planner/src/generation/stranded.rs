//! A generation that is broken although all its members live: a connection was cut, or a member was
//! silent for longer than the timeout of the others. Its members show that by not being Ready, and
//! need the next generation. A process that died in place breaks it, too, and the agent of its
//! worker reports that.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use roundhouse_api::{LastFailure, failures};

use crate::draft::Draft;
use crate::failures::budget::newest_step;
use crate::generation::members::fingerprint;
use crate::observed::Pod;
use crate::status::progress;
use crate::status::{time, time_left};
use crate::worker_state::end_in_place;

/// Time for a member to receive its generation and to be Ready again.
const PATIENCE: Duration = Duration::from_secs(15);
/// The same for a worker of several processes whose agent reports nothing: one process may
/// have been restarted and may still load its data, while the others wait at the store for
/// up to two minutes.
const PATIENCE_UNREPORTED: Duration = Duration::from_secs(120);
/// The same for a member of a generation whose rank 0 reports that it has formed. Either the
/// operator's view of the member is older than that, as after an outage of the API server, or the
/// member lost its peers at once.
const PATIENCE_FORMED: Duration = Duration::from_secs(120);
/// How long a member must have been unready: the kubelet may report the death that explains
/// it a moment later.
const BELIEF: Duration = Duration::from_secs(2);
/// The same for a worker of several processes whose agent has not answered since. One failed probe
/// makes such a worker unready, and a busy machine can cause that.
const BELIEF_UNREPORTED: Duration = Duration::from_secs(10);
/// A member that becomes unready within this time after the issue may show the end of the previous
/// generation late, or its node's clock is ahead by as much as clocks of one cluster may differ.
const LATE_NEWS: SignedDuration = SignedDuration::from_secs(30);
/// Most members that the message names as suspects.
const MAX_SUSPECTS: usize = 3;

/// The first member of the newest generation that has lost it, if there is one.
pub(crate) fn first<'a>(draft: &mut Draft<'a>) -> Option<&'a Pod> {
    let now = draft.now;
    let members = draft.members.that_live();
    let is_silent = |pod: &Pod| !pod.ready && !pod.unreachable;
    if !members.iter().any(|pod| is_silent(pod)) {
        return None;
    }
    // A missing member explains why the others are not Ready.
    if fingerprint(&members) != draft.members.raised_for {
        return None;
    }
    // While members save the results, new members wait and are not Ready. That is a failure only if
    // no member is Ready.
    if progress::is_complete(draft) && members.iter().any(|pod| pod.ready) {
        return None;
    }
    // A member on a node that does not answer may still train, so it is not counted.
    let issued_at = last_issued(&members)?;
    let has_formed = draft.observed.formed >= Some(draft.members.generation);
    let unready = members.into_iter().filter(|pod| is_silent(pod));
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
        // The probe failed by chance: the agent has answered since.
        if pod.processes.as_ref().is_some_and(|it| it.are_ready) {
            continue;
        }
        // A process group of one rank has no peers to lose.
        if is_alone {
            continue;
        }
        let is_unreported = draft.job.procs_per_worker > 1 && pod.processes.is_none();
        // The time is from the node's clock; a time in the future says nothing.
        let since = pod.ready_at.filter(|at| *at <= now);
        let span = if has_formed && since.is_none_or(|at| at < issued_at) {
            PATIENCE_FORMED
        } else if is_unreported {
            PATIENCE_UNREPORTED
        } else {
            PATIENCE
        };
        let since_then = since.is_some_and(|at| at.duration_since(issued_at) > LATE_NEWS);
        // The member may not have received its generation yet, or may be forming it. An operator
        // has no reports from before it started to watch jobs.
        let may_know_since = issued_at.max(draft.observed.watched_since.unwrap_or(issued_at));
        let patience = time_left(may_know_since, span, now).filter(|_| !since_then);
        let belief = if is_unreported {
            BELIEF_UNREPORTED
        } else {
            BELIEF
        };
        let belief = since.and_then(|at| time_left(at, belief, now));
        match patience.max(belief) {
            Some(left) => draft.requeue(left),
            None => found = found.or(Some(pod)),
        }
    }
    found
}

/// When the last member got its membership: the generation cannot form before. With thousands of
/// workers that is long after the first.
pub(super) fn last_issued(members: &[&Pod]) -> Option<Timestamp> {
    let documents = members.iter().filter_map(|pod| pod.membership.as_ref());
    let times = documents.filter_map(|document| document.issued_at.parse().ok());
    times.max()
}

/// Whether a failure is a loss of peers that this module reported.
pub(crate) fn is_peers_lost(failure: &LastFailure) -> bool {
    failure.exit_code.is_none() && failure.reason == failures::PEERS_LOST
}

/// Builds the `lastFailure` for a member that lost its peers.
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

/// The members that the others have probably waited for: those that are still Ready. `None` if
/// there are many: then the others may only have noticed the loss sooner.
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

/// Formats a member with its name and its ranks.
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
