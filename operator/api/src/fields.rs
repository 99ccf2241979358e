//! One table of the spec's fields: when each may be edited, and whether pods are built from it.
//!
//! The CEL rules of the `CustomResourceDefinition`, the edits that `run --local` accepts and the
//! fingerprint of a pod follow from [`FIELDS`]. A unit test compares the table with the schema: it
//! fails for a field without a row, and for a description that contradicts the table.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::TrainingJobSpec;

/// When a field may be edited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// At any time, also while the job trains.
    Anytime,
    /// While the job is suspended, and in the edit that resumes it.
    WhileSuspended,
    /// Never: the job must be deleted and created again.
    Never,
}

/// Whether a field is in the fingerprint of the spec that a pod was built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fingerprint {
    /// The field is not in the fingerprint, because no pod contains it.
    No,
    /// Its value is in the fingerprint, in the order of the table. Another row of this kind changes
    /// the fingerprints of all jobs, so
    /// [`BuiltFrom::SPEC_VERSION`](roundhouse_contract::BuiltFrom::SPEC_VERSION) must be raised.
    Listed,
    /// Its name and value are in the fingerprint if any field of this kind differs from its
    /// default. New fields get this kind and are an `Option`, so that jobs without them keep their
    /// fingerprints. A field with a default value would change those of jobs that use another
    /// field of this kind.
    Named,
}

/// A field of the spec. A field inside an object, such as the checkpoint, has no row if
/// the object has one.
#[derive(Debug)]
pub struct SpecField {
    /// Names in Rust, from the spec to the field.
    members: &'static [&'static str],
    /// When it may be edited.
    pub edit: Edit,
    /// Whether pods are built from it.
    pub fingerprint: Fingerprint,
    is_same: fn(&TrainingJobSpec, &TrainingJobSpec) -> bool,
    to_json: fn(&TrainingJobSpec) -> serde_json::Result<String>,
}

macro_rules! fields {
    ($($($member:ident).+: $edit:ident, $fingerprint:ident;)+) => {
        &[$(SpecField {
            members: &[$(stringify!($member)),+],
            edit: Edit::$edit,
            fingerprint: Fingerprint::$fingerprint,
            is_same: |one, other| one.$($member).+ == other.$($member).+,
            to_json: |spec| serde_json::to_string(&spec.$($member).+),
        }),+]
    };
}

/// All fields of the spec.
pub const FIELDS: &[SpecField] = fields! {
    managed_by: Never, No;
    suspend: Anytime, No;
    trainer: Never, No;
    workers.replicas: Anytime, No;
    workers.min_replicas: Anytime, No;
    workers.max_replicas: Anytime, No;
    workers.spares: Anytime, No;
    // A pod's annotation contains it beside the fingerprint.
    workers.procs_per_worker: Never, No;
    workers.pods_per_replica: WhileSuspended, Named;
    workers.sharded: WhileSuspended, Named;
    workers.template: WhileSuspended, Listed;
    checkpoint: WhileSuspended, Listed;
    stall_timeout_seconds: WhileSuspended, Listed;
    elastic.peer_failure_window_seconds: WhileSuspended, Listed;
    elastic.leave_grace_seconds: WhileSuspended, Listed;
    elastic.mode: Never, No;
    elastic.on_scale: Never, No;
    elastic.scale_batch: Never, No;
    elastic.join_window_seconds: Anytime, No;
    scheduling.gang: Never, Named;
    scheduling.queue_name: WhileSuspended, Named;
    scheduling.priority_class_name: WhileSuspended, Named;
    scheduling.topology_key: WhileSuspended, Named;
    scheduling.topology_mode: WhileSuspended, Named;
    failure_policy.backoff_limit: Anytime, No;
    failure_policy.max_incidents: Anytime, No;
    failure_policy.max_replacements: Anytime, No;
    // Only the operator applies the rules; no pod contains them.
    failure_policy.rules: WhileSuspended, No;
    failure_policy.avoid_node_seconds: Anytime, No;
    start_deadline_seconds: Anytime, No;
    active_deadline_seconds: Anytime, No;
    ttl_seconds_after_finished: Anytime, No;
    clean_pod_policy: Anytime, No;
    success_policy: Never, No;
    network_policy: Never, No;
};

