//! Checks local copies (`checkpoint.local`) against the program and the memory of its container.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use roundhouse_api::{Checkpoint, CopyMedium, quantity};
use roundhouse_contract::{Mode, labels};

use crate::invalid::{InvalidSpec, invalid};
use crate::program::Program;

pub(super) const SIZE_LIMIT: &str = "spec.checkpoint.local.sizeLimit";

/// Checks that the processes can keep copies, and that the container's memory can hold them.
pub(super) fn check(
    checkpoint: Option<&Checkpoint>,
    program: &Program,
    template: &PodTemplateSpec,
) -> Result<(), InvalidSpec> {
    let Some(local) = checkpoint.and_then(|checkpoint| checkpoint.local.as_ref()) else {
        return Ok(());
    };
    if program.mode() == Mode::Restart {
        return invalid(
            "spec.checkpoint.local",
            "leave it out: a script that restarts in each generation keeps its state itself",
        );
    }
    let containers = template.spec.iter().flat_map(|spec| &spec.containers);
    let trainer = containers
        .filter(|it| it.name == labels::TRAINER_CONTAINER)
        .find_map(|container| container.resources.as_ref()?.limits.as_ref()?.get("memory"));
    let limit = trainer.and_then(|memory| Some((memory, quantity::bytes(&memory.0)?)));
    let needed = local.max_bytes().unwrap_or_default();
    match limit {
        Some((memory, limit)) if local.medium == CopyMedium::Memory && needed >= limit => invalid(
            SIZE_LIMIT,
            format!(
                "must be below the memory limit of the container, {}: copies in memory count against it; lower \
                 it, raise the limit, or set medium: Disk",
                memory.0
            ),
        ),
        Some(_) | None => Ok(()),
    }
}
