//! All pods of a run are built from the same. A run lasts until the job is suspended: only then may the template and what
//! else is in the pods be edited.

use roundhouse_api::{ConditionReason, ConditionType, EventReason};
use roundhouse_contract::BuiltFrom;

use crate::draft::{Draft, event};
use crate::failures::replacements;
use crate::life::suspend;
use crate::observed::Pod;
use crate::plan::{DeleteReason, PlanReason};
use crate::told::status::counted;
use crate::workers::delete::delete;
use crate::workers::group;

/// An operator that was away while the job was suspended, edited and resumed finds pods of the spec before. They leave, as for a
/// suspension, and the job is resumed when they have left.
pub(crate) fn leave(draft: &mut Draft<'_>) -> Option<PlanReason> {
    // A job that is not accepted gets no new pods, so it keeps those that it has.
    if draft.rejection.is_some() {
        return None;
    }
    let pods = draft.observed.pods.iter();
    let outdated: Vec<&Pod> = pods.filter(|pod| is_outdated(draft, pod)).collect();
    let asked = outdated.iter().filter(|pod| !pod.deleting);
    let asked: Vec<&Pod> = asked.copied().collect();
    let leaving = outdated
        .iter()
        .filter(|pod| suspend::still_leaves(pod, draft.now).is_some())
        .count();
    let is_resuming = draft.status.is_true(ConditionType::Suspended);
    if asked.is_empty() && (leaving == 0 || is_resuming) {
        return None;
    }
    for pod in &asked {
        draft.actions.push(delete(pod, DeleteReason::Outdated));
    }
    replacements::expect_none(draft);
    // As for a suspension: some of what it says cannot be edited.
    group::remove(draft);
    let workers = counted(asked.len() + leaving, "worker");
    let message = format!(
        "the spec was edited while the job was suspended: {workers} built from the spec before must leave first"
    );
    draft.running(false, ConditionReason::Resuming, message.clone());
    suspend::suspended(draft, true, ConditionReason::Resuming, message.clone());
    if !asked.is_empty() {
        draft.events.push(event(EventReason::Suspended, message));
    }
    Some(PlanReason::Resuming)
}

fn is_outdated(draft: &Draft<'_>, pod: &Pod) -> bool {
    pod.ours && !is_of_spec(pod, &draft.job.built_from, draft.job.generation)
}

/// Whether a pod was built from this spec. The generation and the version of the fingerprint tell an edit from an operator that
/// reads the same spec in another way.
fn is_of_spec(pod: &Pod, spec: &str, generation: i64) -> bool {
    let differs = |it: &BuiltFrom| {
        it.spec_version == BuiltFrom::SPEC_VERSION
            && it.spec != spec
            && it.job_generation < generation
    };
    !pod.built_from.as_ref().is_some_and(differs)
}

/// What the pods of this run were built from: the settings of the operator may be others by now. `None`: there is no pod, or none
/// that says.
pub(crate) fn of_this_run(draft: &Draft<'_>) -> Option<BuiltFrom> {
    let pods = of_run(
        &draft.observed.pods,
        &draft.job.built_from,
        draft.job.generation,
    );
    oldest(pods).cloned()
}

/// The pods of a job that were built from this spec.
fn of_run<'a>(
    pods: &'a [Pod],
    spec: &'a str,
    generation: i64,
) -> impl Iterator<Item = &'a Pod> + Clone {
    let ours = pods.iter().filter(|pod| pod.ours);
    ours.filter(move |pod| is_of_spec(pod, spec, generation))
}

fn oldest<'a>(pods: impl Iterator<Item = &'a Pod>) -> Option<&'a BuiltFrom> {
    let records = pods.filter_map(|pod| Some((pod, pod.built_from.as_ref()?)));
    let oldest = records.min_by_key(|(pod, _)| (pod.created_at, &pod.name));
    oldest.map(|(_, record)| record)
}

/// Processes of each worker of a run, and what they compute on, as its pods were built. All workers of a generation have the same
/// number, so a job keeps it until it is suspended, whatever the operator takes for a GPU by now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Devices {
    pub(crate) procs_per_worker: Option<u32>,
    /// As a pod says it; `None`: no pod does.
    pub(crate) expected_device: Option<String>,
}

/// Those of the run that these pods belong to. Pods of an older operator tell the number by the places that they were given.
pub(crate) fn devices(pods: &[Pod], spec: &str, generation: i64) -> Devices {
    let pods = of_run(pods, spec, generation);
    let record = oldest(pods.clone());
    let places = pods.filter_map(|pod| pod.membership.as_ref());
    let newest = places.max_by_key(|place| place.generation);
    Devices {
        procs_per_worker: record
            .and_then(|record| record.procs_per_worker)
            .or_else(|| newest.map(|place| place.procs_per_worker)),
        expected_device: record.and_then(|record| record.expected_device.clone()),
    }
}
