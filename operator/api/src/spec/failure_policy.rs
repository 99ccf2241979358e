//! `spec.failurePolicy`: what a failure costs, and when it ends the job.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When failures end the job.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FailurePolicy {
    /// Incidents in a row, without a newly committed step between them, until the job fails.
    #[schemars(range(min = 0, max = 10_000))]
    pub backoff_limit: u32,
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self { backoff_limit: 6 }
    }
}
