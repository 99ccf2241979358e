//! The routes on which ranks send the state when a generation forms.
//!
//! A rank that lacks the state receives it from one rank and passes each chunk to at most one other
//! rank. So each rank sends the state at most once, for any world size, and ranks that have it and
//! serve no other rank send nothing.

/// The routes of the state: chains, each of which begins with a rank that has the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    /// Ranks, or replicas of `num_shards` ranks.
    chains: Vec<Vec<usize>>,
    num_shards: usize,
}

/// The place of one rank in the routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The rank at the start of the chain.
    pub head: usize,
    /// The rank from which this one receives; `None` if it has the state.
    pub from: Option<usize>,
    /// The rank to which this one sends.
    pub to: Option<usize>,
}

impl Routes {
    /// Plans routes from ranks that have the state (`holders`) to ranks that lack it
    /// (`lacking`), both in the order of ranks. `source` is one of the holders and is used
    /// first. A worker has `procs_per_worker` consecutive ranks.
    ///
    /// The state enters a worker once, even if several of its ranks lack it, because they share its
    /// network link. Workers with a rank that has the state come first and receive it from that
    /// rank. The others follow in the order of ranks. Each of them receives it from a rank that
    /// serves no other worker, while there is one.
    #[must_use]
    pub fn of(
        source: usize,
        holders: &[usize],
        lacking: &[usize],
        procs_per_worker: usize,
    ) -> Self {
        let worker = |rank: usize| rank / procs_per_worker.max(1);
        let mut free = in_order_of_use(source, holders, worker);
        let mut chains: Vec<Vec<usize>> = Vec::new();
        let mut next = 0;
        let home = |unit: &[usize]| unit.first().map(|rank| worker(*rank));
        let mut units: Vec<&[usize]> = lacking
            .chunk_by(|one, other| worker(*one) == worker(*other))
            .collect();
        // Otherwise another worker would take the holder, and the state might come back over the
        // network.
        units.sort_by_key(|unit| !free.iter().any(|head| Some(worker(*head)) == home(unit)));
        for unit in units {
            let home = home(unit);
            let sibling = free.iter().position(|head| Some(worker(*head)) == home);
            if sibling.is_some() || !free.is_empty() {
                let head = free.remove(sibling.unwrap_or_default());
                chains.push([&[head], unit].concat());
            } else if !chains.is_empty() {
                // Every rank that has the state already serves another one.
                let place = next % chains.len();
                chains[place].extend(unit);
                next += 1;
            }
        }
        Self {
            chains,
            num_shards: 1,
        }
    }

    /// Turns routes between replicas of `num_shards` ranks into routes between their ranks: each
    /// sends its shard to the rank of the next replica that has the same shard.
    #[must_use]
    pub fn of_shards(self, num_shards: usize) -> Self {
        Self {
            num_shards: num_shards.max(1),
            ..self
        }
    }

    /// Returns the place of a rank in its chain; `None` if it neither sends nor receives.
    #[must_use]
    pub fn hop(&self, rank: usize) -> Option<Hop> {
        let (unit, shard) = (rank / self.num_shards, rank % self.num_shards);
        let rank_of = |unit: &usize| unit * self.num_shards + shard;
        self.chains.iter().find_map(|chain| {
            let place = chain.iter().position(|other| *other == unit)?;
            Some(Hop {
                head: chain.first().map(rank_of)?,
                from: place.checked_sub(1).map(|before| rank_of(&chain[before])),
                to: chain.get(place + 1).map(rank_of),
            })
        })
    }

    /// Returns the length of the longest chain, in hops.
    #[must_use]
    pub fn longest(&self) -> usize {
        let lengths = self
            .chains
            .iter()
            .map(|chain| chain.len().saturating_sub(1));
        lengths.max().unwrap_or_default()
    }
}

