//! An operator that stands by while another one leads.

use futures::stream::Stream;
use futures::{FutureExt, StreamExt};
use kube::runtime::reflector::Store;

use crate::job::JobName;
use crate::runtime::leader_election::Leadership;
use crate::watch::wake::Wake;
use roundhouse_api::lenient::LenientJob;

/// Discards wakes as long as another operator leads. Then it returns the stream and a wake of each
/// job.
pub(super) async fn while_following<S>(
    mut wakes: S,
    leadership: &Leadership,
    jobs: &Store<LenientJob>,
) -> (S, Vec<Wake>)
where
    S: Stream<Item = Wake> + Unpin,
{
    let won = leadership.won();
    tokio::pin!(won);
    if (&mut won).now_or_never().is_some() {
        return (wakes, Vec::new());
    }
    loop {
        tokio::select! {
            () = &mut won => break,
            wake = wakes.next() => if wake.is_none() { break },
        }
    }
    let jobs = jobs.state();
    let all = jobs
        .iter()
        .map(|job| Wake::by_other(JobName::of(&job.job.metadata)));
    (wakes, all.collect())
}
