//! Stores the node ranks of completed members in the status. A completed pod may be removed at any
//! time, for example with its node, and the fact could not be recovered afterwards. Pure.

use std::collections::BTreeSet;
use std::fmt::Write;

use roundhouse_api::MembershipStatus;

use crate::draft::Draft;

/// Parses the node ranks that the status names. Parts that are not numbers or ranges are ignored.
pub(super) fn stored(membership: &MembershipStatus) -> BTreeSet<u32> {
    let nodes = membership.nodes;
    let parts = membership.completed.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        // Another client may have written the status, so a range is cut to the size of the
        // generation.
        Some(first..last.saturating_add(1).min(nodes))
    });
    parts.flatten().collect()
}

/// Formats node ranks as ranges, as Kubernetes writes the indexes of a Job: `0,2-5`.
fn text(ranks: &BTreeSet<u32>) -> String {
    let mut text = String::new();
    let mut ranks = ranks.iter().copied().peekable();
    while let Some(first) = ranks.next() {
        let mut last = first;
        while let Some(next) = ranks.next_if(|next| *next == last + 1) {
            last = next;
        }
        let comma = if text.is_empty() { "" } else { "," };
        let _ = match last {
            last if last == first => write!(text, "{comma}{first}"),
            last => write!(text, "{comma}{first}-{last}"),
        };
    }
    text
}

/// Stores new completions of the newest generation. The same plan replaces and deletes nothing.
pub(crate) fn note(draft: &mut Draft<'_>) {
    let all = draft.members.all_completed();
    if all == draft.members.completed {
        return;
    }
    if let Some(membership) = &mut draft.status.membership {
        membership.completed = text(&all);
        draft.recorded = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership(nodes: u32, completed: &str) -> MembershipStatus {
        MembershipStatus {
            generation: 1,
            world_size: nodes,
            nodes,
            members: String::new(),
            order: String::new(),
            nonce: String::new(),
            completed: completed.to_owned(),
            formed: 0,
        }
    }

    #[test]
    fn completed_ranks_round_trip() {
        let cases = [
            (&[][..], ""),
            (&[0][..], "0"),
            (&[0, 2, 3, 4, 5][..], "0,2-5"),
            (&[1, 2, 7][..], "1-2,7"),
        ];
        for (ranks, expected) in cases {
            let ranks: BTreeSet<u32> = ranks.iter().copied().collect();
            assert_eq!(text(&ranks), expected);
            assert_eq!(stored(&membership(8, expected)), ranks, "{expected}");
        }
    }

    #[test]
    fn completed_ranks_are_limited_to_the_generation() {
        for (completed, ranks) in [("0-4294967295", 4), ("9", 0), ("x,1,3-", 1), ("3-1", 0)] {
            assert_eq!(
                stored(&membership(4, completed)).len(),
                ranks,
                "{completed}"
            );
        }
    }
}
