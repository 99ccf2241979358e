//! The lane of the work queue in which a woken job waits.

use roundhouse_api::{ConditionReason, ConditionType};

use crate::runtime::queue::work_queue::Lane;
use crate::watch::wake::Cause;
use roundhouse_api::lenient::LenientJob;

/// The lane of a job in its last known state. A job that has trained and does not train now waits
/// for a worker. In a job that trains, a change of its workers may be the loss of one.
#[must_use]
pub fn lane(cause: Cause, job: Option<&LenientJob>) -> Lane {
    let Some(job) = job else { return Lane::Rest };
    let Some(status) = &job.job.status else {
        return Lane::New;
    };
    let ends = [ConditionType::Succeeded, ConditionType::Failed];
    let has_ended = ends.into_iter().any(|kind| status.is_true(kind));
    if has_ended || job.job.spec.suspend || job.job.metadata.deletion_timestamp.is_some() {
        return Lane::Rest;
    }
    let newest = status.membership.as_ref().map_or(0, |it| it.generation);
    let before = status.resumed_after_generation.unwrap_or(0);
    let running = status.condition(ConditionType::Running);
    let forms = running.is_some_and(|running| running.reason == ConditionReason::Forming.as_str());
    let is_new = newest <= before || (newest == before + 1 && forms);
    if is_new {
        return Lane::New;
    }
    let trains = status.is_true(ConditionType::Running);
    if trains && cause == Cause::Other {
        return Lane::Rest;
    }
    Lane::Incident
}

#[cfg(test)]
mod tests {
    use roundhouse_planner::testing::{World, raw_job, world};

    use super::*;

    /// The job of a world as the watch reports it.
    fn seen(world: &World) -> LenientJob {
        let mut job = raw_job(2);
        job.status = Some(world.observed.status.clone());
        job.spec.suspend = world.job.suspend;
        LenientJob::of(job).unwrap()
    }

    #[test]
    fn job_is_new_until_it_trains_and_then_an_incident() {
        use Lane::{Incident, New, Rest};
        let mut world = world(2);
        let lanes = |world: &World| {
            let seen = seen(world);
            [Cause::Workers, Cause::Other].map(|cause| lane(cause, Some(&seen)))
        };
        assert_eq!(lanes(&world), [New, New], "not reconciled yet");
        world.settle();
        assert_eq!(lanes(&world), [New, New], "it starts");
        for at in 0..2 {
            world.prepared(at);
        }
        let plan = world.plan();
        world.carry_out(&plan, usize::MAX);
        assert_eq!(world.generation(), 1);
        assert_eq!(
            lanes(&world),
            [New, New],
            "no pod has its first membership yet"
        );
        world.settle();
        assert_eq!(world.state(), "Training");
        assert_eq!(lanes(&world), [Incident, Rest]);
        world.is_deleted(1);
        world.settle();
        assert_eq!(lanes(&world), [Incident, Incident], "it waits for a worker");
        world.prepared(2);
        let plan = world.plan();
        world.carry_out(&plan, usize::MAX);
        assert_eq!(world.state(), "Forming");
        assert_eq!(
            lanes(&world),
            [Incident, Incident],
            "until all have their membership"
        );
        world.job.suspend = true;
        assert_eq!(lanes(&world), [Rest, Rest]);
    }

    #[test]
    fn ended_or_deleted_job_is_in_the_rest_lane() {
        let mut world = world(2).training();
        for at in 0..2 {
            world.ends(at, 0, 9);
        }
        world.settle();
        let seen = seen(&world);
        assert_eq!(lane(Cause::Workers, Some(&seen)), Lane::Rest);
        assert_eq!(lane(Cause::Workers, None), Lane::Rest);
    }

    #[test]
    fn resumed_job_is_new() {
        let mut world = world(2).training();
        world.job.suspend = true;
        world.settle();
        world.job.suspend = false;
        world.settle();
        assert_eq!(world.generation(), 1);
        assert_eq!(lane(Cause::Workers, Some(&seen(&world))), Lane::New);
    }
}
