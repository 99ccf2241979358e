//! Converts Kubeflow's TrainJob (`trainer.kubeflow.org/v1alpha1`).
//!
//! Fields: <https://www.kubeflow.org/docs/components/trainer/>. The fields of its runtime are in
//! another object, which the conversion does not read.

use serde_json::{Value, json};

use super::{Draft, pod};

const READ: [&str; 10] = [
    "spec.runtimeRef",
    "spec.suspend",
    "spec.activeDeadlineSeconds",
    "spec.trainer.image",
    "spec.trainer.command",
    "spec.trainer.args",
    "spec.trainer.env",
    "spec.trainer.resourcesPerNode",
    "spec.trainer.numNodes",
    "spec.trainer.numProcPerNode",
];

pub(super) fn draft(document: &Value) -> anyhow::Result<Draft> {
    let mut draft = Draft::of(document);
    let (spec, trainer) = (&document["spec"], &document["spec"]["trainer"]);
    let runtime = spec["runtimeRef"]["name"].as_str().unwrap_or("its runtime");
    let kind = match spec["runtimeRef"]["kind"].as_str() {
        Some("TrainingRuntime") => "trainingruntime",
        _ => "clustertrainingruntime",
    };
    draft.note(format!(
        "spec.runtimeRef: the fields of {runtime} are not converted; `kubectl get {kind} {runtime} -o yaml` shows them"
    ));
    let mut container = json!({"name": "trainer"});
    for field in ["image", "command", "args", "env"] {
        if !trainer[field].is_null() {
            container[field] = trainer[field].clone();
        }
    }
    if trainer["image"].is_null() {
        container["image"] = json!("replace-with-the-image-of-the-runtime");
        draft.note(
            "spec.trainer.image is missing: put the image of the runtime into workers.template",
        );
    }
    if !trainer["resourcesPerNode"].is_null() {
        container["resources"] = trainer["resourcesPerNode"].clone();
    }
    let template = json!({"spec": {"containers": [container]}});
    let (template, from_command) = pod::template(&mut draft, &template, "trainer", "spec.trainer")?;
    let replicas = trainer["numNodes"].as_u64().unwrap_or_else(|| {
        draft.note("spec.trainer.numNodes is missing: workers.replicas is 1; check the number in the runtime");
        1
    });
    let mut workers = json!({"replicas": replicas, "template": template});
    let procs = &trainer["numProcPerNode"];
    let procs = procs.as_u64().or_else(|| procs.as_str()?.parse().ok());
    if let Some(procs) = procs.or(from_command.map(u64::from)) {
        workers["procsPerWorker"] = json!(procs);
    }
    draft.set("workers", workers);
    draft.set("suspend", spec["suspend"].clone());
    draft.set(
        "activeDeadlineSeconds",
        spec["activeDeadlineSeconds"].clone(),
    );
    draft.leave_out(
        spec,
        "spec",
        &[
            (
                "initializer",
                "load data and model in an init container of workers.template, or in the script",
            ),
            ("podTemplateOverrides", "write them into workers.template"),
            ("podSpecOverrides", "write them into workers.template"),
            ("labels", "write them into workers.template.metadata"),
            ("annotations", "write them into workers.template.metadata"),
            (
                "managedBy",
                "set spec.managedBy if another controller manages the TrainingJob",
            ),
            (
                "podGroupPolicy",
                "name the gang scheduler in scheduling.gang",
            ),
            (
                "failurePolicy",
                "set failurePolicy.backoffLimit or maxIncidents",
            ),
        ],
    );
    draft.note_unread(document, &READ);
    Ok(draft)
}
