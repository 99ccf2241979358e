//! `spec.elastic`: how the set of workers changes.

use roundhouse_contract::{Mode, OnScale, ScaleBatch};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the set of workers changes while the job trains.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Elastic {
    /// How workers change from one generation to the next. Immutable.
    pub mode: Mode,
    /// How a change of the number of workers affects the batch of a step. Immutable.
    pub on_scale: OnScale,
    /// `onScale: ScaleBatch`: how batch and learning rate follow the number of workers. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_batch: Option<ScaleBatch>,
    /// Seconds that a new worker waits for others, so that they join together. It does not wait
    /// when all wanted workers are ready, and it never waits for a worker that is lost.
    #[schemars(range(min = 0, max = 3_600))]
    pub join_window_seconds: u32,
    /// Mode Restart: seconds that the agent waits for a newer generation after an error of the
    /// script, which may be the consequence of a lost peer. If a generation comes, the script
    /// starts again in it. Otherwise the worker fails. Immutable while the job is not suspended.
    #[schemars(range(min = 0, max = 3_600))]
    pub peer_failure_window_seconds: u32,
    /// Mode Restart: seconds between SIGTERM and SIGKILL of a script, in which it can save its
    /// state. Immutable while the job is not suspended.
    #[schemars(range(min = 0, max = 86_400))]
    pub leave_grace_seconds: u32,
}

impl Default for Elastic {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            on_scale: OnScale::default(),
            scale_batch: None,
            join_window_seconds: 10,
            peer_failure_window_seconds: 5,
            leave_grace_seconds: 30,
        }
    }
}
