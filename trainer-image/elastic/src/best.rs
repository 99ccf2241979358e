//! The results of evaluations, and the choice of the best checkpoint.

use roundhouse_contract::{BestCheckpoint, BestMetric};
use serde::{Deserialize, Serialize};

use crate::checkpoint::CheckpointId;

/// Results of an evaluation of one state. All numbers are finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scores {
    /// Mean loss over the samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Fraction of samples whose highest score is their label's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top1: Option<f64>,
    /// Fraction of samples whose label has one of the five highest scores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top5: Option<f64>,
    /// Perplexity of a language model: `exp(loss)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
}

impl Scores {
    /// Length of [`Self::to_bytes`] in bytes.
    pub const NUM_BYTES: usize = 32;

    /// Drops the numbers that are not finite, because they cannot be compared.
    #[must_use]
    pub fn finite(self) -> Self {
        let finite = |value: Option<f64>| value.filter(|value| value.is_finite());
        let Self {
            loss,
            top1,
            top5,
            perplexity,
        } = self;
        Self {
            loss: finite(loss),
            top1: finite(top1),
            top5: finite(top5),
            perplexity: finite(perplexity),
        }
    }

    /// Returns the score that the metric compares.
    #[must_use]
    pub const fn of(&self, metric: BestMetric) -> Option<f64> {
        match metric {
            BestMetric::Loss => self.loss,
            BestMetric::Top1 => self.top1,
            BestMetric::Top5 => self.top5,
            BestMetric::Perplexity => self.perplexity,
        }
    }

    /// Serializes the scores for a rank that lacks the state: four 64-bit floats, little-endian,
    /// NaN for a missing one.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let numbers = BestMetric::ALL.map(|metric| self.of(metric).unwrap_or(f64::NAN));
        numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
    }

    /// Parses [`Self::to_bytes`]; `None` for another length.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.as_chunks();
        let (&[loss, top1, top5, perplexity], []) = (numbers, rest) else {
            return None;
        };
        let number = |bytes| Some(f64::from_le_bytes(bytes));
        Some(
            Self {
                loss: number(loss),
                top1: number(top1),
                top5: number(top5),
                perplexity: number(perplexity),
            }
            .finite(),
        )
    }
}

/// Returns the best of the evaluated checkpoints, the first of equal ones; `None`
/// if none was evaluated.
#[must_use]
pub fn best(
    checkpoints: &[(CheckpointId, Scores)],
    metric: BestMetric,
) -> Option<(CheckpointId, BestCheckpoint)> {
    let mut in_order: Vec<_> = checkpoints.iter().collect();
    in_order.sort_unstable_by_key(|(id, _)| *id);
    let mut best: Option<(CheckpointId, BestCheckpoint)> = None;
    for (id, scores) in in_order {
        let Some(value) = scores.of(metric) else {
            continue;
        };
        let this = BestCheckpoint {
            step: id.step,
            metric,
            value,
        };
        if this.replaces(best.as_ref().map(|(_, best)| best)) {
            best = Some((*id, this));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(generation: u64, step: u64) -> CheckpointId {
        CheckpointId { generation, step }
    }

    fn scores(loss: f64, top1: Option<f64>) -> Scores {
        Scores {
            loss: Some(loss),
            top1,
            ..Scores::default()
        }
    }

    #[test]
    fn scores_round_trip_without_infinite_numbers() {
        for scores in [scores(0.25, Some(0.5)), Scores::default()] {
            let bytes = scores.to_bytes();
            assert_eq!(bytes.len(), Scores::NUM_BYTES);
            assert_eq!(Scores::from_bytes(&bytes), Some(scores));
            let text = serde_json::to_string(&scores).unwrap();
            assert_eq!(serde_json::from_str::<Scores>(&text).unwrap(), scores);
        }
        assert_eq!(scores(f64::INFINITY, None).finite(), Scores::default());
        assert_eq!(Scores::from_bytes(&[0; 8]), None);
    }

    #[test]
    fn best_is_the_first_checkpoint_with_the_best_score() {
        let checkpoints = [
            (id(2, 40), scores(0.3, Some(0.9))),
            (id(1, 30), scores(0.2, Some(0.8))),
            (id(1, 10), scores(0.9, None)),
            (id(2, 50), scores(0.2, Some(0.9))),
        ];
        let best_step = |metric| best(&checkpoints, metric).map(|(id, best)| (id, best.value));
        assert_eq!(best_step(BestMetric::Loss), Some((id(1, 30), 0.2)));
        assert_eq!(best_step(BestMetric::Top1), Some((id(2, 40), 0.9)));
        assert_eq!(best_step(BestMetric::Perplexity), None);
        assert_eq!(best(&[], BestMetric::Loss), None);
    }
}
