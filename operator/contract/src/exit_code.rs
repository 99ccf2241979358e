//! Exit codes of agent and trainer (from sysexits.h where one fits), and whether a retry can help.

use serde::{Deserialize, Serialize};

crate::closed_enum! {
    /// How a trainer process, and after it the agent, ends.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum ExitCode {
        /// Training is complete and its results are written.
        Done,
        /// The configuration is wrong; running it again cannot help.
        ConfigInvalid,
        /// The data is missing or corrupt; running it again cannot help.
        DataInvalid,
        /// A defect of Roundhouse itself.
        Internal,
        /// The checkpoint volume took or gave nothing for too long; temporary.
        VolumeFailed,
        /// A peer or the rendezvous store was lost; temporary.
        PeerLost,
        /// The agent's watchdog ended a process without progress.
        Stalled,
        /// A device or the node is faulty; training continues elsewhere.
        HardwareFault,
        /// The process left on request (SIGTERM, drain, suspension).
        Left,
    }
}

impl ExitCode {
    /// The number with which the process exits.
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Self::Done => 0,
            Self::ConfigInvalid => 64,
            Self::DataInvalid => 65,
            Self::Internal => 70,
            Self::VolumeFailed => 74,
            Self::PeerLost => 75,
            Self::Stalled => 76,
            Self::HardwareFault => 77,
            Self::Left => 143,
        }
    }

    /// The exit code with this number, if there is one.
    #[must_use]
    pub fn from_code(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.code() == code)
    }

    /// Whether running the same job again ends the same way.
    #[must_use]
    pub const fn is_permanent(self) -> bool {
        matches!(self, Self::ConfigInvalid | Self::DataInvalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_round_trip() {
        for code in ExitCode::ALL {
            assert_eq!(ExitCode::from_code(code.code()), Some(code));
        }
    }

    #[test]
    fn unknown_exit_code_is_none() {
        assert_eq!(ExitCode::from_code(137), None);
    }
}
