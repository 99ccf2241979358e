//! Generations that somebody follows. After the API server was restored from an older state they may be newer than what the
//! job's status knows.

use crate::observed::Observed;

/// Generations that may have been raised after the state that an API server was restored from.
const MOST_LOST: u64 = 100_000;

/// The newest generation that a pod's document, a progress or a termination message names. A number that no restored state
/// explains is not believed: workers could use up all numbers with it.
pub(crate) fn newest(observed: &Observed, generation: u64) -> u64 {
    let pods = observed.pods.iter().filter(|pod| pod.ours);
    let documents = pods
        .clone()
        .filter_map(|pod| Some(pod.membership.as_ref()?.generation));
    let ends = pods.filter_map(|pod| {
        let message = pod.container.termination.as_ref()?.message.as_ref()?;
        Some(message.generation)
    });
    let progress = observed.progress.as_ref();
    let told = progress.map(|sample| sample.progress.generation);
    let all = documents.chain(ends).chain(told);
    let explained = all.filter(|number| *number <= generation.saturating_add(MOST_LOST));
    explained.fold(generation, u64::max)
}
