//! A job as the operator watches it. A part that cannot be read, for example because a newer
//! version wrote it, neither stops the work for all other jobs nor makes the operator ignore the
//! job. The operator manages it by the parts that can be read.
//!
//! The memory of one job is bounded, because all jobs of the cluster share the operator's memory. A
//! job that is too large is cut before it is parsed, and the pod template, which is most of any
//! job, is kept as JSON. As Rust structs it can take more than a hundred times as much: `{}` is 3
//! bytes of JSON and 496 bytes as a source of a projected volume.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use serde_path_to_error::{Path, Segment};

use crate::{TrainingJob, TrainingJobSpec, TrainingJobStatus};

use self::size::Raw;
pub use self::size::{MAX_SPEC_BYTES, MAX_SPEC_VALUES};

mod size;

/// Most parts of one object that are left out one by one, each of which costs another parse. Beyond
/// that, whole fields are left out.
const MAX_PARTS: usize = 8;
const MANAGER: &str = "managedBy";
/// The manager of a job whose `managedBy` cannot be read. It is never this operator.
const UNKNOWN_MANAGER: &str = "?";
/// A job, as far as it can be read.
#[derive(Clone, Debug)]
pub struct LenientJob {
    /// The job, without its pod template and the parts that cannot be read. [`LenientJob::whole`]
    /// has the template.
    pub job: TrainingJob,
    /// The field `spec.workers.template`, as JSON.
    template: Option<Arc<str>>,
    /// The first part that cannot be read.
    pub unreadable: Option<Unreadable>,
}

/// A part of a job that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Path of the field, such as `spec.elastic.mode`.
    pub field: String,
    /// Why it cannot be read, and what to change.
    pub message: String,
}

impl LenientJob {
    /// Wraps a job of which every part can be read.
    ///
    /// # Errors
    /// Fails if the template cannot be written as JSON.
    pub fn of(job: TrainingJob) -> Result<Self, serde_json::Error> {
        Self::kept(job, None)
    }

    fn kept(
        mut job: TrainingJob,
        unreadable: Option<Unreadable>,
    ) -> Result<Self, serde_json::Error> {
        let template = job.spec.workers.template.take();
        let template = template.map(|template| serde_json::to_string(&template));
        Ok(Self {
            job,
            template: template.transpose()?.map(Arc::from),
            unreadable,
        })
    }

    /// The job with its pod template.
    ///
    /// # Errors
    /// Fails if the kept template is not valid.
    pub fn whole(&self) -> Result<TrainingJob, serde_json::Error> {
        let mut job = self.job.clone();
        let template = self.template.as_deref();
        job.spec.workers.template = template.map(serde_json::from_str).transpose()?;
        Ok(job)
    }

    /// Shares the template with a known version of the job if it is the same, so that a new list of
    /// all jobs does not double the memory.
    pub fn share(&mut self, known: &Self) {
        if self.template == known.template {
            self.template.clone_from(&known.template);
        }
    }
}

impl<'de> Deserialize<'de> for LenientJob {
    /// Reads the JSON text of the API server.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        parse(text.get()).map_err(de::Error::custom)
    }
}

/// The parts of a job that are parsed besides its metadata.
#[derive(Deserialize)]
struct Body {
    spec: TrainingJobSpec,
    status: Option<TrainingJobStatus>,
}

fn parse(text: &str) -> Result<LenientJob, serde_json::Error> {
    let raw: Raw<'_> = serde_json::from_str(text)?;
    let (Body { spec, status }, unreadable) = match raw.cut()? {
        Some((body, too_large)) => read(body, Some(too_large))?,
        None => match serde_json::from_str(text) {
            Ok(body) => (body, None),
            Err(_) => read(raw.body()?, None)?,
        },
    };
    let too_many = raw.metadata.excess_labels().map(size::excess_of_labels);
    let mut metadata = ObjectMeta::from(raw.metadata);
    if too_many.is_some() {
        metadata.labels = None;
    }
    let job = TrainingJob {
        metadata,
        spec,
        status,
    };
    LenientJob::kept(job, unreadable.or(too_many))
}

