//! How a change of the number of workers affects the batch of a step.

use serde::{Deserialize, Serialize};

/// How a change of the number of workers affects the batch of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum OnScale {
    /// The batch stays, so the result does not depend on the number of workers.
    #[default]
    KeepGlobalBatch,
    /// The batch grows and shrinks with the number of workers, and the learning
    /// rate with the batch.
    ScaleBatch,
}

/// How the learning rate follows the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum RateRule {
    /// In proportion to the batch (Goyal et al., 2017, "Accurate, Large Minibatch SGD").
    #[default]
    Linear,
    /// In proportion to the square root of the batch (Krizhevsky, 2014, "One weird trick for
    /// parallelizing convolutional neural networks").
    SquareRoot,
}

/// How batch and learning rate follow the number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScaleBatch {
    /// Number of workers for which `trainer.globalBatchSize` and `trainer.optimizer.learningRate`
    /// are meant. With W workers a step has W times globalBatchSize / referenceReplicas samples,
    /// rounded, at least 1.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 10_000)))]
    pub reference_replicas: u32,
    /// How the learning rate follows the batch.
    #[serde(default)]
    pub rule: RateRule,
    /// Steps after each change over which the learning rate moves from the old value to the new
    /// one; 0: at once.
    #[serde(default = "default_warmup_steps")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 1_000_000_000)))]
    pub warmup_steps: u32,
}

const fn default_warmup_steps() -> u32 {
    100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimal_scale_batch_has_defaults() {
        let smallest: ScaleBatch = serde_json::from_str(r#"{"referenceReplicas": 4}"#).unwrap();
        let expected = ScaleBatch {
            reference_replicas: 4,
            rule: RateRule::Linear,
            warmup_steps: 100,
        };
        assert_eq!(smallest, expected);
        let text = serde_json::to_string(&smallest).unwrap();
        assert_eq!(serde_json::from_str::<ScaleBatch>(&text).unwrap(), expected);
        assert!(serde_json::from_str::<ScaleBatch>("{}").is_err());
    }
}
