//! What the pods of a run were built from. A run lasts until the job is suspended: only then may
//! the user edit the template and the other fields from which pods are built.

use roundhouse_contract::BuiltFrom;

use crate::observed::Pod;

/// Whether a pod was built from this spec. The job's generation and the version of the
/// fingerprint distinguish an edit from an operator of another version that computes another
/// fingerprint of the same spec.
pub(crate) fn is_of_spec(pod: &Pod, spec: &str, generation: i64) -> bool {
    let differs = |it: &BuiltFrom| {
        it.spec_version == BuiltFrom::SPEC_VERSION
            && it.job_generation < generation
            && it.spec != spec
    };
    !pod.built_from.as_ref().is_some_and(differs)
}

/// The record of the oldest pod of a run, because the operator's settings may have changed since.
/// `None` if there is no pod or none has a record.
pub(crate) fn record_of_run(pods: &[Pod], spec: &str, generation: i64) -> Option<BuiltFrom> {
    oldest(of_run(pods, spec, generation)).cloned()
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

/// Number of processes per worker and their device, as the pods of the run were built. All workers
/// of a generation have the same number, so a job keeps it until it is suspended, even if the
/// operator now takes other resources for GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Devices {
    pub(crate) procs_per_worker: Option<u32>,
    /// As in the record of a pod; `None` if no record has it.
    pub(crate) expected_device: Option<String>,
}

/// The devices of the run that these pods belong to. Records of older operators lack the number of
/// processes, so it is then read from the pods' memberships.
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
