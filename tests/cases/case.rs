//! The format of a case's `expect.yaml`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};
use roundhouse_tests::manifests::documents;
use serde::Deserialize;
use serde_json::Value;

use crate::values::Expected;

/// A case. Processes of this machine, the operator with a real API server, or other tests show it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Case {
    /// One sentence about what once went wrong.
    pub(crate) failure: String,
    /// Calls of the plugin, which run one after the other in one copy of the folder.
    #[serde(default)]
    pub(crate) runs: Vec<Run>,
    /// Steps at the API server, which run one after the other.
    #[serde(default)]
    pub(crate) operator: Vec<Step>,
    /// The names of other tests that show the rest.
    #[serde(default)]
    pub(crate) shown_by: Vec<String>,
}

/// A call of `kubectl roundhouse`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Run {
    /// Bash commands that run before the plugin, for example to create files.
    pub(crate) before: Option<String>,
    /// A program with its arguments that runs the plugin, for example `unshare`.
    pub(crate) under: Option<String>,
    /// The arguments of the plugin. `$REPOSITORY` stands for the path of the repository.
    pub(crate) plugin: String,
    /// A change of `job.yaml` while the plugin runs.
    pub(crate) edit: Option<Edit>,
    pub(crate) exit: i32,
    /// Texts that the output of the plugin or the logs in `run/logs` must contain.
    #[serde(default)]
    pub(crate) says: Vec<String>,
    /// Texts that they must not contain.
    #[serde(default)]
    pub(crate) never: Vec<String>,
}

/// Replaces `from` in `job.yaml` by `to` when the output contains `after`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Edit {
    pub(crate) after: String,
    pub(crate) from: String,
    pub(crate) to: String,
}

/// JSON pointers into an object, with the expected values.
pub(crate) type Has = BTreeMap<String, Expected>;

/// An action of a user or a kubelet, or an expected state.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Step {
    /// The user creates the objects of a file.
    Apply(String),
    /// The kubelets report that these pods are Ready.
    Runs(Vec<String>),
    /// A kubelet writes a pod's status. `NOW` stands for the current time.
    Reports { pod: String, status: Value },
    /// A kubelet publishes an Event about a pod.
    Event {
        pod: String,
        reason: String,
        message: String,
    },
    /// The operator creates a pod with these values.
    Pod { name: String, has: Has },
    /// The job gets these values.
    Job(Has),
    /// `kubectl roundhouse why` prints these texts.
    Why(Vec<String>),
}

impl Case {
    /// Reads the case of a folder.
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Self> {
        let file = folder.join("expect.yaml");
        let document = documents(&file)?.pop().unwrap_or_default();
        let case: Self =
            serde_json::from_value(document).with_context(|| file.display().to_string())?;
        let is_shown =
            !(case.runs.is_empty() && case.operator.is_empty() && case.shown_by.is_empty());
        ensure!(
            is_shown,
            "{}: add runs, operator or shownBy",
            file.display()
        );
        Ok(case)
    }
}
