//! The newest generation that any pod follows. After a restore of the API server from an older
//! state it may be newer than the generation in the job's status.

use crate::observed::Observed;

/// Most generations that may have been raised since the state from which the
/// API server was restored.
const MOST_LOST: u64 = 100_000;

/// The newest generation that a membership, a progress report or a termination message
/// names. Larger numbers than a restore can explain are ignored: otherwise a worker could
/// use up all numbers.
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
    let reported = progress.map(|sample| sample.progress.generation);
    let all = documents.chain(ends).chain(reported);
    let explained = all.filter(|number| *number <= generation.saturating_add(MOST_LOST));
    explained.fold(generation, u64::max)
}
