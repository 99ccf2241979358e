//! Calls to the API server with a deadline and at most three tries. The client's own retry is
//! switched off, because it can hold one call for minutes.

use std::future::Future;
use std::time::Duration;

use kube::api::{PatchParams, PostParams};
use roundhouse_contract::labels;
use tokio::time::{Instant, sleep, timeout_at};

use crate::runtime::api::error::CallError;

/// Time for the creation of an object, with all tries. It is longer than the API server waits for
/// an admission webhook (10 s by default, 30 s at most), so that the operator receives the server's
/// error instead of timing out first.
pub const CREATE_DEADLINE: Duration = Duration::from_secs(35);
/// Deadline for any other call, with all its tries.
pub const DEADLINE: Duration = Duration::from_secs(5);
const TRIES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Calls until there is an answer: at most three times, within five seconds.
///
/// # Errors
/// The last answer of the API server, or that there was none.
pub async fn call<T, F>(request: impl FnMut() -> F) -> Result<T, CallError>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    call_within(DEADLINE, request).await
}

/// Calls until there is an answer: at most three times, within the given time.
///
/// # Errors
/// The last answer of the API server, or that there was none.
pub async fn call_within<T, F>(
    time: Duration,
    mut request: impl FnMut() -> F,
) -> Result<T, CallError>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let deadline = Instant::now() + time;
    let mut pause = FIRST_PAUSE;
    for attempt in 1.. {
        let result = match timeout_at(deadline, request()).await {
            Ok(result) => result.map_err(CallError::Kube),
            Err(_) => Err(CallError::Deadline(time)),
        };
        let Err(error) = result else { return result };
        let wait = pause.max(error.retry_after().unwrap_or_default());
        if attempt == TRIES || !is_transient(&error) || Instant::now() + wait >= deadline {
            return Err(error);
        }
        sleep(wait).await;
        pause *= 3;
    }
    Err(CallError::Deadline(time))
}

/// Parameters of a patch, with the operator as the field manager.
#[must_use]
pub fn patch_params() -> PatchParams {
    PatchParams {
        field_manager: Some(labels::FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// Parameters of a creation or a replacement, with the operator as the field manager.
#[must_use]
pub fn post_params() -> PostParams {
    PostParams {
        field_manager: Some(labels::FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}

/// Whether the same call may succeed a moment later.
fn is_transient(error: &CallError) -> bool {
    match error {
        CallError::Kube(kube::Error::Api(status)) => matches!(status.code, 429 | 500 | 502..=504),
        CallError::Kube(kube::Error::Service(_) | kube::Error::HyperError(_)) => true,
        CallError::Deadline(_)
        | CallError::Pending(_)
        | CallError::Undone(_)
        | CallError::Kube(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn busy(seconds: u32) -> kube::Error {
        let status = json!({"code": 429, "details": {"retryAfterSeconds": seconds}});
        let status: kube::core::Status = serde_json::from_value(status).unwrap();
        kube::Error::Api(status.boxed())
    }

    #[tokio::test(start_paused = true)]
    async fn call_is_retried_at_the_time_that_the_server_names() {
        for (seconds, expected, tries) in [(2, 4, 3), (4, 4, 2), (6, 0, 1)] {
            let (begun, mut num_tries) = (Instant::now(), 0);
            let result = call(|| {
                num_tries += 1;
                std::future::ready(Err::<(), _>(busy(seconds)))
            });
            assert_eq!(result.await.unwrap_err().code(), Some(429));
            let waited = begun.elapsed().as_secs();
            assert_eq!((waited, num_tries), (expected, tries), "{seconds} s");
        }
    }
}
