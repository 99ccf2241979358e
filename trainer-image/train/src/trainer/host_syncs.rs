//! Finds calls in a step that make the host wait for the GPU, for tests on GPUs. On CPUs it does nothing.

use roundhouse_contract::environment::EnvironmentInvalid;

use crate::failure::Failure;

/// Says what is done about such calls: `warn` or `refuse`.
const VARIABLE: &str = "ROUNDHOUSE_HOST_SYNCS";

/// What libtorch does about a call in a step that makes the host wait for the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostSyncs {
    /// Nothing.
    Allow,
    /// A warning on stderr.
    Warn,
    /// The call fails, and so does training.
    Refuse,
}

impl HostSyncs {
    /// As the environment has it.
    pub(super) fn from_environment() -> Result<Self, EnvironmentInvalid> {
        Self::parse(std::env::var(VARIABLE).ok().as_deref())
    }

    fn parse(value: Option<&str>) -> Result<Self, EnvironmentInvalid> {
        match value {
            None | Some("") => Ok(Self::Allow),
            Some("warn") => Ok(Self::Warn),
            Some("refuse") => Ok(Self::Refuse),
            Some(other) => Err(EnvironmentInvalid {
                variable: VARIABLE,
                found: Some(other.to_owned()),
            }),
        }
    }

    /// Launches a step that is not the first of its generation.
    #[cfg(feature = "nccl")]
    pub(super) fn watch<T>(
        self,
        launch: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        use roundhouse_c10d::watch_host_syncs;

        let mode = match self {
            Self::Allow => return launch(),
            Self::Warn => roundhouse_c10d::HostSyncs::Warn,
            Self::Refuse => roundhouse_c10d::HostSyncs::Refuse,
        };
        watch_host_syncs(mode)?;
        let launched = launch();
        watch_host_syncs(roundhouse_c10d::HostSyncs::Allow)?;
        launched
    }

    /// Launches a step.
    #[cfg(not(feature = "nccl"))]
    #[expect(
        clippy::unused_self,
        reason = "as with the feature nccl, where it says what is done"
    )]
    pub(super) fn watch<T>(
        self,
        launch: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        launch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_value_is_refused_so_that_no_test_watches_in_vain() {
        assert_eq!(HostSyncs::parse(None).unwrap(), HostSyncs::Allow);
        assert_eq!(HostSyncs::parse(Some("refuse")).unwrap(), HostSyncs::Refuse);
        let error = HostSyncs::parse(Some("Refuse")).unwrap_err();
        assert_eq!(error.variable, VARIABLE);
    }
}
