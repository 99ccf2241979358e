//! Processes that the agent restarted while their container continued: the agent keeps them in a
//! file of the run directory and serves them at [`crate::ports::RESTARTS_PATH`].
//!
//! No container ends in this case, so Kubernetes has no termination message. The operator notices a
//! broken generation because its members are not Ready, and polls their agents for the reason.

use serde::{Deserialize, Serialize};

use crate::TerminationMessage;

/// Restarts of the processes of one container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessRestarts {
    /// Number of process restarts since the container started.
    pub total: u32,
    /// Local ranks that are not prepared: the worker cannot take part in a generation yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preparing: Vec<u32>,
    /// The end that explains the newest restart; absent while there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<ProcessEnd>,
}

/// How one process ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessEnd {
    /// Rank of the process on its worker.
    pub local_rank: u32,
    /// Exit code; 128 + n for signal n.
    pub exit_code: i32,
    /// Termination message of the process: reason, rank, generation and step.
    pub message: TerminationMessage,
    /// Time of the end in seconds since 1970, by the node's clock.
    pub ended_at_seconds: i64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reason;

    #[test]
    fn process_restarts_round_trip() {
        let end = ProcessEnd {
            local_rank: 1,
            exit_code: 137,
            message: TerminationMessage {
                reason: Reason::Killed,
                rank: Some(5),
                generation: 3,
                step: 17,
                message: "killed".to_owned(),
                progress: None,
            },
            ended_at_seconds: 1_700_000_000,
        };
        for restarts in [
            ProcessRestarts::default(),
            ProcessRestarts {
                total: 2,
                preparing: vec![1],
                last: Some(end),
            },
        ] {
            let text = serde_json::to_string(&restarts).unwrap();
            let read: ProcessRestarts = serde_json::from_str(&text).unwrap();
            assert_eq!(read, restarts);
        }
    }
}
