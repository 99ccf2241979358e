//! The objects of a job: which ones are created, repaired, replaced and deleted.
#![allow(clippy::unwrap_used, clippy::panic)]

mod g11_frozen;
mod group;
mod kueue;
mod leave_domain;
mod lost_nodes;
mod owned_objects;
mod replace;

use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Action, DeleteReason, Plan};

/// This number of workers train; one is enough.
pub(crate) fn trains(workers: u32) -> World {
    let mut world = world(workers);
    world.job.min_replicas = 1;
    let mut world = world.training();
    for at in 0..workers as usize {
        world.is_on(at, &format!("n{at}"));
    }
    world
}

pub(crate) fn deleted(plan: &Plan) -> Vec<(String, DeleteReason)> {
    let deleted = |action: &Action| match action {
        Action::DeletePod { pod, reason, .. } => Some((pod.clone(), *reason)),
        _ => None,
    };
    plan.actions.iter().filter_map(deleted).collect()
}

pub(crate) fn created(plan: &Plan) -> Vec<(u32, u32)> {
    let created = |action: &Action| match action {
        Action::CreateWorker { index, attempt, .. } => Some((*index, *attempt)),
        _ => None,
    };
    plan.actions.iter().filter_map(created).collect()
}
