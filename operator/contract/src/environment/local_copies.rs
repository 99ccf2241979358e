//! Environment variables for copies of the state on each worker.

use std::path::PathBuf;

use super::checkpoint::at_least;
use super::{
    CHECKPOINT_LOCAL_DIR, CHECKPOINT_LOCAL_EVERY_STEPS, CHECKPOINT_LOCAL_MAX_BYTES,
    CHECKPOINT_LOCAL_PAIR_FILE, EnvironmentInvalid,
};

/// Directory of local copies, and when a copy is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalCopiesEnvironment {
    /// Directory of this worker alone.
    pub dir: PathBuf,
    /// Number of committed steps between two copies, at least 1.
    pub every_steps: u64,
    /// Most bytes of the copies of all processes of the worker; `None` if they are not limited.
    pub max_bytes: Option<u64>,
    /// File to watch for the [`crate::CopyPair`]; `None` if no other pod holds second copies, or
    /// if the pods of the replica do.
    pub pair_file: Option<PathBuf>,
}

impl LocalCopiesEnvironment {
    /// Names and values for a process to start.
    pub(super) fn to_pairs(&self) -> Vec<(&'static str, String)> {
        let Self {
            dir,
            every_steps,
            max_bytes,
            pair_file,
        } = self;
        let mut pairs = vec![
            (CHECKPOINT_LOCAL_DIR, dir.display().to_string()),
            (CHECKPOINT_LOCAL_EVERY_STEPS, every_steps.to_string()),
        ];
        pairs.extend(max_bytes.map(|bytes| (CHECKPOINT_LOCAL_MAX_BYTES, bytes.to_string())));
        let pair_file = pair_file.iter().map(|file| file.display().to_string());
        pairs.extend(pair_file.map(|file| (CHECKPOINT_LOCAL_PAIR_FILE, file)));
        pairs
    }

    /// Reads the variables through `get`; `None` if no directory is set.
    pub(super) fn read(
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, EnvironmentInvalid> {
        let number = |variable| at_least(variable, &1, get(variable));
        let Some(dir) = get(CHECKPOINT_LOCAL_DIR) else {
            return Ok(None);
        };
        let missing = EnvironmentInvalid {
            variable: CHECKPOINT_LOCAL_EVERY_STEPS,
            found: None,
        };
        Ok(Some(Self {
            dir: dir.into(),
            every_steps: number(CHECKPOINT_LOCAL_EVERY_STEPS)?.ok_or(missing)?,
            max_bytes: number(CHECKPOINT_LOCAL_MAX_BYTES)?,
            pair_file: get(CHECKPOINT_LOCAL_PAIR_FILE).map(PathBuf::from),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Option<LocalCopiesEnvironment>, EnvironmentInvalid> {
        LocalCopiesEnvironment::read(|name| {
            let found = pairs.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn local_copies_environment_round_trips() {
        for (max_bytes, pair_file) in [(None, None), (Some(1 << 30), Some("/etc/pair".into()))] {
            let local = LocalCopiesEnvironment {
                dir: "/copies".into(),
                every_steps: 10,
                max_bytes,
                pair_file,
            };
            let pairs = local.to_pairs();
            let pairs: Vec<(&str, &str)> = pairs
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            assert_eq!(read(&pairs).unwrap(), Some(local));
        }
        assert_eq!(read(&[]).unwrap(), None);
    }

    #[test]
    fn missing_or_zero_interval_is_refused() {
        let dir = (CHECKPOINT_LOCAL_DIR, "/copies");
        for rest in [None, Some("0"), Some("often")] {
            let interval = rest.map(|value| (CHECKPOINT_LOCAL_EVERY_STEPS, value));
            let pairs: Vec<_> = [dir].into_iter().chain(interval).collect();
            let refused = read(&pairs).unwrap_err();
            assert_eq!(refused.variable, CHECKPOINT_LOCAL_EVERY_STEPS, "{rest:?}");
        }
    }
}
