//! `roundhouse-operator check`: follows one TrainingJob to its end, or reads a policy. `helm test`
//! runs it in a pod that may read that job. The command only reads.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use kube::{Api, Client};
use roundhouse_api::{ConditionType, TrainingJob, TrainingJobStatus, shallow};

use crate::controller::tenancy::{Policies, PolicyError};

const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Name of a job to follow.
    #[arg(required_unless_present = "policy_file", requires = "namespace")]
    pub name: Option<String>,
    /// Namespace of the job.
    #[arg(long)]
    pub namespace: Option<String>,
    /// Seconds to wait for the job's end.
    #[arg(long, default_value_t = 240)]
    pub timeout_seconds: u64,
    /// Policy file to read as the operator reads it at its start. An error names the key.
    #[arg(long)]
    pub policy_file: Option<PathBuf>,
}

/// The job to follow, and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the job.
    pub name: String,
    /// Namespace of the job.
    pub namespace: String,
    /// Seconds to wait for the job's end.
    pub timeout_seconds: u64,
}

/// Whether a job has ended, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The job has not ended. It does this, or waits for this.
    Pending(String),
    /// The job succeeded, with the message of its status.
    Succeeded(String),
    /// The job failed, with the message of its status.
    Failed(String),
}

/// The phase of a job with this status.
#[must_use]
pub fn phase(status: Option<&TrainingJobStatus>) -> Phase {
    let Some((status, first)) = status.and_then(|s| Some((s, s.front()?))) else {
        return Phase::Pending("no operator has accepted the job yet".to_owned());
    };
    let words = format!("{}: {}", first.reason, first.message);
    if status.is_true(ConditionType::Succeeded) {
        Phase::Succeeded(words)
    } else if status.is_true(ConditionType::Failed) {
        Phase::Failed(words)
    } else {
        let workers = status
            .workers
            .as_ref()
            .map(|w| format!("workers {}; ", w.summary));
        Phase::Pending(workers.unwrap_or_default() + &words)
    }
}

/// Why the check did not pass.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The policy cannot be used.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// No cluster is configured.
    #[error("no cluster: {0}; set KUBECONFIG, or run it in a pod with a service account")]
    Config(#[from] kube::config::InferConfigError),
    /// The job cannot be read.
    #[error("the TrainingJob {name} in namespace {namespace} cannot be read: {source}")]
    Unreadable {
        name: String,
        namespace: String,
        source: kube::Error,
    },
    #[error("the job failed: {0}")]
    Failed(String),
    /// The job takes longer than the check waits.
    #[error("the job did not end within {seconds} s: {last}")]
    NotInTime {
        /// How many seconds the check has waited.
        seconds: u64,
        /// What the job last did or waited for.
        last: String,
    },
}

/// Reads the policy of the arguments, then follows their job in the configured cluster.
///
/// # Errors
/// The policy cannot be used, there is no cluster, or [`follow`] fails.
pub async fn run(arguments: &Arguments) -> Result<String, CheckError> {
    let Arguments {
        name,
        namespace,
        timeout_seconds,
        policy_file,
    } = arguments.clone();
    let mut words = String::new();
    if let Some(path) = policy_file {
        Policies::read(Some(&path))?;
        words = format!("the policy {} can be used", path.display());
    }
    let Some((name, namespace)) = name.zip(namespace) else {
        return Ok(words);
    };
    if !words.is_empty() {
        println!("{words}");
    }
    let options = Options {
        name,
        namespace,
        timeout_seconds,
    };
    run_follow(&options).await
}

async fn run_follow(options: &Options) -> Result<String, CheckError> {
    let mut config = kube::Config::infer().await?;
    config.default_retry = false;
    config.connect_timeout = Some(crate::runtime::api::calls::DEADLINE);
    config.read_timeout = Some(crate::runtime::api::calls::DEADLINE);
    let client = Client::try_from(config).map_err(|source| unreadable(options, source))?;
    let client = shallow(client);
    follow(client, options, |line| println!("{line}")).await
}

