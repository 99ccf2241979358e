//! Orders node ranks by network topology: workers of one topology domain are neighbours, so most
//! traffic of a ring stays within a domain.
//!
//! The order depends on the worker that would be first without topology, on domains and on indices.
//! So it is the same in each reconcile, unless a node's label changes while a generation is being
//! issued. In that case the operator raises the next generation.

use std::cmp::Reverse;

use crate::observed::Pod;

/// Whether the domain of any worker is known.
pub(crate) fn is_known(workers: &[&Pod]) -> bool {
    workers.iter().any(|pod| pod.domain.is_some())
}

/// Sorts workers by node rank: the first worker and its domain, then the other domains by name, and
/// each domain by index. Workers without a known domain come last, as one domain.
pub(crate) fn arrange(workers: &mut [&Pod], first: &Pod) {
    workers.sort_by_key(|pod| {
        let is_first = pod.uid == first.uid;
        let is_with_first = pod.domain == first.domain;
        (
            Reverse(is_with_first),
            (pod.domain.is_none(), &pod.domain),
            (Reverse(is_first), pod.index),
        )
    });
}
