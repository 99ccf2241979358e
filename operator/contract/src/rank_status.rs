//! What one process tells its agent, through a file of the run directory.

use serde::{Deserialize, Serialize};

use crate::{Progress, counter};

/// What a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Loading libraries, data and device context.
    Preparing,
    /// Prepared; waits for a generation that includes it.
    Lobby,
    /// Lost a peer of its generation; keeps its state and waits for the next one.
    Stranded,
    /// Building the process group of a generation.
    Forming,
    /// Training.
    Training,
    /// Evaluating on the test split.
    Evaluating,
    /// Waiting until the last checkpoint and the results are written.
    Saving,
    /// Complete; about to exit 0.
    Done,
}

impl Phase {
    /// Whether the process can take part in a generation and, if it has one, does: what makes the pod
    /// Ready. A member that is not Ready tells the operator that its generation is broken.
    #[must_use]
    pub const fn is_ready(self) -> bool {
        !matches!(self, Self::Preparing | Self::Stranded)
    }
}

/// The last state of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RankStatus {
    /// What it is doing.
    pub phase: Phase,
    /// Its rank, once a generation includes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Generation it is in, 0 in the lobby.
    pub generation: u64,
    /// Committed steps.
    pub step: u64,
    /// The newest generation that it has begun to form. Whoever is started in place of this process must not form that
    /// one again: its peers have counted this rank already.
    #[serde(default, skip_serializing_if = "counter::is_zero")]
    pub forming: u64,
    /// Bytes and files that have gone between it and the checkpoint volume: while they grow, a long save or
    /// load is not a hang.
    #[serde(default, skip_serializing_if = "counter::is_zero")]
    pub volume_moves: u64,
    /// How many seconds what it does now may take, if it says so: a script that evaluates, or that waits for a rank that
    /// does something alone.
    #[serde(default, skip_serializing_if = "counter::is_zero")]
    pub patience_seconds: u64,
    /// Progress of the whole job; on every rank, the same but for the moment of writing, and for the
    /// straggler, of which rank 0 tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_reads_back_as_itself() {
        let status = RankStatus {
            phase: Phase::Lobby,
            rank: None,
            generation: 0,
            step: 0,
            forming: 0,
            volume_moves: 0,
            patience_seconds: 0,
            progress: None,
        };
        let text = serde_json::to_string(&status).unwrap();
        assert_eq!(text, r#"{"phase":"Lobby","generation":0,"step":0}"#);
        assert_eq!(serde_json::from_str::<RankStatus>(&text).unwrap(), status);
    }

    #[test]
    fn a_rank_that_prepares_or_has_lost_its_peers_is_not_ready() {
        assert!(!Phase::Preparing.is_ready() && !Phase::Stranded.is_ready());
        assert!(Phase::Lobby.is_ready() && Phase::Done.is_ready());
    }
}