/// Reads what can be read: leaves out one part after another until the rest is a job.
fn read(
    mut body: Value,
    mut unreadable: Option<Unreadable>,
) -> Result<(Body, Option<Unreadable>), serde_json::Error> {
    for _ in 0..MAX_PARTS {
        let error = match serde_path_to_error::deserialize(&body) {
            Ok(body) => return Ok((body, unreadable)),
            Err(error) => error,
        };
        unreadable.get_or_insert_with(|| Unreadable {
            field: error.path().to_string(),
            message: format!(
                "{}; change it, or, if a newer version of Roundhouse wrote it, upgrade this operator ({})",
                error.inner(),
                env!("CARGO_PKG_VERSION")
            ),
        });
        if !leave_out(&mut body, error.path()) {
            break;
        }
    }
    let body = serde_json::from_value(fields_that_can_be_read(&body))?;
    Ok((body, unreadable))
}

/// Leaves out the part at a path, or replaces a required part by a minimal one. Returns false if
/// there is nothing to leave out.
fn leave_out(object: &mut Value, path: &Path) -> bool {
    let keys: Vec<String> = path.iter().map_while(key).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let needed = match keys.as_slice() {
        ["spec", MANAGER] => Some(json!(UNKNOWN_MANAGER)),
        // Zero replicas mean that the number is unknown: no worker is removed or created.
        ["spec", "workers"] => Some(json!({"replicas": 0})),
        ["spec", "workers", "replicas"] => Some(json!(0)),
        [] | ["spec"] => return false,
        _ => None,
    };
    let Some((last, parents)) = keys.split_last() else {
        return false;
    };
    let pointer = parents
        .iter()
        .fold(String::new(), |path, key| path + "/" + &escaped(key));
    match object.pointer_mut(&pointer) {
        Some(Value::Object(fields)) => match needed {
            Some(needed) => fields.insert((*last).to_owned(), needed.clone()) != Some(needed),
            None => fields.remove(*last).is_some(),
        },
        Some(Value::Array(items)) => match last.parse::<usize>() {
            Ok(at) if at < items.len() => {
                items.remove(at);
                true
            }
            _ => false,
        },
        _ => false,
    }
}

fn key(segment: &Segment) -> Option<String> {
    match segment {
        Segment::Map { key } => Some(key.clone()),
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Enum { .. } | Segment::Unknown => None,
    }
}

/// Escapes a key for a JSON pointer (RFC 6901).
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// All fields of the spec and the status that can be read alone.
fn fields_that_can_be_read(object: &Value) -> Value {
    let Value::Object(needed) = json!({"workers": {"replicas": 0}}) else {
        unreachable!("it is an object")
    };
    let mut spec = needed.clone();
    for (name, value) in fields(&object["spec"]) {
        let mut alone = needed.clone();
        alone.insert(name.clone(), value.clone());
        if serde_json::from_value::<TrainingJobSpec>(Value::Object(alone)).is_ok() {
            spec.insert(name.clone(), value.clone());
        } else if name == MANAGER {
            spec.insert(name.clone(), json!(UNKNOWN_MANAGER));
        }
    }
    let mut status = Map::new();
    for (name, value) in fields(&object["status"]) {
        let is_readable = |value: &Value| {
            let alone = json!({name.as_str(): value});
            serde_json::from_value::<TrainingJobStatus>(alone).is_ok()
        };
        let readable = match value {
            // Conditions are read one by one, since one of them may say that the job has ended.
            Value::Array(items) => {
                let items = items.iter().filter(|item| is_readable(&json!([item])));
                Some(items.cloned().collect())
            }
            _ => is_readable(value).then(|| value.clone()),
        };
        status.extend(readable.map(|value| (name.clone(), value)));
    }
    json!({"spec": spec, "status": status})
}

fn fields(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flatten()
}

crate::resource_by!(LenientJob, TrainingJob, job);

#[cfg(test)]
mod tests;
