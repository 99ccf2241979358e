//! How workers change from one generation to the next.

use serde::{Deserialize, Serialize};

/// How workers change from one generation to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum Mode {
    /// The processes stay, with their state, and form a new process group. They run
    /// the built-in trainer or, without `trainer`, your own command, a Python
    /// script that calls `roundhouse.join()`.
    #[default]
    InProcess,
    /// The agent restarts the processes, as torchrun does: for any image and any script that
    /// resumes from its own checkpoint.
    Restart,
}

impl Mode {
    /// The name as in a configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InProcess => "InProcess",
            Self::Restart => "Restart",
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::InProcess, Self::Restart]
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| format!("{text:?} is neither InProcess nor Restart"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_round_trip() {
        for mode in [Mode::InProcess, Mode::Restart] {
            assert_eq!(mode.as_str().parse(), Ok(mode));
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.as_str());
        }
        assert!("restart".parse::<Mode>().is_err());
    }
}
