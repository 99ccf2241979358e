//! Converts jobs of other operators to TrainingJobs. Pure: documents in, a document and notes out.
//!
//! The scripts stay unchanged, so the result has `elastic.mode: Restart`: the agent starts the
//! command once for each process, with the variables that torchrun sets. A field without a
//! counterpart becomes a note.

use std::fmt::Write;

use anyhow::{Context, bail};
use roundhouse_api::TrainingJob;
use serde_json::{Map, Value, json};

use crate::out::plain;
use crate::strict;

mod command;
mod pod;
mod pytorch_job;
mod ray_job;
#[cfg(test)]
mod tests;
mod train_job;
mod unread;

/// A TrainingJob under construction, with its notes.
#[derive(Debug, Default)]
struct Draft {
    metadata: Map<String, Value>,
    spec: Map<String, Value>,
    notes: Vec<String>,
}

/// Longest name of a TrainingJob.
const MAX_NAME: usize = roundhouse_contract::names::MAX_JOB_NAME_LENGTH;

/// Converts the jobs of a text. Comments before each TrainingJob list its notes; a comment also
/// names each document of another kind.
///
/// # Errors
/// The text is not YAML or has no job to convert, or a job lacks a field that every TrainingJob
/// needs.
pub(crate) fn convert(text: &str) -> anyhow::Result<String> {
    let (mut jobs, mut others) = (Vec::new(), Vec::new());
    for document in items(strict::documents(text)?) {
        let kind = document["kind"].as_str().unwrap_or_default().to_owned();
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        let draft = match kind.as_str() {
            "PyTorchJob" => pytorch_job::draft(&document),
            "TrainJob" => train_job::draft(&document),
            "RayJob" => ray_job::draft(&document),
            "TrainingJob" => bail!("{} is a TrainingJob already", plain(name)),
            _ => {
                others.push(plain(&format!("{kind} {name}")));
                continue;
            }
        };
        let draft = draft.with_context(|| plain(&format!("{kind} {name}")))?;
        jobs.push(written(draft, &kind, name)?);
    }
    if jobs.is_empty() {
        let others = others.join(", ");
        bail!(
            "there is no PyTorchJob, TrainJob or RayJob; found: {}",
            if others.is_empty() {
                "nothing"
            } else {
                &others
            }
        );
    }
    let mut text = jobs.join("---\n");
    for other in others {
        text = format!("# {other} is not a training job: it is left out.\n{text}");
    }
    Ok(text)
}

/// The documents, with each list replaced by its items: `kubectl get -o yaml` prints a list.
fn items(documents: Vec<Value>) -> Vec<Value> {
    let expand = |document: Value| {
        let is_list = document["kind"]
            .as_str()
            .is_some_and(|kind| kind.ends_with("List"));
        match document["items"].as_array() {
            Some(items) if is_list => items.clone(),
            _ => vec![document],
        }
    };
    documents.into_iter().flat_map(expand).collect()
}

/// Writes the document with its comments, after the operator's validation.
fn written(draft: Draft, kind: &str, name: &str) -> anyhow::Result<String> {
    let Draft {
        metadata,
        spec,
        notes,
    } = draft;
    let document = json!({
        "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob", "metadata": metadata, "spec": spec,
    });
    let mut job: TrainingJob = strict::parse(document.clone())?;
    job.metadata
        .namespace
        .get_or_insert_with(|| "default".to_owned());
    roundhouse_planner::validate(&job)?;
    // A name of the input may contain a line break; `plain` keeps the text after it in the comment.
    let from = plain(&format!("{kind} {name}"));
    let mut text = format!("# Converted from {from} by `kubectl roundhouse convert`.\n");
    if !notes.is_empty() {
        text += "# Notes on fields that could not be converted, and on what to check:\n";
    }
    for note in notes {
        let _ = writeln!(text, "# - {}", plain(&note));
    }
    Ok(text + &serde_saphyr::to_string(&document)?)
}

impl Draft {
    /// Name, namespace, labels and annotations of a job, and `elastic.mode: Restart`.
    fn of(document: &Value) -> Self {
        let mut draft = Self::default();
        let metadata = &document["metadata"];
        let name = metadata["name"].as_str();
        let name = name.or(metadata["generateName"].as_str()).unwrap_or("job");
        let usable = usable_name(name);
        if usable != name {
            draft.note(format!(
                "metadata.name: {name} became {usable}: it is part of the pods' names"
            ));
        }
        draft.metadata.insert("name".to_owned(), json!(usable));
        for key in ["namespace", "labels", "annotations"] {
            let mut value = metadata[key].clone();
            if let Some(map) = value.as_object_mut() {
                map.retain(|key, _| !key.starts_with("kubectl.kubernetes.io/"));
            }
            let is_empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
            if !is_empty {
                draft.metadata.insert(key.to_owned(), value);
            }
        }
        draft.set("elastic", json!({"mode": "Restart"}));
        draft.note("The script must resume from a checkpoint of its own: it restarts whenever the set of workers changes.");
        draft
    }

    /// Notes each field of the document that is neither in `read` nor in an earlier note.
    fn note_unread(&mut self, document: &Value, read: &[&str]) {
        for path in unread::paths(document, read) {
            let is_named = self.notes.iter().any(|note| {
                let rest = note.strip_prefix(&path);
                rest.is_some_and(|rest| rest.starts_with([':', ' ', '.']))
            });
            if !is_named {
                self.note(format!("{path}: a TrainingJob has no such field"));
            }
        }
    }

    fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn set(&mut self, field: &str, value: Value) {
        if !value.is_null() {
            self.spec.insert(field.to_owned(), value);
        }
    }

    /// Notes fields without a counterpart, with what to do instead.
    fn leave_out(&mut self, within: &Value, path: &str, fields: &[(&str, &str)]) {
        for (field, instead) in fields {
            if !within[*field].is_null() {
                self.note(format!("{path}.{field}: {instead}"));
            }
        }
    }
}

/// Changes a name to one that a TrainingJob may have.
fn usable_name(name: &str) -> String {
    let kept = name
        .to_lowercase()
        .replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let begin = if kept.starts_with(|c: char| c.is_ascii_lowercase()) {
        ""
    } else {
        "job-"
    };
    let mut name = format!("{begin}{kept}");
    name.truncate(MAX_NAME);
    name.trim_end_matches('-').to_owned()
}
