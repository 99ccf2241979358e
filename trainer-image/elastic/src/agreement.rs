//! What the ranks of a generation conclude from what each of them knows.
//!
//! Every input is one value per rank, exchanged by a collective, so all ranks conclude the same.

/// What the ranks agree on at the end of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The newest generation that *every* rank has seen.
    pub newest_generation: u64,
    /// Whether gradients and loss are finite on every rank.
    pub all_finite: bool,
    /// Whether every rank was asked to leave. Then the job ends, and no rank is left
    /// behind without its peers.
    pub all_leave: bool,
}

impl Agreement {
    /// The minimum of all three over the ranks.
    #[must_use]
    pub fn of(newest_seen: &[u64], num_not_finite: u64, num_leaving: u64) -> Self {
        Self {
            newest_generation: newest_seen.iter().copied().min().unwrap_or(0),
            all_finite: num_not_finite == 0,
            all_leave: num_leaving == newest_seen.len() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_is_agreed_once_every_rank_has_seen_it() {
        assert_eq!(Agreement::of(&[4, 3, 4], 0, 0).newest_generation, 3);
        assert_eq!(Agreement::of(&[4, 4, 5], 0, 0).newest_generation, 4);
    }

    #[test]
    fn one_rank_with_infinite_gradients_is_enough() {
        assert!(Agreement::of(&[1, 1], 0, 0).all_finite);
        assert!(!Agreement::of(&[1, 1], 1, 0).all_finite);
    }

    #[test]
    fn ranks_of_a_group_leave_together() {
        assert!(!Agreement::of(&[1, 1], 0, 1).all_leave);
        assert!(Agreement::of(&[1, 1], 0, 2).all_leave);
    }
}
