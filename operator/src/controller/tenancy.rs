//! The administrator's policy, read once at start, and what it depends on: the labels of
//! namespaces, and the order of a namespace's jobs. The planner decides.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use kube::runtime::reflector::Store;
use roundhouse_api::{ConditionReason, ConditionType, TrainingJob, TrainingJobStatus};
use roundhouse_contract::labels;
use roundhouse_planner::tenancy::Policy;
use roundhouse_planner::{Rejection, ValidatedJob, Validation, gpu, validate_with};

use crate::job::JobKey;
use crate::memory::JobMemories;
use crate::settings::Settings;
use crate::watch::namespaces::Namespaces;
use roundhouse_api::lenient::LenientJob;

mod file;

/// Why a policy cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("the policy {} cannot be read: {source}", path.display())]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    /// A key of the file is wrong.
    #[error("the policy {}: {problem}", path.display())]
    Wrong {
        path: PathBuf,
        /// The key and its problem.
        problem: String,
    },
}

/// The policy, and what it depends on.
#[derive(Default)]
pub struct Policies {
    policy: Policy,
    /// Resources that count as GPUs, to validate jobs as the driver does.
    gpu_resources: gpu::Listed,
    namespaces: Arc<Namespaces>,
    jobs: OnceLock<Store<LenientJob>>,
}

impl Policies {
    /// Reads the policy from a file. Without a file, jobs may use nothing beyond their own
    /// resources.
    ///
    /// # Errors
    /// The file cannot be read, or a key of it is wrong.
    pub fn read(path: Option<&Path>) -> Result<Self, PolicyError> {
        match path {
            Some(path) => Self::of(path, &text(path)?),
            None => Ok(Self::default()),
        }
    }

    /// The policy of an operator: what it read before it restarted, or else what its file has now.
    ///
    /// # Errors
    /// The file cannot be read, or a key of it is wrong.
    pub fn of_settings(settings: &Settings) -> Result<Self, PolicyError> {
        let read = match (&settings.policy_file, &settings.policy_as_read) {
            (Some(path), Some(text)) => Self::of(path, text),
            (path, _) => Self::read(path.as_deref()),
        }?;
        Ok(Self {
            gpu_resources: settings.gpu_resources.clone(),
            ..read
        })
    }

    fn of(path: &Path, text: &str) -> Result<Self, PolicyError> {
        let policy = file::parse(text).map_err(|problem| PolicyError::Wrong {
            path: path.to_owned(),
            problem,
        })?;
        Ok(Self {
            policy,
            ..Self::default()
        })
    }

    /// Whether the policy depends on labels of namespaces.
    const fn reads_namespaces(&self) -> bool {
        !self.policy.namespaces.is_empty()
    }

    /// The labels of namespaces, if the policy depends on them.
    pub(crate) fn namespaces(&self) -> Option<&Arc<Namespaces>> {
        self.reads_namespaces().then_some(&self.namespaces)
    }

    /// Sets the store of all jobs, whose order decides which of them may begin.
    pub(crate) fn set_jobs(&self, jobs: Store<LenientJob>) {
        let _ = self.jobs.set(jobs);
    }

    /// Whether the limits of the job are known. The limits of a new namespace may be stricter than
    /// the default, so its jobs do not begin before its labels are known.
    #[must_use]
    pub fn can_judge(&self, job: &TrainingJob) -> bool {
        let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
        !self.reads_namespaces() || runs(job) || self.namespaces.knows(namespace)
    }

    /// Why a valid job is not accepted, if it is not. A job that runs is not refused because of the
    /// number of jobs.
    #[must_use]
    pub fn refuse(
        &self,
        job: &TrainingJob,
        valid: &ValidatedJob,
        memories: &JobMemories,
    ) -> Option<Rejection> {
        let namespace = &valid.identity.namespace;
        let limits = self.policy.limits(&self.namespaces.labels(namespace));
        let refused = limits.refuse(valid);
        if refused.is_some() || limits.max_jobs_per_namespace == 0 || job.spec.suspend || runs(job)
        {
            return refused;
        }
        let all = self.jobs.get().map(Store::state).unwrap_or_default();
        // A job that is refused for another reason cannot begin. It waits for a change of its own
        // spec, and takes no place. Its status may be old.
        let judge = |other: &LenientJob| {
            let Ok(whole) = other.whole() else {
                return true;
            };
            let Validation { job, refusal } = validate_with(&whole, &self.gpu_resources, &[]);
            other.unreadable.is_some() || refusal.is_some() || limits.refuse(&job).is_some()
        };
        let cannot_begin = |other: &LenientJob| {
            let key = JobKey::of(&other.job.metadata);
            let generation = other.job.metadata.generation.unwrap_or_default();
            let known = memories.with(&key, |it| it.verdict.cannot_begin(generation, limits));
            known.unwrap_or_else(|| {
                let verdict = judge(other);
                memories.with(&key, |it| it.verdict.store(generation, limits, verdict));
                verdict
            })
        };
        let is_ahead = |other: &&Arc<LenientJob>| {
            other.job.metadata.namespace == job.metadata.namespace
                && counts(&other.job)
                && place(&other.job) < place(job)
                && !(is_refused(&other.job) && cannot_begin(other))
        };
        let most = limits.max_jobs_per_namespace as usize;
        let ahead = all.iter().filter(is_ahead).take(most).count();
        limits.refuse_one_more(u32::try_from(ahead).unwrap_or(u32::MAX))
    }
}

/// The text of a policy file.
///
/// # Errors
/// The file cannot be read.
pub fn text(path: &Path) -> Result<String, PolicyError> {
    std::fs::read_to_string(path).map_err(|source| PolicyError::Unreadable {
        path: path.to_owned(),
        source,
    })
}

/// Whether a job has begun, and is not suspended.
fn runs(job: &TrainingJob) -> bool {
    let status = job.status.as_ref();
    status.is_some_and(|status| status.start_time.is_some())
}

/// Whether a job takes a place of its namespace, or waits for one.
fn counts(job: &TrainingJob) -> bool {
    let has_ended = job
        .status
        .as_ref()
        .is_some_and(TrainingJobStatus::is_terminal);
    let is_ours = job.spec.managed_by == labels::DEFAULT_MANAGER;
    let is_going = job.metadata.deletion_timestamp.is_some();
    is_ours && !has_ended && !is_going && !job.spec.suspend
}

/// Whether the job has not begun according to its status, for another reason than the number of
/// jobs.
fn is_refused(job: &TrainingJob) -> bool {
    let too_many = ConditionReason::TooManyJobs.as_str();
    job.status.as_ref().is_some_and(|status| {
        let accepted = status.condition(ConditionType::Accepted);
        status.start_time.is_none()
            && accepted.is_some_and(|it| it.status == "False" && it.reason != too_many)
    })
}

/// The order of jobs: first those that run, then the oldest.
fn place(job: &TrainingJob) -> impl PartialOrd {
    let metadata = &job.metadata;
    let created = metadata.creation_timestamp.as_ref().map(|it| it.0);
    (!runs(job), created, &metadata.name, &metadata.uid)
}

#[cfg(test)]
mod tests;
