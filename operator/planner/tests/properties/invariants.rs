//! What every plan and every settled state must satisfy.

use roundhouse_api::{ConditionReason, ConditionType, Gang};
use roundhouse_planner::generation::members::Members;
use roundhouse_planner::testing::World;
use roundhouse_planner::{Action, ObservedGroup, Plan};

/// A deadline ends a job only in a confirmed state, and the start deadline only if too
/// few workers are ready.
pub(crate) fn only_a_deadline_that_counts_ends_it(world: &World, plan: &Plan) {
    let failed = plan.status.condition(ConditionType::Failed);
    let Some(failed) = failed.filter(|_| !world.observed.status.is_terminal()) else {
        return;
    };
    let is = |reason: ConditionReason| failed.reason == reason.as_str();
    let is_late_start = is(ConditionReason::StartDeadlineExceeded);
    if is_late_start || is(ConditionReason::DeadlineExceeded) {
        assert!(world.observed.fresh, "ended by an old cache");
    }
    let able = Members::of(&world.job, &world.observed, world.now).able();
    let enough = able.len() >= world.job.min_replicas as usize;
    assert!(!is_late_start || !enough, "ended with enough workers");
}

/// A gang scheduler must know the group before any of its pods.
pub(crate) fn no_worker_comes_before_its_group(world: &World, plan: &Plan) {
    let mut has_group = matches!(world.observed.group, ObservedGroup::Ours { .. })
        || world.job.scheduling.gang == Gang::None;
    for action in &plan.actions {
        has_group |= matches!(action, Action::ApplyPodGroup { .. });
        let creates = matches!(action, Action::CreateWorker { .. });
        assert!(has_group || !creates, "{:?}", plan.actions);
    }
}

/// In a settled state the group has the job's content, or does not exist.
pub(crate) fn the_group_is_right(world: &World) {
    let needs_group = world.job.scheduling.gang != Gang::None
        && !world.job.suspend
        && !world.observed.status.is_terminal();
    match &world.observed.group {
        ObservedGroup::Ours { group, .. } => {
            assert!(needs_group, "it was left behind");
            assert_eq!(group.min_member, world.job.min_replicas);
        }
        ObservedGroup::Missing => {
            let waits = matches!(world.state(), "Resuming");
            assert!(!needs_group || waits, "{:?}", world.observed);
        }
        ObservedGroup::Impossible(_) | ObservedGroup::Foreign | ObservedGroup::ForeignLeaving => {}
    }
}

/// A job is deleted only after its end and in a confirmed state.
pub(crate) fn only_a_job_that_has_ended_is_deleted(world: &World, plan: &Plan) {
    let deletes = |action: &Action| matches!(action, Action::DeleteJob { .. });
    if plan.actions.iter().any(deletes) {
        assert!(world.observed.fresh, "deleted by an old cache");
        assert!(
            world.observed.status.is_terminal(),
            "deleted before its end"
        );
        assert!(
            world.job.ttl_after_finished.is_some(),
            "deleted without ttlSecondsAfterFinished"
        );
    }
}
