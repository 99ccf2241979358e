//! Which pod of a replica holds second copies of the state of which other one: a pod on another
//! node, so that the loss of a node leaves a copy of each part.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::observed::Pod;

/// For each pod the index of its holder. Holders stay if they can, so that copies are where they
/// belong.
pub(super) fn next(pods: &[&Pod]) -> Vec<Option<u32>> {
    let best = of(pods);
    let held = |holders: &[Option<u32>]| holders.iter().flatten().count();
    let newest = pods.iter().filter_map(|pod| pod.replica.as_ref());
    let former = newest
        .max_by_key(|place| place.number)
        .map(|it| &it.holders);
    let node = |pod: usize| pods.get(pod).map(|pod| &pod.node);
    let fit = |holders: &&Vec<Option<u32>>| {
        let mut pairs = holders.iter().enumerate();
        holders.len() == pods.len()
            && held(holders) == held(&best)
            && pairs.all(|(pod, holder)| holder.is_none_or(|it| node(it as usize) != node(pod)))
    };
    former.filter(fit).cloned().unwrap_or(best)
}

/// For each pod the index of its holder; `None` if all pods on other nodes hold the copies of
/// others. A pod holds those of at most one.
///
/// Sorts the pods by node, the node with the most pods first. If that node has `n` pods, the holder
/// of each pod is the pod `n` places later, and after the last place the first one follows. It is
/// on another node if no node has more than half of the pods. Otherwise as few pods as possible
/// have no holder.
fn of(pods: &[&Pod]) -> Vec<Option<u32>> {
    let mut by_node: BTreeMap<Option<&str>, Vec<usize>> = BTreeMap::new();
    for (at, pod) in pods.iter().enumerate() {
        by_node.entry(pod.node.as_deref()).or_default().push(at);
    }
    let mut nodes: Vec<Vec<usize>> = by_node.into_values().collect();
    nodes.sort_by_key(|on_node| Reverse(on_node.len()));
    let shift = nodes.first().map_or(0, Vec::len);
    let row: Vec<usize> = nodes.concat();
    let mut holders = vec![None; pods.len()];
    for (place, pod) in row.iter().enumerate() {
        let holder = row[(place + shift) % row.len()];
        if pods[holder].node != pods[*pod].node {
            holders[*pod] = u32::try_from(holder).ok();
        }
    }
    holders
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};
    use roundhouse_contract::{Incarnation, ReplicaPlace};

    use super::*;

    fn on(nodes: &[u32]) -> Vec<Pod> {
        let pod = |node: &u32| Pod {
            node: Some(format!("node-{node}")),
            ..Pod::default()
        };
        nodes.iter().map(pod).collect()
    }

    fn holders(nodes: &[u32]) -> Vec<Option<u32>> {
        let pods = on(nodes);
        of(&pods.iter().collect::<Vec<_>>())
    }

    #[test]
    fn pods_on_other_nodes_hold_copies() {
        assert_eq!(holders(&[0, 1]), [Some(1), Some(0)]);
        assert_eq!(holders(&[0, 1, 2]), [Some(1), Some(2), Some(0)]);
        assert_eq!(holders(&[0, 0, 1, 1]), [Some(2), Some(3), Some(0), Some(1)]);
        assert_eq!(holders(&[0, 0]), [None, None]);
        assert_eq!(holders(&[]), []);
    }

    #[test]
    fn holders_stay_if_they_are_on_other_nodes() {
        let mut pods = on(&[0, 1, 2]);
        let place = |holders: [Option<u32>; 3]| ReplicaPlace {
            replica: 0,
            pod: 0,
            addresses: Vec::new(),
            holders: holders.to_vec(),
            number: 3,
            life: String::new(),
            incarnation: Incarnation {
                pod_uid: String::new(),
                restarts: 0,
            },
            issued_at: String::new(),
            repeats: 0,
        };
        let reversed = [Some(2), Some(0), Some(1)];
        pods[1].replica = Some(place(reversed));
        assert_eq!(next(&pods.iter().collect::<Vec<_>>()), reversed);
        // Pod 0 returns on the node of its holder.
        pods[0].node = pods[2].node.clone();
        let found = next(&pods.iter().collect::<Vec<_>>());
        assert_eq!(found[0], Some(1), "{found:?}");
        // The replica had other pods, or copies had no holders.
        pods[1].replica = Some(place([None, None, None]));
        let found = next(&pods.iter().collect::<Vec<_>>());
        assert_eq!(found.iter().flatten().count(), 2, "{found:?}");
    }

    proptest! {
        #[test]
        fn as_many_pods_as_possible_have_a_holder(
            nodes in proptest::collection::vec(0_u32..4, 0..12),
        ) {
            let holders = holders(&nodes);
            let mut taken: Vec<u32> = holders.iter().flatten().copied().collect();
            for (pod, holder) in holders.iter().enumerate() {
                if let Some(holder) = holder {
                    prop_assert!(nodes[*holder as usize] != nodes[pod], "{holders:?}");
                }
            }
            let num_held = taken.len();
            taken.sort_unstable();
            taken.dedup();
            prop_assert_eq!(taken.len(), num_held, "each holds the copies of one");
            let on_node = |node| nodes.iter().filter(|it| **it == node).count();
            let most = (0..4).map(on_node).max().unwrap_or(0);
            let without = (2 * most).saturating_sub(nodes.len());
            prop_assert_eq!(nodes.len() - num_held, without, "{:?}", holders);
        }
    }
}
