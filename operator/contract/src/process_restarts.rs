//! Processes that the agent restarted while their container continued: the agent keeps them in a
//! file of the run directory and serves them at [`crate::ports::RESTARTS_PATH`].
//!
//! No container ends in this case, so Kubernetes has no termination message. The operator notices a
//! broken generation because its members are not Ready, and polls their agents for the reason.

use serde::{Deserialize, Serialize};

use crate::{Phase, RankStatus, TerminationMessage};

/// Restarts of the processes of one container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessRestarts {
    /// Number of process restarts since the container started.
    pub total: u32,
    /// Local ranks that are not prepared: the worker cannot take part in a generation yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preparing: Vec<u32>,
    /// Whether no process has been in a generation since the restart: the worker holds no state.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_state: bool,
    /// In a replica of several pods, the life whose processes in this pod have ended, see
    /// [`crate::ReplicaPlace::life`]; empty while they run. The replica needs another life.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ended_life: String,
    /// Whether the replica has several pods. Each start of the processes is then another life, and
    /// the operator knows that it has no state.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_lives: bool,
    /// Whether all processes are ready to train, or train. An older agent reports false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ready: bool,
    /// The end that explains the newest restart; absent while there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<ProcessEnd>,
}

impl ProcessRestarts {
    /// Adds what the present statuses of the processes show, in the order of their local ranks.
    #[must_use]
    pub fn with_statuses(self, statuses: &[Option<RankStatus>]) -> Self {
        let is_prepared = |status: &RankStatus| status.phase != Phase::Preparing;
        let preparing = (0..).zip(statuses);
        let preparing = preparing.filter(|(_, status)| !status.as_ref().is_some_and(is_prepared));
        let mut known = statuses.iter().flatten();
        let mut report = Self {
            preparing: preparing.map(|(local_rank, _)| local_rank).collect(),
            without_state: self.total > 0
                && !self.has_lives
                && !known.any(|status| status.generation > 0),
            ..self
        };
        let mut all = statuses.iter();
        report.ready = all.all(|it| it.as_ref().is_some_and(|it| report.is_ready(it)));
        report
    }

    /// Whether a process with this status makes the worker Ready. A worker that lost its state is
    /// not Ready in the lobby: it has the place of its container in a generation, so the operator
    /// would believe that it trains.
    #[must_use]
    pub fn is_ready(&self, status: &RankStatus) -> bool {
        let waits_again = self.without_state && status.phase == Phase::Lobby;
        status.phase.is_ready() && !waits_again
    }
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

    fn status(phase: Phase, generation: u64) -> RankStatus {
        RankStatus {
            phase,
            rank: None,
            generation,
            step: 0,
            forming: 0,
            volume_moves: 0,
            patience_seconds: 0,
            progress: None,
        }
    }

    #[test]
    fn statuses_show_who_prepares_and_whether_a_state_is_left() {
        let new = Some(status(Phase::Preparing, 0));
        let lobby = Some(status(Phase::Lobby, 0));
        let stranded = Some(status(Phase::Stranded, 3));
        let trains = Some(status(Phase::Training, 3));
        for (total, statuses, preparing, without_state, ready) in [
            (0, [None, new.clone()], vec![0, 1], false, false),
            (0, [lobby.clone(), lobby.clone()], vec![], false, true),
            (1, [None, new.clone()], vec![0, 1], true, false),
            (1, [lobby.clone(), new.clone()], vec![1], true, false),
            (1, [lobby.clone(), lobby.clone()], vec![], true, false),
            (1, [stranded.clone(), new], vec![1], false, false),
            (1, [lobby.clone(), stranded], vec![], false, false),
            (1, [trains.clone(), trains], vec![], false, true),
        ] {
            let record = ProcessRestarts {
                total,
                ..ProcessRestarts::default()
            };
            let found = record.with_statuses(&statuses);
            assert_eq!(found.preparing, preparing, "{statuses:?}");
            assert_eq!(found.without_state, without_state, "{statuses:?}");
            assert_eq!(found.ready, ready, "{statuses:?}");
        }
    }

    #[test]
    fn worker_without_state_is_ready_once_a_generation_forms() {
        for (without_state, phase, is_ready) in [
            (false, Phase::Lobby, true),
            (true, Phase::Lobby, false),
            (true, Phase::Forming, true),
            (true, Phase::Stranded, false),
        ] {
            let record = ProcessRestarts {
                without_state,
                ..ProcessRestarts::default()
            };
            let status = status(phase, 0);
            assert_eq!(record.is_ready(&status), is_ready, "{phase:?}");
        }
    }

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
                ended_life: String::new(),
                has_lives: false,
                total: 2,
                preparing: vec![1],
                without_state: true,
                ready: true,
                last: Some(end),
            },
        ] {
            let text = serde_json::to_string(&restarts).unwrap();
            let read: ProcessRestarts = serde_json::from_str(&text).unwrap();
            assert_eq!(read, restarts);
        }
    }
}
