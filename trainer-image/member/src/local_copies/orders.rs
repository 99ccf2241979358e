//! What the owner of the copies asks of the thread that writes them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Requests that count also for a copy in progress.
#[derive(Debug, Default)]
pub(super) struct Orders {
    is_discarded: AtomicBool,
    /// Whether no copy may be deleted any more.
    is_last: Mutex<bool>,
}

impl Orders {
    /// Copies must not get their names any more.
    pub(super) fn discard(&self) {
        self.is_discarded.store(true, Ordering::Relaxed);
    }

    pub(super) fn are_discarded(&self) -> bool {
        self.is_discarded.load(Ordering::Relaxed)
    }

    /// No copy may be deleted any more. Waits until the thread does not delete copies.
    pub(super) fn keep_all(&self) {
        *self.is_last.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Calls `delete` unless copies may not be deleted any more. Then it returns `None`.
    pub(super) fn delete<T>(&self, delete: impl FnOnce() -> T) -> Option<T> {
        let is_last = self.is_last.lock().unwrap_or_else(PoisonError::into_inner);
        (!*is_last).then(delete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_deleted_after_the_last_order() {
        let orders = Orders::default();
        assert_eq!(orders.delete(|| 1), Some(1));
        orders.keep_all();
        assert_eq!(orders.delete(|| 1), None);
        assert!(!orders.are_discarded());
    }
}
