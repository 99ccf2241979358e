//! Exit codes of agent and trainer (sysexits.h where one fits) and what each means for a retry.

use serde::{Deserialize, Serialize};

/// How a trainer process, and after it the agent, ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ExitCode {
    /// Training is complete.
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
    /// No progress: ended by the agent's watchdog.
    Stalled,
    /// A device or the node is faulty; continue elsewhere.
    HardwareFault,
    /// Left on request (SIGTERM, drain, suspend).
    Left,
}

impl ExitCode {
    /// Every code, in numeric order.
    pub const ALL: [Self; 9] = [
        Self::Done,
        Self::ConfigInvalid,
        Self::DataInvalid,
        Self::Internal,
        Self::VolumeFailed,
        Self::PeerLost,
        Self::Stalled,
        Self::HardwareFault,
        Self::Left,
    ];

    /// The number the process exits with.
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

    /// The meaning of a number, if it is one of ours.
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
    fn every_code_reads_back_as_itself() {
        for code in ExitCode::ALL {
            assert_eq!(ExitCode::from_code(code.code()), Some(code));
        }
    }

    #[test]
    fn a_foreign_code_is_unknown() {
        assert_eq!(ExitCode::from_code(137), None);
    }
}
