//! Turns a panic into an error of its origin: of one job, or of one background task.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;

/// A reconcile panicked with this message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panicked(pub String);

/// Runs a reconcile and catches its panic. The state that it shares with other jobs is behind locks
/// that ignore poisoning.
///
/// # Errors
/// The error of the reconcile, or [`Panicked`].
pub async fn caught<T, E: From<Panicked>>(
    step: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let result = AssertUnwindSafe(step).catch_unwind().await;
    result.unwrap_or_else(|panic| Err(Panicked(words(&*panic)).into()))
}

/// The message of a panic.
#[must_use]
pub fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_becomes_the_error_of_its_step_with_its_message() {
        let number = 7;
        let step = async { panic!("no worker {number}") };
        let error = caught::<(), Panicked>(step).await.unwrap_err();
        assert_eq!(error, Panicked("no worker 7".to_owned()));
        let error = caught::<(), Panicked>(async { panic!("plain") }).await;
        assert_eq!(error.unwrap_err(), Panicked("plain".to_owned()));
        assert_eq!(caught::<_, Panicked>(async { Ok(3) }).await.unwrap(), 3);
    }
}
