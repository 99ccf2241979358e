//! Jobs whose steps the device commits, as on a GPU; the host reads the result a step later.

use std::cell::Cell;

thread_local! {
    static IS_ON_DEVICE: Cell<bool> = const { Cell::new(false) };
}

/// Makes jobs that this thread starts in `work` commit their steps on the device.
pub(crate) fn on_device<T>(work: impl FnOnce() -> T) -> T {
    IS_ON_DEVICE.set(true);
    let done = work();
    IS_ON_DEVICE.set(false);
    done
}

pub(super) fn is_on_device() -> bool {
    IS_ON_DEVICE.get()
}
