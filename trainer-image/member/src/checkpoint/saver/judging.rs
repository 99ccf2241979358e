//! Finds out which checkpoint is the best one, as far as this rank knows.

use roundhouse_contract::{BestCheckpoint, BestMetric};
use roundhouse_elastic::best::Scores;

use super::Saver;

impl Saver {
    /// The metric by which the best checkpoint is kept, if it is kept.
    #[must_use]
    pub const fn metric(&self) -> Option<BestMetric> {
        self.metric
    }

    /// Whether the best checkpoint is kept.
    #[must_use]
    pub const fn judges(&self) -> bool {
        self.metric.is_some()
    }

    /// Takes over the best checkpoint that was found on the volume.
    pub const fn know_best(&mut self, best: Option<BestCheckpoint>) {
        self.best = best;
    }

    /// Whether the state of a step is better than the best complete checkpoint.
    #[must_use]
    pub fn is_best(&self, step: u64, scores: &Scores) -> bool {
        let judged = self.judged(step, scores);
        judged.is_some_and(|this| this.replaces(self.best.as_ref()))
    }

    /// The metric by which the best checkpoint is kept, if an evaluation has no finite value of it.
    #[must_use]
    pub fn lacks(&self, scores: &Scores) -> Option<BestMetric> {
        self.metric.filter(|metric| scores.of(*metric).is_none())
    }

    /// Called when a checkpoint is complete. Returns it if it is now the best one.
    pub(super) fn has_completed(&mut self, step: u64, scores: &Scores) -> Option<BestCheckpoint> {
        let this = self.judged(step, scores)?;
        if !this.replaces(self.best.as_ref()) {
            return None;
        }
        self.best = Some(this);
        self.best
    }

    fn judged(&self, step: u64, scores: &Scores) -> Option<BestCheckpoint> {
        let metric = self.metric?;
        let value = scores.of(metric)?;
        Some(BestCheckpoint {
            step,
            metric,
            value,
        })
    }
}