/// Orders the holders: the source, then one rank of each other worker, then the rest.
fn in_order_of_use(
    source: usize,
    holders: &[usize],
    worker: impl Fn(usize) -> usize,
) -> Vec<usize> {
    let mut workers = vec![worker(source)];
    let mut order = vec![source];
    let mut rest = Vec::new();
    for holder in holders.iter().copied().filter(|holder| *holder != source) {
        if workers.contains(&worker(holder)) {
            rest.push(holder);
        } else {
            workers.push(worker(holder));
            order.push(holder);
        }
    }
    order.extend(rest);
    order
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chains(
        source: usize,
        holders: &[usize],
        lacking: &[usize],
        procs: usize,
    ) -> Vec<Vec<usize>> {
        Routes::of(source, holders, lacking, procs).chains
    }

    #[test]
    fn each_new_rank_gets_its_own_holder_if_possible() {
        // One new rank: one holder sends.
        assert_eq!(chains(0, &[0, 1, 2], &[3], 1), [[0, 3]]);
        assert_eq!(chains(1, &[0, 1, 2], &[3], 1), [[1, 3]]);
        assert_eq!(chains(0, &[0, 1], &[2, 3], 1), [[0, 2], [1, 3]]);
        // More new ranks than holders: they pass the state on.
        assert_eq!(chains(2, &[2], &[0, 1, 3], 1), [[2, 0, 1, 3]]);
        assert_eq!(
            chains(0, &[0, 1], &[2, 3, 4, 5, 6], 1),
            [vec![0, 2, 4, 6], vec![1, 3, 5]]
        );
        assert!(chains(0, &[0, 1], &[], 1).is_empty());
    }

    #[test]
    fn each_shard_has_its_own_route() {
        // Replicas of two ranks; the second and the third lack the state.
        let routes = Routes::of(0, &[0], &[1, 2], 1).of_shards(2);
        let hop = |rank| routes.hop(rank).map(|hop| (hop.head, hop.from, hop.to));
        assert_eq!(hop(0), Some((0, None, Some(2))));
        assert_eq!(hop(1), Some((1, None, Some(3))));
        assert_eq!(hop(3), Some((1, Some(1), Some(5))));
        assert_eq!(hop(4), Some((0, Some(2), None)));
        assert_eq!(routes.longest(), 2);
    }

    #[test]
    fn state_enters_a_worker_once() {
        // Workers of two ranks. The third and the fourth worker are new.
        assert_eq!(
            chains(0, &[0, 1, 2, 3], &[4, 5, 6, 7], 2),
            [[0, 4, 5], [2, 6, 7]]
        );
        // One process of the second worker was restarted.
        assert_eq!(chains(0, &[0, 1, 3], &[2], 2), [[3, 2]]);
        // The only rank that has the state serves its own worker first.
        assert_eq!(chains(2, &[2], &[0, 1, 3], 2), [[2, 3, 0, 1]]);
    }

    proptest! {
        #[test]
        fn every_lacking_rank_receives_the_state_once(
            has in proptest::collection::vec(any::<bool>(), 1..40),
            first in any::<prop::sample::Index>(),
            procs in 1_usize..5,
        ) {
            let mut has = has;
            let source = first.index(has.len());
            has[source] = true;
            let ranks = |which: bool| -> Vec<usize> {
                (0..has.len()).filter(|rank| has[*rank] == which).collect()
            };
            let (holders, lacking) = (ranks(true), ranks(false));
            let routes = Routes::of(source, &holders, &lacking, procs);
            for rank in 0..has.len() {
                let hop = routes.hop(rank);
                let from = hop.and_then(|hop| hop.from);
                prop_assert_eq!(from.is_none(), has[rank]);
                if let Some(from) = from {
                    // Both ranks of a hop agree, and the chain leads to its head.
                    prop_assert_eq!(routes.hop(from).and_then(|hop| hop.to), Some(rank));
                    prop_assert_eq!(routes.hop(from).map(|hop| hop.head), hop.map(|hop| hop.head));
                }
                if let Some(to) = hop.and_then(|hop| hop.to) {
                    prop_assert_eq!(routes.hop(to).and_then(|hop| hop.from), Some(rank));
                }
                if let Some(hop) = hop {
                    prop_assert!(has[hop.head]);
                    prop_assert!(hop.from.is_some() || hop.to.is_some());
                }
            }
            let workers: std::collections::BTreeSet<_> = lacking.iter().map(|rank| rank / procs).collect();
            let least = workers.len().div_ceil(holders.len());
            prop_assert!(routes.longest() <= least * procs);
            // At most one rank of a worker receives from another worker, and none if a rank of the
            // worker has the state.
            for worker in workers {
                let entered = lacking.iter().filter(|rank| *rank / procs == worker).filter(|rank| {
                    let from = routes.hop(**rank).and_then(|hop| hop.from);
                    from.is_some_and(|from| from / procs != worker)
                });
                let has_it = holders.iter().any(|rank| rank / procs == worker);
                prop_assert!(entered.count() <= usize::from(!has_it));
            }
        }
    }
}
