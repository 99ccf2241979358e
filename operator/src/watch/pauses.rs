//! How long the operator waits before it starts a broken watch again.

use std::time::Duration;

use backon::ExponentialBuilder;
use kube::runtime::utils::ResetTimerBackoff;
use kube::runtime::watcher::ExponentialBackoff;

/// Pause after a watch fails: 0.8 to 1.6 s, doubling to 10 to 20 s. Until then the operator sees no
/// changes.
const AFTER_BREAK: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(800))
    .with_max_delay(Duration::from_secs(10))
    .without_max_times()
    .with_jitter();
/// After this time without an error, or after any event, the pauses are short again.
const WELL: Duration = Duration::from_mins(2);

pub(crate) fn watch_backoff() -> ResetTimerBackoff<ExponentialBackoff> {
    ResetTimerBackoff::new(AFTER_BREAK.into(), WELL)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refused_watch_restarts_within_20_seconds() {
        let mut pauses = watch_backoff();
        let next = |pauses: &mut ResetTimerBackoff<_>| Iterator::next(pauses).unwrap();
        for expected in [800, 1_600, 3_200, 6_400, 10_000, 10_000, 10_000] {
            let expected = Duration::from_millis(expected);
            let pause = next(&mut pauses);
            assert!((expected..=expected * 2).contains(&pause), "{pause:?}");
            advance(pause).await;
        }
        advance(WELL * 2).await;
        assert!(next(&mut pauses) < Duration::from_secs(2));
    }
}
