//! Node ranks that follow the network: workers of one topology domain are neighbours, so that most of a ring's traffic stays
//! within a domain.
//!
//! The order depends on the worker that comes first, which is the one that would without topology, and on domains and indices.
//! So it is the same at each look, unless a node's label changes while a generation is issued: then the next one is raised.

use std::cmp::Reverse;

use crate::observed::Pod;

/// Whether something is known of where workers are.
pub(crate) fn is_known(workers: &[&Pod]) -> bool {
    workers.iter().any(|pod| pod.domain.is_some())
}

/// Puts workers in the order of their node ranks: the first one and its domain, then the other domains by name, and each by
/// index. Workers whose domain is not known are a domain of their own, the last one.
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
