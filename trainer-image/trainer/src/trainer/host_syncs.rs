//! Detects calls in a step that make the host wait for the GPU, for tests on GPUs. On CPUs it has
//! no effect.

use roundhouse_c10d::{HostSyncs, watch_host_syncs};
use roundhouse_contract::environment::EnvironmentInvalid;

use crate::failure::Failure;

/// Selects the reaction to such calls: `warn` or `refuse`.
const VARIABLE: &str = "ROUNDHOUSE_HOST_SYNCS";

/// Reads the setting from the environment.
pub(super) fn from_environment() -> Result<HostSyncs, EnvironmentInvalid> {
    parse(std::env::var(VARIABLE).ok().as_deref())
}

fn parse(value: Option<&str>) -> Result<HostSyncs, EnvironmentInvalid> {
    match value {
        None | Some("") => Ok(HostSyncs::Allow),
        Some("warn") => Ok(HostSyncs::Warn),
        Some("refuse") => Ok(HostSyncs::Refuse),
        Some(other) => Err(EnvironmentInvalid {
            variable: VARIABLE,
            found: Some(other.to_owned()),
        }),
    }
}

/// Launches a step other than the first step of a generation, with the detection on.
pub(super) fn watched<T>(
    mode: HostSyncs,
    launch: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    if mode == HostSyncs::Allow {
        return launch();
    }
    watch_host_syncs(mode)?;
    let launched = launch();
    watch_host_syncs(HostSyncs::Allow)?;
    launched
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_value_is_refused() {
        assert_eq!(parse(None).unwrap(), HostSyncs::Allow);
        assert_eq!(parse(Some("refuse")).unwrap(), HostSyncs::Refuse);
        let error = parse(Some("Refuse")).unwrap_err();
        assert_eq!(error.variable, VARIABLE);
    }
}
