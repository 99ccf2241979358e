//! How far training has come: what rank 0 tells the agent, the agent the operator, the operator
//! the user. What it says about checkpoints has a place of its own in the job's status, so the
//! schema of the progress there leaves it out.

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
    /// Committed steps that the newest checkpoint holds; absent while there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(skip))]
    pub checkpoint_step: Option<u64>,
    /// When it was committed, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(skip))]
    pub checkpoint_at: Option<String>,
    /// Why the last attempt failed, in a sentence; absent when it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(skip))]
    pub checkpoint_error: Option<String>,
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
        assert!(!text.contains("checkpoint"), "{text}");
        assert_eq!(serde_json::from_str::<Progress>(&text).unwrap(), progress);
    }
}
