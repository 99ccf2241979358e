//! A panic is an error of the one whose code it was in: of one job, or of one background task.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;

use crate::controller::error::Error;

/// Runs a step of one job. What it shares with others is behind locks that a panic does not close.
///
/// # Errors
/// That of the step, or [`Error::Panicked`].
pub async fn caught<T>(step: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let result = AssertUnwindSafe(step).catch_unwind().await;
    result.unwrap_or_else(|panic| Err(Error::Panicked(words(&*panic))))
}

/// What a panic said.
#[must_use]
pub fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without words").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_the_error_of_the_step_that_panicked_and_has_its_words() {
        let number = 7;
        let step = async { panic!("no worker {number}") };
        let error = caught::<()>(step).await.unwrap_err();
        assert!(matches!(&error, Error::Panicked(words) if words == "no worker 7"));
        assert_eq!(error.label(), "Panicked");
        let error = caught::<()>(async { panic!("plain") }).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "a panic, which is a bug of Roundhouse: plain"
        );
        assert_eq!(caught(async { Ok(3) }).await.unwrap(), 3);
    }
}