impl SpecField {
    /// Its path below `spec`, as in a manifest.
    #[must_use]
    pub fn path(&self) -> String {
        let names: Vec<String> = self.members.iter().map(|name| camel_case(name)).collect();
        names.join(".")
    }

    /// Whether an edit leaves the field unchanged or may change it.
    #[must_use]
    pub fn allows(&self, old: &TrainingJobSpec, new: &TrainingJobSpec) -> bool {
        let may_change = match self.edit {
            Edit::Anytime => true,
            Edit::WhileSuspended => old.suspend,
            Edit::Never => false,
        };
        may_change || (self.is_same)(old, new)
    }

    /// The CEL rule for edits of the field; `None` if it may be edited at any time. `is_optional`
    /// says that the API server stores the field only if the user sets it.
    pub(crate) fn rule(&self, is_optional: bool) -> Option<Value> {
        let path = self.path();
        let (new, old) = (format!("self.{path}"), format!("oldSelf.{path}"));
        let is_same = if is_optional {
            format!("has({new}) == has({old}) && (!has({new}) || {new} == {old})")
        } else {
            format!("{new} == {old}")
        };
        let (rule, message) = match self.edit {
            Edit::Anytime => return None,
            Edit::WhileSuspended => (
                format!("oldSelf.suspend || ({is_same})"),
                format!(
                    "{path} is immutable while the job is not suspended: set suspend: true first"
                ),
            ),
            Edit::Never => (
                is_same,
                format!("{path} is immutable: delete and re-create the job"),
            ),
        };
        let first = self.members.first().copied().unwrap_or_default();
        let field = format!(".{}", camel_case(first));
        Some(json!({"fieldPath": field, "message": message, "rule": rule}))
    }
}

/// The parts of the spec from which pods are built, as the text that is hashed for their
/// fingerprint. Fields that are not set leave no trace, so a field of a newer operator changes
/// nothing for jobs that do not use it.
#[must_use]
pub fn built_from(spec: &TrainingJobSpec) -> String {
    let of = |fingerprint| {
        FIELDS
            .iter()
            .filter(move |it| it.fingerprint == fingerprint)
    };
    let json = |field: &SpecField| (field.to_json)(spec).unwrap_or_default();
    let listed: Vec<String> = of(Fingerprint::Listed).map(json).collect();
    let is_default = |field: &SpecField| {
        let plain = PLAIN.as_ref();
        plain.is_some_and(|plain| (field.is_same)(plain, spec))
    };
    let named = if of(Fingerprint::Named).all(is_default) {
        String::new()
    } else {
        let all = of(Fingerprint::Named).map(|field| (field.key(), json(field)));
        let set = all.filter(|(_, json)| json != "null");
        let set: Vec<String> = set.map(|(key, json)| format!("{key:?}:{json}")).collect();
        format!("{{{}}}", set.join(","))
    };
    format!("[{}]{named}", listed.join(","))
}

/// A spec in which every field has its default.
static PLAIN: LazyLock<Option<TrainingJobSpec>> =
    LazyLock::new(|| serde_json::from_value(json!({"workers": {"replicas": 1}})).ok());

impl SpecField {
    /// Its name in the fingerprint. Fields of `scheduling` have always been there without the
    /// name of their object.
    fn key(&self) -> String {
        let path = self.path();
        let short = path.strip_prefix("scheduling.").map(str::to_owned);
        short.unwrap_or(path)
    }
}

/// Converts a member's name to camel case as serde does.
fn camel_case(member: &str) -> String {
    let mut words = member.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut name, word| {
        let mut letters = word.chars();
        name.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        name.push_str(letters.as_str());
        name
    })
}

#[cfg(test)]
mod tests;
