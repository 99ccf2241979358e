//! What a folder's `expect.yaml` says.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};
use roundhouse_tests::manifests::documents;
use serde::Deserialize;
use serde_json::Value;

use crate::values::Expected;

/// A case. It is shown by processes of this machine, by the operator before a real API server, or by tests elsewhere.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Case {
    /// What once went wrong, in one sentence.
    pub(crate) failure: String,
    /// Calls of the plugin, one after the other in one copy of the folder.
    #[serde(default)]
    pub(crate) runs: Vec<Run>,
    /// What happens before the API server, one after the other.
    #[serde(default)]
    pub(crate) operator: Vec<Step>,
    /// Tests that show what these do not.
    #[serde(default)]
    pub(crate) shown_by: Vec<String>,
}

/// A call of `kubectl roundhouse`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Run {
    /// Commands of bash that make the files which are not in the folder.
    pub(crate) before: Option<String>,
    /// A program that runs the plugin, with its arguments.
    pub(crate) under: Option<String>,
    /// Arguments of the plugin. `$REPOSITORY` is the repository.
    pub(crate) plugin: String,
    /// A change of a file while it runs.
    pub(crate) edit: Option<Edit>,
    pub(crate) exit: i32,
    /// Words of its output or of the logs in `run/logs`.
    #[serde(default)]
    pub(crate) says: Vec<String>,
    /// Words that are not there.
    #[serde(default)]
    pub(crate) never: Vec<String>,
}

/// Replaces words of `job.yaml` once other words have appeared.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Edit {
    pub(crate) after: String,
    pub(crate) from: String,
    pub(crate) to: String,
}

/// Pointers into an object, and what is there.
pub(crate) type Has = BTreeMap<String, Expected>;

/// What a user or a kubelet does, or what is right in the end.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Step {
    /// A user creates the objects of a file.
    Apply(String),
    /// The kubelets have started these pods, which are Ready.
    Runs(Vec<String>),
    /// A kubelet reports this of a pod. `NOW` is the time.
    Reports { pod: String, status: Value },
    /// A kubelet reports an event about a pod.
    Event {
        pod: String,
        reason: String,
        message: String,
    },
    /// The operator creates the pod so.
    Pod { name: String, has: Has },
    /// The job becomes so.
    Job(Has),
    /// `kubectl roundhouse why` finds this.
    Why(Vec<String>),
}

impl Case {
    /// The case of a folder.
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Self> {
        let file = folder.join("expect.yaml");
        let document = documents(&file)?.pop().unwrap_or_default();
        let case: Self =
            serde_json::from_value(document).with_context(|| file.display().to_string())?;
        let is_shown =
            !(case.runs.is_empty() && case.operator.is_empty() && case.shown_by.is_empty());
        ensure!(is_shown, "{}: nothing shows it", file.display());
        Ok(case)
    }
}
