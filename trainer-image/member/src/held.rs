//! What this process holds of the training's state, besides the bytes that are trained.

use roundhouse_elastic::state::Lost;
use roundhouse_elastic::{Chain, Claim, Mark, Origin};

use crate::checkpoint::Manifest;

/// How far this process is, and what its state is worth to a new generation.
#[derive(Clone, Debug)]
pub struct Held {
    /// Committed steps and samples.
    pub mark: Mark,
    /// Committed samples at the last evaluation; 0 before the first.
    pub evaluated: u64,
    /// The end of the ledger, with the lines that may not be durable.
    pub chain: Chain,
    origin: Origin,
    /// The last generation that it was a member's state of.
    generation: u64,
    /// Which state it was receiving when it was cut off.
    torn: Option<Lost>,
}

impl Held {
    /// Initial weights.
    #[must_use]
    pub const fn fresh(mark: Mark, chain: Chain) -> Self {
        Self {
            mark,
            evaluated: 0,
            chain,
            origin: Origin::Fresh,
            generation: 0,
            torn: None,
        }
    }

    /// From now on this process stands for a checkpoint that it can read. Its bytes are not read yet.
    pub fn stand_for(&mut self, manifest: &Manifest) {
        let claim = manifest.claim();
        self.origin = claim.origin;
        self.generation = claim.generation;
        self.torn = None;
        self.mark = manifest.mark(self.mark.pace);
        self.chain = Chain::from(manifest.ledger);
    }

    /// The last generation that the state was a member's of; 0 before the first.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// What this process says of its state when a generation forms.
    #[must_use]
    pub fn claim(&self) -> Claim {
        match self.torn {
            Some(Lost { generation, step }) => Claim {
                origin: Origin::Torn,
                generation,
                step,
            },
            None => Claim {
                origin: self.origin,
                generation: self.generation,
                step: self.mark.step,
            },
        }
    }

    /// From now on its bytes are partly those of another state. A process that stands for a checkpoint can read
    /// that again, unless it is a newer state that it receives.
    pub(crate) fn begin_to_receive(&mut self, sent: &Claim) {
        if sent.origin != Origin::Loaded || self.origin != Origin::Loaded {
            self.torn = Some(Lost {
                generation: sent.generation,
                step: sent.step,
            });
        }
    }

    /// It is the state of a generation's members now.
    pub(crate) const fn go_live(&mut self, generation: u64) {
        self.origin = Origin::Live;
        self.generation = generation;
        self.torn = None;
    }

    /// What goes with the bytes that are trained, for a rank that lacks it.
    pub(crate) fn words(&self) -> Vec<u8> {
        [self.mark.to_bytes(), self.chain.to_bytes()].concat()
    }

    /// Takes over [`Self::words`] of another rank; `None` if they cannot be read.
    pub(crate) fn take(&mut self, words: &[u8]) -> Option<()> {
        let (mark, chain) = Mark::from_bytes(words)?;
        (self.mark, self.chain) = (mark, Chain::from_bytes(chain)?);
        Some(())
    }
}
