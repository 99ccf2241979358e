//! The state that one process reports to its agent, through a file of the run directory.

use serde::{Deserialize, Serialize};

use crate::{Progress, counter};

/// The activity of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// The process loads libraries, data and the device context.
    Preparing,
    /// It is prepared and waits for a generation that includes it.
    Lobby,
    /// It has lost a peer of its generation, keeps its state and waits for the next generation.
    Stranded,
    /// It builds the process group of a generation.
    Forming,
    Training,
    /// It evaluates the test split.
    Evaluating,
    /// It waits until the last checkpoint and the results are written.
    Saving,
    /// Its replica has lost a process, so it ends. First it saves its part of the state.
    SavingPart,
    /// It is complete and about to exit with 0.
    Done,
}

impl Phase {
    /// Whether the process can take part in a generation and, if it has one, does. This makes the
    /// pod Ready. A member that is not Ready shows the operator that its generation is broken.
    #[must_use]
    pub const fn is_ready(self) -> bool {
        !matches!(self, Self::Preparing | Self::Stranded | Self::SavingPart)
    }
}

/// The last state of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RankStatus {
    pub phase: Phase,
    /// Rank of the process, once a generation includes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Generation of the process, 0 in the lobby.
    pub generation: u64,
    /// Committed steps that the process knows.
    pub step: u64,
    /// The newest generation that the process has started to form. A process that replaces it must
    /// not form that generation again, because its peers have already counted this rank.
    #[serde(default, skip_serializing_if = "counter::is_zero")]
    pub forming: u64,
    /// Number of bytes and files transferred to and from the checkpoint volume: while it grows, a
    /// long save or load is not a hang.
    #[serde(default, skip_serializing_if = "counter::is_zero")]
    pub volume_moves: u64,
    /// Seconds that the current activity may take, if the process sets a limit: a script that
    /// evaluates, or that waits for a rank that does something alone.
    #[serde(default, skip_serializing_if = "counter::is_zero")]
    pub patience_seconds: u64,
    /// Progress of the whole job. It is the same on every rank, except for the time of writing and
    /// for the straggler, which only rank 0 reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_status_round_trips() {
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
    fn rank_that_prepares_or_has_lost_another_is_not_ready() {
        for phase in [Phase::Preparing, Phase::Stranded, Phase::SavingPart] {
            assert!(!phase.is_ready(), "{phase:?}");
        }
        assert!(Phase::Lobby.is_ready() && Phase::Done.is_ready());
    }
}
