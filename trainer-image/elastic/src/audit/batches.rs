//! The end of the batch that a ledger line must have.

use crate::ledger::{LedgerIdentity, Line};

/// The batches of a ledger, followed line by line.
#[derive(Debug)]
pub(super) struct Batches<'ledger> {
    identity: &'ledger LedgerIdentity,
    generation: u64,
    /// The batch of the reference number of workers, which grows at some epochs.
    stage: u64,
    /// Samples of a full batch of the generation at this stage, once known.
    whole: Option<u64>,
}

impl<'ledger> Batches<'ledger> {
    pub(super) const fn new(identity: &'ledger LedgerIdentity) -> Self {
        Self {
            identity,
            generation: 0,
            stage: 0,
            whole: None,
        }
    }

    /// Returns the end place of a line that begins at `cursor`.
    ///
    /// If the batch follows the workers, it must be the same throughout a generation until it
    /// grows, and possible for some number of workers. The last batch of an epoch may be smaller,
    /// and the last batch of a training too. If the training was made longer later, another
    /// generation follows that batch.
    pub(super) fn end(&mut self, line: &Line, cursor: u64, next: Option<&Line>) -> u64 {
        let whole_end = |whole: u64| self.identity.num_samples.min(cursor.saturating_add(whole));
        let stage = self.identity.batch(line.epoch);
        if self.identity.reference_replicas.is_none() {
            return whole_end(stage);
        }
        if (self.generation, self.stage) != (line.generation, stage) {
            (self.generation, self.stage) = (line.generation, stage);
            self.whole = None;
        }
        let found = line.end.saturating_sub(cursor);
        let may_be_smaller = line.end == self.identity.num_samples
            || next.is_none_or(|next| next.generation != line.generation);
        match self.whole {
            Some(whole) if may_be_smaller && (1..=whole).contains(&found) => line.end,
            Some(whole) => whole_end(whole),
            None if may_be_smaller => line.end.max(cursor + 1).min(self.identity.num_samples),
            None if self.identity.has_batch(found, line.epoch) => {
                self.whole = Some(found);
                line.end
            }
            None => whole_end(stage),
        }
    }
}
