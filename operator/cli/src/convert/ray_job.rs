//! Converts a RayJob (`ray.io/v1`) that trains.
//!
//! Fields:
//! <https://docs.ray.io/en/latest/cluster/kubernetes/getting-started/rayjob-quick-start.html>.

use anyhow::Context;
use serde_json::{Value, json};

use super::{Draft, pod};

const READ: [&str; 9] = [
    "spec.entrypoint",
    "spec.suspend",
    "spec.activeDeadlineSeconds",
    "spec.backoffLimit",
    // cleanPodPolicy decides which pods are deleted when the job has ended.
    "spec.shutdownAfterJobFinishes",
    "spec.rayClusterSpec.rayVersion",
    "spec.rayClusterSpec.headGroupSpec",
    "spec.rayClusterSpec.workerGroupSpecs",
    "spec.rayClusterSpec.enableInTreeAutoscaling",
];

/// Characters that only a shell interprets.
const SHELL_CHARACTERS: [char; 10] = ['"', '\'', '$', '|', '&', ';', '<', '>', '`', '\\'];

pub(super) fn draft(document: &Value) -> anyhow::Result<Draft> {
    let mut draft = Draft::of(document);
    let spec = &document["spec"];
    let cluster = &spec["rayClusterSpec"];
    let entry = spec["entrypoint"]
        .as_str()
        .context("spec.entrypoint is missing")?;
    draft.note(
        "The script must not use Ray: call torch.distributed.init_process_group() in place of ray.train, which finds \
         rank and address in the environment, and leave out ScalingConfig, RunConfig and ray.init().",
    );
    draft.note(
        "spec.rayClusterSpec.headGroupSpec: a TrainingJob has no head; its resources are not requested",
    );
    let groups = cluster["workerGroupSpecs"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let (path, group) = match groups {
        [] => (
            "spec.rayClusterSpec.headGroupSpec",
            &cluster["headGroupSpec"],
        ),
        [first, rest @ ..] => {
            if !rest.is_empty() {
                draft.note("spec.rayClusterSpec.workerGroupSpecs: only the first group is converted; all workers of a TrainingJob are alike");
            }
            ("spec.rayClusterSpec.workerGroupSpecs[0]", first)
        }
    };
    let mut template = group["template"].clone();
    let containers = template["spec"]["containers"].as_array_mut();
    let first = containers.and_then(|containers| containers.first_mut());
    let first = first.with_context(|| format!("{path}.template.spec.containers is missing"))?;
    let name = first["name"].as_str().unwrap_or_default().to_owned();
    if let Some(first) = first.as_object_mut() {
        for field in ["ports", "lifecycle", "args"] {
            first.remove(field);
        }
        first.insert("command".to_owned(), json!(words(entry)));
    }
    let (template, procs) =
        pod::template(&mut draft, &template, &name, &format!("{path}.template"))?;
    let mut workers =
        json!({"replicas": group["replicas"].as_u64().unwrap_or(1).max(1), "template": template});
    if let Some(procs) = procs {
        workers["procsPerWorker"] = json!(procs);
    }
    bounds(&mut draft, group, &mut workers, path);
    draft.set("workers", workers);
    for field in ["suspend", "activeDeadlineSeconds"] {
        draft.set(field, spec[field].clone());
    }
    if let Some(limit) = spec["backoffLimit"].as_u64() {
        draft.set("failurePolicy", json!({"backoffLimit": limit}));
    }
    draft.leave_out(
        spec,
        "spec",
        &[
            ("runtimeEnvYAML", "install packages in the image, set variables in workers.template, and put the working directory into the image or a volume"),
            ("ttlSecondsAfterFinished", "cleanPodPolicy deletes the pods; set ttlSecondsAfterFinished to delete the TrainingJob itself"),
            ("clusterSelector", "a TrainingJob creates its own pods"),
            ("submitterPodTemplate", "a TrainingJob has no submitter: each worker runs the script"),
        ],
    );
    draft.note_unread(document, &READ);
    Ok(draft)
}

fn bounds(draft: &mut Draft, group: &Value, workers: &mut Value, path: &str) {
    let replicas = workers["replicas"].as_u64().unwrap_or(1);
    match group["minReplicas"].as_u64() {
        Some(0) => draft.note(format!(
            "{path}.minReplicas is 0: a TrainingJob needs at least 1 worker to train"
        )),
        Some(min) if min < replicas => workers["minReplicas"] = json!(min),
        _ => {}
    }
    if let Some(max) = group["maxReplicas"].as_u64().filter(|max| *max > replicas) {
        workers["maxReplicas"] = json!(max);
    }
}

/// A command line as words, or as an argument of `sh -c` if it needs a shell.
fn words(line: &str) -> Vec<String> {
    if line.contains(SHELL_CHARACTERS) {
        return ["sh", "-c", line].map(str::to_owned).to_vec();
    }
    line.split_whitespace().map(str::to_owned).collect()
}
