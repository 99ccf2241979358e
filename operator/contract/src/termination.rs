//! The termination message: why a worker's container ended, as the JSON that Kubernetes keeps in
//! the pod's status (4,096 bytes at most).

use serde::{Deserialize, Serialize};

use crate::{ExitCode, Progress, counter};

/// Longest [`TerminationMessage::message`] in bytes; leaves room for the rest of the JSON.
pub const MAX_MESSAGE_BYTES: usize = 1_024;

crate::closed_enum! {
    /// Why a process ended: one reason for each [`ExitCode`], and two for ends without
    /// one of these codes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum Reason {
        /// The process ended with [`ExitCode::Done`].
        Completed,
        /// The process ended with [`ExitCode::ConfigInvalid`].
        ConfigInvalid,
        /// The process ended with [`ExitCode::DataInvalid`].
        DataInvalid,
        /// The process ended with [`ExitCode::Internal`].
        InternalError,
        /// The process ended with [`ExitCode::VolumeFailed`].
        VolumeFailed,
        /// The process ended with [`ExitCode::PeerLost`].
        PeerLost,
        /// The process ended with [`ExitCode::Stalled`].
        Stalled,
        /// The process ended with [`ExitCode::HardwareFault`].
        HardwareFault,
        /// The process ended with [`ExitCode::Left`].
        Left,
        /// A signal ended the process.
        Killed,
        /// The process ended with any other exit code.
        Crashed,
    }
}

impl Reason {
    /// The reason that belongs to an exit code.
    #[must_use]
    pub const fn of(code: ExitCode) -> Self {
        match code {
            ExitCode::Done => Self::Completed,
            ExitCode::ConfigInvalid => Self::ConfigInvalid,
            ExitCode::DataInvalid => Self::DataInvalid,
            ExitCode::Internal => Self::InternalError,
            ExitCode::VolumeFailed => Self::VolumeFailed,
            ExitCode::PeerLost => Self::PeerLost,
            ExitCode::Stalled => Self::Stalled,
            ExitCode::HardwareFault => Self::HardwareFault,
            ExitCode::Left => Self::Left,
        }
    }

    /// The reason in `CamelCase`, as Kubernetes requires.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "Completed",
            Self::ConfigInvalid => "ConfigInvalid",
            Self::DataInvalid => "DataInvalid",
            Self::InternalError => "InternalError",
            Self::VolumeFailed => "VolumeFailed",
            Self::PeerLost => "PeerLost",
            Self::Stalled => "Stalled",
            Self::HardwareFault => "HardwareFault",
            Self::Left => "Left",
            Self::Killed => "Killed",
            Self::Crashed => "Crashed",
        }
    }
}

/// Why a worker's container, or one of its processes, ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminationMessage {
    /// Cause of the end, for programs.
    pub reason: Reason,
    /// Rank of the process that ended first, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Generation of the process, 0 in the lobby.
    #[serde(deserialize_with = "counter::read")]
    pub generation: u64,
    /// Last committed step that it knew.
    #[serde(deserialize_with = "counter::read")]
    pub step: u64,
    /// One sentence for people; the JSON has at most [`MAX_MESSAGE_BYTES`] of it.
    pub message: String,
    /// Final progress, when training completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

impl TerminationMessage {
    /// JSON within the limit of Kubernetes: the sentence is cut at [`MAX_MESSAGE_BYTES`].
    ///
    /// # Errors
    /// The function never fails for values of this type; serde's signature requires a result.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        let mut short = self.clone();
        let end = short.message.floor_char_boundary(MAX_MESSAGE_BYTES);
        short.message.truncate(end);
        serde_json::to_string(&short)
    }

    /// Reads the output of [`Self::to_json`]; `None` for a message of another program.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> TerminationMessage {
        TerminationMessage {
            reason: Reason::DataInvalid,
            rank: Some(1),
            generation: 1,
            step: 0,
            message: text.to_owned(),
            progress: None,
        }
    }

    #[test]
    fn termination_message_round_trips() {
        let text = message("/data/x is missing").to_json().unwrap();
        assert_eq!(
            TerminationMessage::parse(&text),
            Some(message("/data/x is missing"))
        );
    }

    #[test]
    fn long_message_is_cut_between_characters() {
        let text = message(&"é".repeat(5_000)).to_json().unwrap();
        assert!(text.len() < 4_096);
        assert_eq!(
            TerminationMessage::parse(&text).unwrap().message.len(),
            MAX_MESSAGE_BYTES
        );
    }

    #[test]
    fn message_of_another_program_is_not_parsed() {
        assert_eq!(TerminationMessage::parse("OOM"), None);
    }

    #[test]
    fn reason_names_match_serialization() {
        for reason in Reason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        }
    }
}
