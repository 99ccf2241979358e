//! Reissues memberships that may not have arrived. The kubelet sometimes misses a change of an
//! annotation: see docs/decisions/011-membership-documents.md. Any change of the pod makes the
//! kubelet read it again, so the operator writes the membership again.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use roundhouse_contract::Membership;

use crate::draft::Draft;
use crate::generation::stranded;
use crate::plan::Action;
use crate::status::time_left;

/// A generation usually forms within 1 s, and the next poll of the progress, which shows that,
/// comes 3 s later. The time doubles before each further reissue.
const FIRST: Duration = Duration::from_secs(5);
/// Additional time per member, since ranks connect one after the other.
const FOR_EACH: Duration = Duration::from_millis(10);
/// The first reissue comes before members are given up after 15 s.
const LATEST_FIRST: Duration = Duration::from_secs(12);
/// By then the kubelet has synchronized the pod by itself.
const OVER: SignedDuration = SignedDuration::from_secs(90);

/// Whether a document may still be on its way, so that writing it again helps.
pub(crate) fn helps(issued_at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(issued_at) <= OVER
}

/// Time until a document that has been written again `repeats` times is written once more, first
/// after `first`; `None` for now. The time doubles before each further time.
pub(crate) fn left(
    issued_at: Timestamp,
    first: Duration,
    repeats: u32,
    now: Timestamp,
) -> Option<Duration> {
    // 1, 3, 7, ... times the first span after the issue.
    let spans = 2_u32.saturating_pow(repeats.saturating_add(1)) - 1;
    time_left(issued_at, first.saturating_mul(spans), now)
}

/// Reissues the memberships of members that may not have received the newest generation.
pub(crate) fn late(draft: &mut Draft<'_>) {
    let formed = draft.observed.formed;
    if formed.is_some_and(|formed| formed >= draft.members.generation) {
        return;
    }
    let members = draft.members.that_live();
    let Some(issued_at) = stranded::last_issued(&members) else {
        return;
    };
    if !helps(issued_at, draft.now) {
        return;
    }
    let num_members = u32::try_from(members.len()).unwrap_or(u32::MAX);
    let first = FIRST.saturating_add(FOR_EACH.saturating_mul(num_members));
    let first = first.min(LATEST_FIRST);
    for pod in members {
        // Without a report of progress, only a member that is not Ready is known to be late.
        if pod.unreachable || (pod.ready && formed.is_none()) {
            continue;
        }
        let Some(document) = &pod.membership else {
            continue;
        };
        match left(issued_at, first, document.repeats, draft.now) {
            Some(left) => draft.requeue(left),
            None => draft.actions.push(Action::IssueMembership {
                pod: pod.name.clone(),
                resource_version: pod.resource_version.clone(),
                membership: Membership {
                    repeats: document.repeats + 1,
                    ..document.clone()
                },
                earlier: pod.earlier.clone(),
            }),
        }
    }
}
