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
    /// Whether every rank was asked to leave: the job ends, and nobody is left to lose a peer.
    pub all_leave: bool,
}

impl Agreement {
    /// The minimum over ranks of all three.
    #[must_use]
    pub fn of(newest_seen: &[u64], num_not_finite: u64, num_leaving: u64) -> Self {
        Self {
            newest_generation: newest_seen.iter().copied().min().unwrap_or(0),
            all_finite: num_not_finite == 0,
            all_leave: num_leaving == newest_seen.len() as u64,
        }
    }
}

/// Who has the state that a new generation goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSource {
    /// Committed steps of that state.
    pub step: u64,
    /// Lowest rank that holds it.
    pub rank: usize,
    /// Whether somebody lacks it, so that it has to be sent. A training that has not begun is
    /// sent always: nobody's initial weights are taken on trust.
    pub must_send: bool,
}

impl StateSource {
    /// The maximum of the ranks' committed steps wins: a collective can succeed on one rank and
    /// fail on another, so some may have committed a step that others have not. `None` for a rank
    /// whose state is torn, since it was cut off while it received another's; `None` if all are.
    #[must_use]
    pub fn of(committed_steps: &[Option<u64>]) -> Option<Self> {
        let most = committed_steps.iter().copied().max().flatten()?;
        let holds = |committed: &Option<u64>| *committed == Some(most);
        Some(Self {
            step: most,
            rank: committed_steps.iter().position(holds)?,
            must_send: most == 0 || !committed_steps.iter().all(holds),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_agreed_when_the_last_rank_has_seen_it() {
        assert_eq!(Agreement::of(&[4, 3, 4], 0, 0).newest_generation, 3);
        assert_eq!(Agreement::of(&[4, 4, 5], 0, 0).newest_generation, 4);
    }

    #[test]
    fn one_rank_that_is_not_finite_is_enough() {
        assert!(Agreement::of(&[1, 1], 0, 0).all_finite);
        assert!(!Agreement::of(&[1, 1], 1, 0).all_finite);
    }

    #[test]
    fn a_world_leaves_together() {
        assert!(!Agreement::of(&[1, 1], 0, 1).all_leave);
        assert!(Agreement::of(&[1, 1], 0, 2).all_leave);
    }

    #[test]
    fn the_lowest_rank_with_the_most_steps_sends_its_state() {
        let source = StateSource::of(&[Some(6), Some(7), None, Some(7)]).unwrap();
        assert_eq!((source.step, source.rank, source.must_send), (7, 1, true));
    }

    #[test]
    fn equal_states_need_no_sending_once_training_has_begun() {
        assert!(!StateSource::of(&[Some(7), Some(7)]).unwrap().must_send);
        assert!(StateSource::of(&[Some(0), Some(0)]).unwrap().must_send);
    }

    #[test]
    fn a_torn_state_is_never_gone_on_with() {
        let source = StateSource::of(&[None, Some(0)]).unwrap();
        assert_eq!((source.rank, source.must_send), (1, true));
        assert_eq!(StateSource::of(&[None, None]), None);
    }
}
