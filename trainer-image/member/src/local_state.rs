//! What this process has of the training's state, besides the bytes that are trained.

use roundhouse_elastic::best::Scores;
use roundhouse_elastic::{Chain, CheckpointId, Claim, Origin, TrainingPosition};

use crate::checkpoint::Manifest;

/// The position of this process, and the claim that its state has in a new generation.
#[derive(Clone, Debug)]
pub struct LocalState {
    /// Number of committed steps and samples.
    pub position: TrainingPosition,
    /// Number of committed samples at the last evaluation; 0 before the first.
    pub evaluated: u64,
    /// Whether an evaluation changes the state. Of two equal claims the evaluated state is then the
    /// better.
    pub evaluation_counts: bool,
    /// Whether a lost peer cut the last step short after its commit. The rest of a script's loop
    /// body was then executed in part, so another rank that has committed the step can have a
    /// different state.
    pub is_cut_short: bool,
    /// The last evaluated step and its scores.
    pub(crate) scores: Option<(u64, Scores)>,
    /// The end of the ledger, with the lines that may not be durable.
    pub chain: Chain,
    origin: Origin,
    /// The last generation that trained with this state.
    generation: u64,
    /// The claim of the state that was being received when the connection was lost.
    torn: Option<Claim>,
}

impl LocalState {
    /// The local state of a process with initial weights.
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

    /// Makes this process claim a checkpoint that it can read. The bytes are not read yet.
    pub fn stand_for(&mut self, manifest: &Manifest) {
        self.origin = Origin::Loaded;
        self.generation = manifest.generation;
        self.torn = None;
        self.position = manifest.position(self.position.pace);
        self.scores = manifest.scores.map(|scores| (manifest.step, scores));
        self.chain = manifest.chain();
    }

    /// The last generation that trained with this state; 0 before the first.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// The claim of this process when a generation forms.
    #[must_use]
    pub fn claim(&self) -> Claim {
        match (self.torn, self.origin) {
            (Some(torn), _) => torn,
            (None, Origin::Fresh) => Claim::FRESH,
            (None, origin) => Claim::of(origin, &self.chain.head()),
        }
    }

    /// Records that bytes of the state were overwritten by those of another state. A process that
    /// claims a checkpoint can read it again, unless it was receiving a newer state.
    pub(crate) fn begin_to_receive(&mut self, sent: &Claim) {
        if sent.origin != Origin::Loaded || self.origin != Origin::Loaded {
            self.torn = Some(sent.torn());
        }
    }

    /// Drops the claim to a checkpoint that turned out to be damaged.
    pub(crate) fn lose(&mut self, damaged: &Claim) {
        if self.claim() == *damaged {
            self.torn = Some(damaged.torn());
        }
    }

    /// The local state of a process that reads a copy of the state `id` with these
    /// [`Self::words`]. `None` if they cannot be parsed or name another state.
    pub(crate) fn held(&self, words: &[u8], id: CheckpointId) -> Option<Self> {
        let mut held = self.clone();
        held.take(words)?;
        if CheckpointId::of(&held.chain.head()) != id {
            return None;
        }
        (held.origin, held.generation, held.torn) = (Origin::Held, id.generation, None);
        Some(held)
    }

    /// Marks the state as one with which a generation trains. The claim does not change before a
    /// step is committed: a generation that ends before its first step supersedes none.
    pub(crate) const fn go_live(&mut self, generation: u64) {
        self.origin = Origin::Live;
        self.generation = generation;
        self.torn = None;
        self.is_cut_short = false;
    }

    /// The position, scores and ledger lines that go with the state to a rank that lacks it.
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

    /// Scores of the state of a step, if it was evaluated.
    pub(crate) fn scores_of(&self, step: u64) -> Option<Scores> {
        let (evaluated, scores) = self.scores?;
        (evaluated == step).then_some(scores)
    }

    /// Takes over [`Self::words`] of another rank; `None` if they cannot be parsed.
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
        for expected in [None, Some((7, scores))] {
            let mut sender = local_state(7);
            sender.scores = expected;
            let mut receiver = local_state(3);
            receiver.scores = Some((3, Scores::default()));
            receiver.take(&sender.words()).unwrap();
            assert_eq!(receiver.scores, expected);
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