/// Follows a job to its end and returns the message of its status. `say` receives a line whenever
/// the phase or its message changes.
///
/// # Errors
/// The job fails, does not end in time, or cannot be read: it does not exist, or this process has
/// no right to read it. A call without an answer is tried again.
pub async fn follow(
    client: Client,
    options: &Options,
    mut say: impl FnMut(&str),
) -> Result<String, CheckError> {
    let jobs: Api<TrainingJob> = Api::namespaced(client, &options.namespace);
    let started = Instant::now();
    let mut last = String::new();
    loop {
        let now = match jobs.get(&options.name).await {
            Ok(job) => match phase(job.status.as_ref()) {
                Phase::Succeeded(words) => return Ok(words),
                Phase::Failed(words) => return Err(CheckError::Failed(words)),
                Phase::Pending(words) => words,
            },
            Err(kube::Error::Api(status))
                if (400..500).contains(&status.code) && status.code != 429 =>
            {
                return Err(unreadable(options, kube::Error::Api(status)));
            }
            Err(error) => format!("the API server does not answer: {error}"),
        };
        if now != last {
            say(&now);
            last = now;
        }
        if started.elapsed() >= Duration::from_secs(options.timeout_seconds) {
            let seconds = options.timeout_seconds;
            return Err(CheckError::NotInTime { seconds, last });
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn unreadable(options: &Options, source: kube::Error) -> CheckError {
    let Options {
        name,
        namespace,
        timeout_seconds: _,
    } = options.clone();
    CheckError::Unreadable {
        name,
        namespace,
        source,
    }
}

#[cfg(test)]
mod tests {
    use roundhouse_api::WorkersStatus;
    use serde_json::json;

    use super::*;

    /// A status whose conditions have these types, all true.
    fn status(types: &[ConditionType]) -> TrainingJobStatus {
        let conditions: Vec<_> = types
            .iter()
            .map(|kind| {
                json!({"type": kind.as_str(), "status": "True", "reason": "Because", "message": "it is so",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"})
            })
            .collect();
        let workers = WorkersStatus {
            summary: "1/2".to_owned(),
            ..WorkersStatus::default()
        };
        TrainingJobStatus {
            conditions: serde_json::from_value(json!(conditions)).unwrap(),
            workers: Some(workers),
            ..TrainingJobStatus::default()
        }
    }

    #[tokio::test]
    async fn policy_check_needs_no_cluster_and_names_a_wrong_key() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("policy.yaml");
        let arguments = Arguments {
            name: None,
            namespace: None,
            timeout_seconds: 0,
            policy_file: Some(file.clone()),
        };
        std::fs::write(&file, "allow: {hostPaths: [/data/*]}").unwrap();
        let words = run(&arguments).await.unwrap();
        assert!(words.ends_with("policy.yaml can be used"), "{words}");
        std::fs::write(&file, "allow: {hostPaths: /data}").unwrap();
        let error = run(&arguments).await.unwrap_err().to_string();
        assert!(error.contains("allow.hostPaths: "), "{error}");
    }

    #[test]
    fn job_without_conditions_waits_for_an_operator() {
        let expected = Phase::Pending("no operator has accepted the job yet".to_owned());
        assert_eq!(phase(None), expected);
        assert_eq!(phase(Some(&status(&[]))), expected);
    }

    #[test]
    fn pending_job_reports_its_workers_and_reason() {
        let accepted = status(&[ConditionType::Accepted]);
        let expected = Phase::Pending("workers 1/2; Because: it is so".to_owned());
        assert_eq!(phase(Some(&accepted)), expected);
    }

    #[test]
    fn success_and_failure_end_the_check() {
        let words = || "Because: it is so".to_owned();
        let of = |kind| phase(Some(&status(&[kind, ConditionType::Accepted])));
        assert_eq!(of(ConditionType::Succeeded), Phase::Succeeded(words()));
        assert_eq!(of(ConditionType::Failed), Phase::Failed(words()));
    }
}
