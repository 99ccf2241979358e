//! Finds the ranks with a different number where all ranks should have the same.

/// Maximum number of ranks that a message lists if there is no majority.
const MOST_LISTED: u32 = 8;

/// Ranks with different numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankMismatch {
    /// More than half of the ranks have the same number.
    Outliers {
        /// One of the ranks of the majority.
        reference: u32,
        /// The ranks with another number.
        ranks: Vec<u32>,
    },
    /// No number belongs to more than half of the ranks, so any rank may be wrong.
    NoMajority {
        /// Number of all ranks.
        num_ranks: u32,
    },
}

/// The data that should be equal on all ranks.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'name> {
    Tensor(&'name str),
    Gradients,
}

impl RankMismatch {
    /// Compares whole numbers, one of each rank. `None`: they are equal.
    #[must_use]
    pub fn of(all: &[f64]) -> Option<Self> {
        let first = all.first()?;
        if all.iter().all(|own| is_equal(*own, *first)) {
            return None;
        }
        let ranks = || (0..).zip(all.iter().copied());
        let is_most = |own| 2 * all.iter().filter(|it| is_equal(**it, own)).count() > all.len();
        let Some((reference, number)) = ranks().find(|(_, own)| is_most(*own)) else {
            return Some(Self::NoMajority {
                num_ranks: u32::try_from(all.len()).unwrap_or(u32::MAX),
            });
        };
        let others = ranks().filter_map(|(rank, own)| (!is_equal(own, number)).then_some(rank));
        Some(Self::Outliers {
            reference,
            ranks: others.collect(),
        })
    }

    /// Compares the ranks with the same shard, of replicas of `num_shards` consecutive ranks.
    /// Returns the first shard that differs.
    #[must_use]
    pub fn of_shards(all: &[f64], num_shards: u32) -> Option<(u32, Self)> {
        let num_shards = num_shards.max(1);
        (0..num_shards).find_map(|shard| {
            let own = all.iter().skip(shard as usize).step_by(num_shards as usize);
            let own: Vec<f64> = own.copied().collect();
            let rank_of = |replica: u32| replica * num_shards + shard;
            let mismatch = match Self::of(&own)? {
                Self::Outliers { reference, ranks } => Self::Outliers {
                    reference: rank_of(reference),
                    ranks: ranks.into_iter().map(rank_of).collect(),
                },
                Self::NoMajority { num_ranks } => Self::NoMajority {
                    num_ranks: num_ranks * num_shards,
                },
            };
            Some((shard, mismatch))
        })
    }

    /// The rank with which the others are compared. It is right only if there is a majority.
    #[must_use]
    pub const fn reference(&self) -> u32 {
        match self {
            Self::Outliers { reference, .. } => *reference,
            Self::NoMajority { .. } => 0,
        }
    }

    /// Whether there is a majority and a rank belongs to it.
    #[must_use]
    pub fn is_of_majority(&self, rank: u32) -> bool {
        match self {
            Self::Outliers { ranks, .. } => !ranks.contains(&rank),
            Self::NoMajority { .. } => false,
        }
    }

    /// Describes which ranks differ.
    #[must_use]
    pub fn words(&self, subject: Subject<'_>) -> String {
        let (what, is_not_that) = match subject {
            Subject::Tensor(name) => (name, "is not that"),
            Subject::Gradients => ("the gradients", "are not those"),
        };
        match self {
            Self::Outliers { reference, ranks } => format!(
                "{what} of {} {is_not_that} of rank {reference} and of most ranks",
                listed(ranks)
            ),
            Self::NoMajority { num_ranks } => {
                let ranks = if *num_ranks > MOST_LISTED {
                    format!("ranks 0 to {}", num_ranks - 1)
                } else {
                    listed(&(0..*num_ranks).collect::<Vec<_>>())
                };
                format!("{what} of {ranks} differ; there is no majority")
            }
        }
    }
}

/// Lists ranks, such as `rank 1` and `ranks 0, 2 and 3`.
fn listed(ranks: &[u32]) -> String {
    let names: Vec<String> = ranks.iter().map(u32::to_string).collect();
    match names.as_slice() {
        [] => String::new(),
        [rank] => format!("rank {rank}"),
        [first @ .., last] => format!("ranks {} and {last}", first.join(", ")),
    }
}

/// Compares two whole numbers.
fn is_equal(left: f64, right: f64) -> bool {
    (left - right).abs() < 0.5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rank_is_reference_without_majority() {
        let words = |digests: &[f64], subject| {
            RankMismatch::of(digests).map(|mismatch| mismatch.words(subject))
        };
        for (digests, expected) in [
            (
                &[7.0, 8.0][..],
                "ranks 0 and 1 differ; there is no majority",
            ),
            (
                &[7.0, 8.0, 7.0, 8.0],
                "ranks 0, 1, 2 and 3 differ; there is no majority",
            ),
            (
                &[9.0, 8.0, 8.0, 7.0, 8.0],
                "ranks 0 and 3 are not those of rank 1 and of most ranks",
            ),
            (
                &[7.0, 8.0, 8.0],
                "rank 0 are not those of rank 1 and of most ranks",
            ),
        ] {
            let expected = format!("the gradients of {expected}");
            assert_eq!(words(digests, Subject::Gradients).unwrap(), expected);
        }
        let many: Vec<f64> = (0..512).map(f64::from).collect();
        let expected = "the gradients of ranks 0 to 511 differ; there is no majority";
        assert_eq!(words(&many, Subject::Gradients).unwrap(), expected);
        let expected = "b of rank 1 is not that of rank 0 and of most ranks";
        let tensor = Subject::Tensor("b");
        assert_eq!(words(&[8.0, 7.0, 8.0], tensor).unwrap(), expected);
        assert_eq!(words(&[7.0; 3], tensor), None);
        // Replicas of two ranks: shards 7 and 8, and the second rank of the third replica differs.
        let digests = [7.0, 8.0, 7.0, 8.0, 7.0, 9.0];
        let (shard, mismatch) = RankMismatch::of_shards(&digests, 2).unwrap();
        let ranks = vec![5];
        let expected = RankMismatch::Outliers {
            reference: 1,
            ranks,
        };
        assert_eq!((shard, mismatch), (1, expected));
        assert_eq!(RankMismatch::of_shards(&digests[..4], 2), None);
        assert_eq!(words(&[], tensor), None);
    }
}
