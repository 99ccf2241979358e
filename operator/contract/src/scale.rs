//! What a change of the number of workers does to the batch of a step.

use serde::{Deserialize, Serialize};

/// What a change of the number of workers does to the batch of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum OnScale {
    /// Nothing: the result does not depend on how many workers there are.
    #[default]
    KeepGlobalBatch,
    /// The batch grows and shrinks with the workers, and the learning rate with the batch.
    ScaleBatch,
}

/// How the learning rate follows the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum RateRule {
    /// In proportion to it (Goyal et al., 2017, "Accurate, Large Minibatch SGD").
    #[default]
    Linear,
    /// In proportion to its square root (Krizhevsky, 2014, "One weird trick for parallelizing
    /// convolutional neural networks").
    SquareRoot,
}

/// How batch and learning rate follow the number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScaleBatch {
    /// Number of workers that `trainer.globalBatchSize` and `trainer.optimizer.learningRate` are
    /// meant for. With W workers a step has W times globalBatchSize / referenceReplicas samples,
    /// rounded, at least 1.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 10_000)))]
    pub reference_replicas: u32,
    /// How the learning rate follows the batch.
    #[serde(default)]
    pub rule: RateRule,
    /// Steps after each change over which the rate goes from the old one to the new one; 0: at once.
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
    fn the_smallest_setting_gets_the_defaults_and_reads_back() {
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
