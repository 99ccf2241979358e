//! Incidents, their costs and limits, replacements of pods, and avoided nodes.
#![allow(clippy::unwrap_used)]

mod budget;
mod cause;
mod costs;
mod g12_incidents;
mod init_containers;
mod named_nodes;
mod newcomers;
mod nodes;
mod replacements;
mod rules;

use roundhouse_api::{ExitCodeOperator, FailureAction, FailureRule, OnExitCodes};
use roundhouse_planner::testing::{World, world};

pub(crate) fn rule(action: FailureAction) -> FailureRule {
    FailureRule {
        action,
        on_exit_codes: None,
        on_pod_conditions: None,
        on_reasons: None,
    }
}

pub(crate) fn on_codes(
    action: FailureAction,
    operator: ExitCodeOperator,
    values: &[i32],
) -> FailureRule {
    let values = values.to_vec();
    FailureRule {
        on_exit_codes: Some(OnExitCodes { operator, values }),
        ..rule(action)
    }
}

pub(crate) fn on_reason(action: FailureAction, reason: &str) -> FailureRule {
    FailureRule {
        on_reasons: Some(vec![reason.to_owned()]),
        ..rule(action)
    }
}

/// Three workers train on nodes n0 to n2; two are enough.
pub(crate) fn trains() -> World {
    let mut world = world(3);
    world.job.min_replicas = 2;
    let mut world = world.training();
    for at in 0..3 {
        world.is_on(at, &format!("n{at}"));
    }
    world
}
