//! Repeats the rules of the schema, because the installed schema may be older.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use roundhouse_api::{Checkpoint, FailureRule, Gang, LocalCopies, Scheduling};
use roundhouse_contract::environment::checkpoint::MIN_KEEP;
use roundhouse_contract::{TrainerConfig, names};

use crate::invalid::{InvalidSpec, invalid};
use crate::validate::local_copies::SIZE_LIMIT;

/// Most spare workers in the lobby.
const MAX_SPARES: u32 = 1_000;

pub(super) fn name(name: &str) -> Result<(), InvalidSpec> {
    match names::refusal_of_job(name) {
        Some(message) => invalid("metadata.name", message),
        None => Ok(()),
    }
}

pub(super) fn replicas(wanted: u32, min: Option<u32>, max: Option<u32>) -> Result<(), InvalidSpec> {
    if wanted == 0 {
        return invalid("spec.workers.replicas", "must be at least 1");
    }
    if min.is_some_and(|min| min == 0 || min > wanted) {
        return invalid(
            "spec.workers.minReplicas",
            "must be between 1 and spec.workers.replicas",
        );
    }
    if max.is_some_and(|max| max < wanted) {
        return invalid(
            "spec.workers.maxReplicas",
            "must not be below spec.workers.replicas",
        );
    }
    Ok(())
}

pub(super) fn spares(spares: u32) -> Result<(), InvalidSpec> {
    if spares > MAX_SPARES {
        let message = format!("must be at most {MAX_SPARES}");
        return invalid("spec.workers.spares", message);
    }
    Ok(())
}

pub(super) fn checkpoint(checkpoint: &Checkpoint) -> Result<(), InvalidSpec> {
    let volume = &checkpoint.volume;
    if volume.persistent_volume_claim.is_some() == volume.host_path.is_some() {
        return invalid(
            "spec.checkpoint.volume",
            "give exactly one of persistentVolumeClaim, hostPath",
        );
    }
    if let Some(directory) = &volume.host_path
        && (!directory.path.starts_with('/') || directory.path.split('/').any(|part| part == ".."))
    {
        return invalid(
            "spec.checkpoint.volume.hostPath.path",
            "must be absolute and without '..'",
        );
    }
    if checkpoint.keep < MIN_KEEP {
        let message = format!("must be at least {MIN_KEEP}");
        return invalid("spec.checkpoint.keep", message);
    }
    checkpoint.local.as_ref().map_or(Ok(()), local_copies)
}

fn local_copies(local: &LocalCopies) -> Result<(), InvalidSpec> {
    if local.every_steps == 0 {
        return invalid("spec.checkpoint.local.everySteps", "must be at least 1");
    }
    if local.peer_copies > Some(1) {
        return invalid("spec.checkpoint.local.peerCopies", "must be 0 or 1");
    }
    if local.max_bytes().is_none() {
        let message = "must be a whole number of bytes, or one with Ki, Mi, Gi or Ti, such as 4Gi";
        return invalid(SIZE_LIMIT, message);
    }
    Ok(())
}

pub(super) fn scheduling(
    scheduling: &Scheduling,
    template: Option<&PodTemplateSpec>,
) -> Result<(), InvalidSpec> {
    let Scheduling {
        gang,
        queue_name,
        priority_class_name,
        topology_key: _,
        topology_mode: _,
    } = scheduling;
    if queue_name.is_some() && *gang != Gang::Volcano {
        return invalid(
            "spec.scheduling.queueName",
            "leave it out, or set spec.scheduling.gang to Volcano",
        );
    }
    let pod = template.and_then(|template| template.spec.as_ref());
    let theirs = pod.and_then(|pod| pod.priority_class_name.as_ref());
    if theirs.is_some() && priority_class_name.is_some() && theirs != priority_class_name.as_ref() {
        return invalid(
            "spec.scheduling.priorityClassName",
            "leave it out: spec.workers.template has another one",
        );
    }
    Ok(())
}

/// Checks that the trainer can compute the metric of the best checkpoint, and that there is a
/// volume for the event files of `TensorBoard`.
pub(super) fn kept(
    checkpoint: Option<&Checkpoint>,
    trainer: Option<&TrainerConfig>,
) -> Result<(), InvalidSpec> {
    let best = checkpoint.and_then(|checkpoint| checkpoint.best);
    let Some(trainer) = trainer else {
        return match best {
            Some(_) => invalid(
                "spec.checkpoint.best",
                "leave it out: it is for the built-in trainer, which evaluates; a script of your own keeps its best state \
                 itself",
            ),
            None => Ok(()),
        };
    };
    if trainer.tensorboard && checkpoint.is_none() {
        return invalid(
            "spec.trainer.tensorboard",
            "give spec.checkpoint, beside whose checkpoints the event files are written, or leave it out",
        );
    }
    match best.and_then(|best| best.metric.refusal(trainer.model.name)) {
        Some(refusal) => invalid("spec.checkpoint.best.metric", refusal),
        None => Ok(()),
    }
}

pub(super) fn rules(rules: &[FailureRule]) -> Result<(), InvalidSpec> {
    for (at, rule) in rules.iter().enumerate() {
        let FailureRule {
            action: _,
            on_exit_codes,
            on_pod_conditions,
            on_reasons,
        } = rule;
        let given = [
            on_exit_codes.is_some(),
            on_pod_conditions.is_some(),
            on_reasons.is_some(),
        ];
        if given.into_iter().filter(|given| *given).count() != 1 {
            return invalid(
                format!("spec.failurePolicy.rules[{at}]"),
                "give exactly one of onExitCodes, onPodConditions, onReasons",
            );
        }
    }
    Ok(())
}
