//! How far training has come: what rank 0 tells the agent, the agent the operator, the operator
//! the user.

use serde::{Deserialize, Serialize};

/// Progress of a job as its rank 0 sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Generation that committed the last step.
    pub generation: u64,
    /// Ranks that committed it.
    pub world_size: u32,
    /// Committed optimizer steps since the job's first.
    pub step: u64,
    /// Steps of the whole job.
    pub total_steps: u64,
    /// Epoch of the next step, from 0.
    pub epoch: u64,
    /// Mean training loss over the last steps; absent if it is not a finite number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Samples per second over the whole world.
    pub samples_per_second: f64,
    /// Accuracy on the test split, 0 to 1, once evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_accuracy: Option<f64>,
    /// Mean loss on the test split, once evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_loss: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_reads_back_and_leaves_out_what_is_unknown() {
        let progress = Progress {
            step: 3,
            total_steps: 9,
            loss: Some(0.5),
            ..Progress::default()
        };
        let text = serde_json::to_string(&progress).unwrap();
        assert!(!text.contains("eval"), "{text}");
        assert_eq!(serde_json::from_str::<Progress>(&text).unwrap(), progress);
    }
}
