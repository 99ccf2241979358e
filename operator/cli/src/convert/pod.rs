//! Converts pod templates: renames the container to `trainer`, and removes fields that the operator
//! sets.

use anyhow::Context;
use serde_json::{Value, json};

use super::{Draft, command};

/// Variables that the agent sets for each process.
const OURS: [&str; 9] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
];
/// Fields of the pod that the operator sets.
const REFUSED: [&str; 7] = [
    "restartPolicy",
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "nodeName",
    "hostname",
    "subdomain",
];

/// The template in which the container `container` is named `trainer`, and the number of processes
/// of each worker that its command requests.
///
/// # Errors
/// The template has no such container.
pub(super) fn template(
    draft: &mut Draft,
    template: &Value,
    container: &str,
    path: &str,
) -> anyhow::Result<(Value, Option<u32>)> {
    let mut spec = template["spec"].clone();
    for field in REFUSED {
        let removed = spec.as_object_mut().and_then(|spec| spec.remove(field));
        let is_default = removed
            .as_ref()
            .is_none_or(|value| value == "OnFailure" || value == "Never" || value == false);
        if !is_default {
            draft.note(format!(
                "{path}.spec.{field}: the operator sets it for every worker"
            ));
        }
    }
    let containers = spec["containers"].as_array_mut();
    let containers = containers.with_context(|| format!("{path}.spec.containers is missing"))?;
    let at = containers.iter().position(|it| it["name"] == container);
    let at = at.or((containers.len() == 1).then_some(0));
    let at = at.with_context(|| format!("{path}.spec.containers has none named {container}"))?;
    let procs = trainer(draft, &mut containers[at], path);
    let mut metadata = json!({});
    for key in ["labels", "annotations"] {
        if template["metadata"][key].is_object() {
            metadata[key] = template["metadata"][key].clone();
        }
    }
    let has_metadata = metadata.as_object().is_some_and(|it| !it.is_empty());
    let whole = if has_metadata {
        json!({"metadata": metadata, "spec": spec})
    } else {
        json!({"spec": spec})
    };
    draft.note("Pods run as non-root: if the user of the image is root, set securityContext.runAsUser in workers.template.");
    Ok((whole, procs))
}

/// Converts the training container; returns the processes of each worker that its command requests.
fn trainer(draft: &mut Draft, container: &mut Value, path: &str) -> Option<u32> {
    container["name"] = json!("trainer");
    let words = |value: &Value| -> Vec<String> {
        let words = value.as_array().into_iter().flatten();
        words
            .filter_map(|word| word.as_str().map(str::to_owned))
            .collect()
    };
    let (own, args) = (words(&container["command"]), words(&container["args"]));
    let command::Command {
        words,
        procs,
        notes,
    } = command::of(&own, &args);
    for note in notes {
        draft.note(format!("{path}: {note}"));
    }
    let values = container["env"].as_array().into_iter().flatten();
    let values = values.filter_map(|variable| variable["value"].as_str());
    for note in command::warnings(words.iter().map(String::as_str).chain(values)) {
        draft.note(format!("{path}: {note}"));
    }
    container["command"] = json!(words);
    if let Some(container) = container.as_object_mut() {
        container.remove("args");
    }
    if let Some(env) = container["env"].as_array_mut() {
        let ours = |name: &str| OURS.contains(&name) || name.starts_with("PET_");
        env.retain(|variable| !variable["name"].as_str().is_some_and(ours));
        for name in without_duplicates(env) {
            draft.note(format!(
                "{path}: variable {name} is set more than once; the last one counts, as in a pod"
            ));
        }
    }
    let is_empty = container["env"].as_array().is_none_or(Vec::is_empty);
    if let Some(container) = container.as_object_mut().filter(|_| is_empty) {
        container.remove("env");
    }
    procs
}

/// Of several variables with one name, keeps the last value at the position of the first. Returns
/// the names of the duplicates.
fn without_duplicates(env: &mut Vec<Value>) -> Vec<String> {
    let (mut kept, mut names): (Vec<Value>, Vec<String>) = (Vec::new(), Vec::new());
    for variable in env.drain(..) {
        let earlier = kept.iter_mut().find(|it| it["name"] == variable["name"]);
        if let Some(earlier) = earlier {
            names.push(variable["name"].as_str().unwrap_or_default().to_owned());
            *earlier = variable;
        } else {
            kept.push(variable);
        }
    }
    *env = kept;
    names
}
