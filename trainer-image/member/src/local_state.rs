//! What this process holds of the training's state, besides the bytes that are trained.

use roundhouse_elastic::best::Scores;
use roundhouse_elastic::{Chain, Claim, Origin, TrainingPosition};

use crate::checkpoint::Manifest;

/// How far this process is, and what its state is worth to a new generation.
#[derive(Clone, Debug)]
pub struct LocalState {
    /// Committed steps and samples.
    pub position: TrainingPosition,
    /// Committed samples at the last evaluation; 0 before the first.
    pub evaluated: u64,
    /// Whether an evaluation changes the state, so that of two equal ones that which was evaluated is the better.
    pub evaluation_counts: bool,
    /// Whether the last committed step was cut short after its commit, by a peer that was lost: what the rest of a script's
    /// body does to the state was done in part, so another rank that has committed the step can have another state.
    pub is_cut_short: bool,
    /// What the last evaluation found, and of which step.
    pub(crate) scores: Option<(u64, Scores)>,
    /// The end of the ledger, with the lines that may not be durable.
    pub chain: Chain,
    origin: Origin,
    /// The last generation that it was a member's state of.
    generation: u64,
    /// Which state it was receiving when it was cut off.
    torn: Option<Claim>,
}

impl LocalState {
    /// Initial weights.
    #[must_use]
    pub const fn fresh(position: TrainingPosition, chain: Chain) -> Self {
        Self {
            position,
            evaluated: 0,
            evaluation_counts: false,
            is_cut_short: false,
            scores: None,
            chain,
            origin: Origin::Fresh,
            generation: 0,
            torn: None,
        }
    }

    /// From now on this process stands for a checkpoint that it can read. Its bytes are not read yet.
    pub fn stand_for(&mut self, manifest: &Manifest) {
        self.origin = Origin::Loaded;
        self.generation = manifest.generation;
        self.torn = None;
        self.position = manifest.position(self.position.pace);
        self.scores = manifest.scores.map(|scores| (manifest.step, scores));
        self.chain = manifest.chain();
    }

    /// The last generation that the state was a member's of; 0 before the first.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// What this process says of its state when a generation forms.
    #[must_use]
    pub fn claim(&self) -> Claim {
        match (self.torn, self.origin) {
            (Some(torn), _) => torn,
            (None, Origin::Fresh) => Claim::FRESH,
            (None, origin) => Claim::of(origin, &self.chain.head()),
        }
    }

    /// A byte of its state was overwritten: from now on its bytes are partly those of another state. A process that
    /// stands for a checkpoint can read that again, unless it is a newer state that it receives.
    pub(crate) fn begin_to_receive(&mut self, sent: &Claim) {
        if sent.origin != Origin::Loaded || self.origin != Origin::Loaded {
            self.torn = Some(sent.torn());
        }
    }

    /// The checkpoint of this claim is damaged: this process stands for it no longer, if it did.
    pub(crate) fn lose(&mut self, damaged: &Claim) {
        if self.claim() == *damaged {
            self.torn = Some(damaged.torn());
        }
    }

    /// It is the state of a generation's members now. What it is worth to the next one does not change before a step is
    /// committed: a generation that breaks before its first step supersedes nothing.
    pub(crate) const fn go_live(&mut self, generation: u64) {
        self.origin = Origin::Live;
        self.generation = generation;
        self.torn = None;
        self.is_cut_short = false;
    }

    /// What goes with the bytes that are trained, for a rank that lacks it.
    pub(crate) fn words(&self) -> Vec<u8> {
        let (step, scores) = self.scores.unwrap_or_default();
        [
            self.position.to_bytes(),
            step.to_le_bytes().to_vec(),
            scores.to_bytes(),
            self.chain.to_bytes(),
        ]
        .concat()
    }

    /// What an evaluation found of the state of a step.
    pub(crate) fn scores_of(&self, step: u64) -> Option<Scores> {
        let (evaluated, scores) = self.scores?;
        (evaluated == step).then_some(scores)
    }

    /// Takes over [`Self::words`] of another rank; `None` if they cannot be read.
    pub(crate) fn take(&mut self, words: &[u8]) -> Option<()> {
        let (position, rest) = TrainingPosition::from_bytes(words)?;
        let (step, rest) = rest.split_first_chunk()?;
        let (scores, chain) = rest.split_at_checked(Scores::NUM_BYTES)?;
        let (scores, chain) = (Scores::from_bytes(scores)?, Chain::from_bytes(chain)?);
        let step = u64::from_le_bytes(*step);
        (self.position, self.chain) = (position, chain);
        self.scores = (step > 0).then_some((step, scores));
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use roundhouse_elastic::{BatchPace, Digest, Head, Skips};

    use super::*;

    fn local_state(step: u64) -> LocalState {
        let position = TrainingPosition {
            step,
            samples: 10 * step,
            pace: BatchPace {
                batch: 10,
                from_factor: 1.0,
                since_step: 0,
            },
            skips: Skips::NONE,
            loss_scale: None,
        };
        let head = Head {
            generation: 1,
            step,
            hash: Digest::of(&[b"ledger"]),
        };
        LocalState::fresh(position, Chain::from(head))
    }

    #[test]
    fn scores_travel_with_the_evaluated_state() {
        let scores = Scores {
            loss: Some(0.5),
            ..Scores::default()
        };
        for told in [None, Some((7, scores))] {
            let mut sender = local_state(7);
            sender.scores = told;
            let mut receiver = local_state(3);
            receiver.scores = Some((3, Scores::default()));
            receiver.take(&sender.words()).unwrap();
            assert_eq!(receiver.scores, told);
            assert_eq!(receiver.position, sender.position);
        }
    }

    #[test]
    fn scores_of_another_step_are_not_returned() {
        let mut local_state = local_state(7);
        local_state.scores = Some((7, Scores::default()));
        assert!(local_state.scores_of(7).is_some());
        assert!(local_state.scores_of(8).is_none());
    }
}
