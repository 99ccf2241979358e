//! Documents that may not have arrived. The kubelet misses a change of an annotation now and then, and shows it only when it
//! looks at the pod the next time, after 60 to 90 s (kubernetes/kubernetes#59813). Any change of the pod makes it look, so the
//! document is written once more.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use roundhouse_contract::Membership;

use crate::draft::Draft;
use crate::observed::Pod;
use crate::plan::Action;
use crate::told::status::time_left;

/// A generation usually forms within a second, and the next question for progress, which tells so, comes 3 s later. Twice as
/// long before each further repetition.
const FIRST: Duration = Duration::from_secs(5);
/// More for each member: many documents are read, and many ranks connect, one after the other.
const FOR_EACH: Duration = Duration::from_millis(10);
/// The kubelet has looked by then.
const LATEST: SignedDuration = SignedDuration::from_secs(90);

/// Writes the documents again of members that may not have heard of the newest generation.
pub(crate) fn late(draft: &mut Draft<'_>, members: &[&Pod]) {
    let generation = draft.members.generation;
    let told = draft.observed.progress.as_ref();
    let formed = told.map(|sample| sample.progress.generation >= generation);
    if formed == Some(true) {
        return;
    }
    let num_members = u32::try_from(members.len()).unwrap_or(u32::MAX);
    let first = FIRST.saturating_add(FOR_EACH.saturating_mul(num_members));
    let mut next = None::<Duration>;
    for pod in members {
        // Nobody who is Ready is known to be late where nothing is told of progress.
        if pod.unreachable || (pod.ready && formed.is_none()) {
            continue;
        }
        let Some((document, issued_at)) = issued(pod) else {
            continue;
        };
        if draft.now.duration_since(issued_at) > LATEST {
            continue;
        }
        // 1, 3, 7, ... times the first span after the issue.
        let spans = 2_u32.saturating_pow(document.repeats.saturating_add(1)) - 1;
        match time_left(issued_at, first.saturating_mul(spans), draft.now) {
            Some(left) => next = Some(next.map_or(left, |other| other.min(left))),
            None => draft.actions.push(Action::IssueMembership {
                pod: pod.name.clone(),
                resource_version: pod.resource_version.clone(),
                membership: Membership {
                    repeats: document.repeats + 1,
                    ..document.clone()
                },
            }),
        }
    }
    if let Some(next) = next {
        draft.requeue(next);
    }
}

/// A member's document, and when it was written first.
fn issued(pod: &Pod) -> Option<(&Membership, Timestamp)> {
    let document = pod.membership.as_ref()?;
    Some((document, document.issued_at.parse().ok()?))
}
