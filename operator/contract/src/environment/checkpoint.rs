//! Environment variables for checkpoints: directory, intervals and number.

use std::path::PathBuf;

use crate::BestMetric;

use super::{
    CHECKPOINT_BEST, CHECKPOINT_DIR, CHECKPOINT_EVERY_SECONDS, CHECKPOINT_EVERY_STEPS,
    CHECKPOINT_KEEP, EnvironmentInvalid, JOB_UID, LocalCopiesEnvironment, number,
};

/// Number of checkpoints that are kept by default.
pub const DEFAULT_KEEP: u32 = 2;
/// Least number of checkpoints that may be kept: another one exists while one is written, or if
/// the newest is damaged.
pub const MIN_KEEP: u32 = 2;

/// Directory of checkpoints and the ledger, and when a checkpoint is due. Without intervals there
/// is one when training ends, or when it stops because all workers are asked to leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointEnvironment {
    /// Directory that all workers share.
    pub dir: PathBuf,
    /// Number of committed steps between checkpoints, at least 1.
    pub every_steps: Option<u64>,
    /// Age in seconds at which the newest checkpoint is followed by the next one, at least 1.
    pub every_seconds: Option<u64>,
    /// Number of newest checkpoints that are kept, at least [`MIN_KEEP`].
    pub keep: u32,
    /// Metric of evaluations by which the best checkpoint is also kept; `None` if it is not kept.
    pub best: Option<BestMetric>,
    /// UID of the job that writes there.
    pub job_uid: Option<String>,
    /// Copies of the state on each worker; `None` if there are none.
    pub local: Option<LocalCopiesEnvironment>,
}

impl CheckpointEnvironment {
    /// Names and values for a process to start.
    pub(super) fn to_pairs(&self) -> Vec<(&'static str, String)> {
        let Self {
            dir,
            every_steps,
            every_seconds,
            keep,
            best,
            job_uid,
            local,
        } = self;
        let mut pairs = vec![
            (CHECKPOINT_DIR, dir.display().to_string()),
            (CHECKPOINT_KEEP, keep.to_string()),
        ];
        pairs.extend(every_steps.map(|steps| (CHECKPOINT_EVERY_STEPS, steps.to_string())));
        pairs.extend(every_seconds.map(|seconds| (CHECKPOINT_EVERY_SECONDS, seconds.to_string())));
        pairs.extend(best.map(|metric| (CHECKPOINT_BEST, metric.to_string())));
        pairs.extend(job_uid.clone().map(|uid| (JOB_UID, uid)));
        pairs.extend(local.iter().flat_map(LocalCopiesEnvironment::to_pairs));
        pairs
    }

    /// Reads the variables through `get`; `None` if no directory is set. An empty text
    /// counts as not set.
    pub(super) fn read(
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, EnvironmentInvalid> {
        let get = |variable: &str| get(variable).filter(|text| !text.is_empty());
        let interval = |variable| at_least(variable, &1, get(variable));
        let Some(dir) = get(CHECKPOINT_DIR) else {
            return Ok(None);
        };
        Ok(Some(Self {
            dir: dir.into(),
            every_steps: interval(CHECKPOINT_EVERY_STEPS)?,
            every_seconds: interval(CHECKPOINT_EVERY_SECONDS)?,
            keep: at_least(CHECKPOINT_KEEP, &MIN_KEEP, get(CHECKPOINT_KEEP))?
                .unwrap_or(DEFAULT_KEEP),
            best: get(CHECKPOINT_BEST)
                .map(|text| number(CHECKPOINT_BEST, text))
                .transpose()?,
            job_uid: get(JOB_UID),
            local: LocalCopiesEnvironment::read(get)?,
        }))
    }
}

pub(super) fn at_least<T: std::str::FromStr + PartialOrd>(
    variable: &'static str,
    least: &T,
    text: Option<String>,
) -> Result<Option<T>, EnvironmentInvalid> {
    let Some(text) = text else { return Ok(None) };
    let value: T = number(variable, text.clone())?;
    if value < *least {
        return Err(EnvironmentInvalid {
            variable,
            found: Some(text),
        });
    }
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Option<CheckpointEnvironment>, EnvironmentInvalid> {
        CheckpointEnvironment::read(|name| {
            let found = pairs.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn checkpoint_environment_round_trips() {
        for (every_steps, every_seconds) in [(Some(10), None), (None, Some(600)), (None, None)] {
            let checkpoint = CheckpointEnvironment {
                dir: "/checkpoints".into(),
                every_steps,
                every_seconds,
                keep: 3,
                best: every_seconds.map(|_| BestMetric::Top1),
                job_uid: every_steps.map(|_| "uid".to_owned()),
                local: None,
            };
            let pairs = checkpoint.to_pairs();
            let pairs: Vec<_> = pairs.iter().map(|(k, v)| (*k, v.as_str())).collect();
            assert_eq!(read(&pairs), Ok(Some(checkpoint)));
        }
    }

    #[test]
    fn no_directory_means_no_checkpoints() {
        assert_eq!(read(&[(CHECKPOINT_EVERY_STEPS, "10")]), Ok(None));
        assert_eq!(read(&[(CHECKPOINT_DIR, "")]), Ok(None));
        let only_dir = read(&[(CHECKPOINT_DIR, "/c"), (CHECKPOINT_EVERY_STEPS, "")]);
        assert_eq!(only_dir.unwrap().unwrap().keep, DEFAULT_KEEP);
    }

    #[test]
    fn invalid_checkpoint_variable_is_named() {
        for (variable, value) in [
            (CHECKPOINT_EVERY_STEPS, "0"),
            (CHECKPOINT_EVERY_SECONDS, "0"),
            (CHECKPOINT_KEEP, "1"),
            (CHECKPOINT_BEST, "accuracy"),
        ] {
            let error = read(&[(CHECKPOINT_DIR, "/c"), (variable, value)]).unwrap_err();
            assert_eq!(error.variable, variable);
        }
    }
}
