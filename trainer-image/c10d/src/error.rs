//! Errors of calls into libtorch.

use std::ffi::c_void;
use std::ffi::{CStr, CString, c_int};

use crate::ffi;

pub use roundhouse_torch_errors::ErrorKind;

/// The result of a call into libtorch.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed call into libtorch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The kind of the error, which shows what the caller can do.
    pub kind: ErrorKind,
    /// The error message of libtorch.
    pub message: String,
}

impl Error {
    /// The error of a call that this crate refuses before it reaches libtorch.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::Other,
            message: message.into(),
        }
    }

    /// Whether a lost peer or a lost store is the cause.
    #[must_use]
    pub const fn is_peer_lost(&self) -> bool {
        matches!(self.kind, ErrorKind::ConnectionLost | ErrorKind::Timeout)
    }
}

impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        let message = error.to_string();
        Self {
            kind: ErrorKind::of_message(&message),
            message,
        }
    }
}

/// For functions that return errors of tch. [`ErrorKind::of_message`] restores the kind from the
/// message.
impl From<Error> for tch::TchError {
    fn from(error: Error) -> Self {
        Self::Torch(error.message)
    }
}

/// Turns the status of a bridge call into a result.
pub(crate) fn check(status: c_int) -> Result<()> {
    if status == ffi::OK {
        return Ok(());
    }
    // SAFETY: the bridge returns a NUL-terminated string that lives until this thread's next call.
    let text = unsafe { CStr::from_ptr(ffi::rh_error_message()) };
    let message = text.to_string_lossy().into_owned();
    Err(Error {
        kind: of_call(status, &message),
        message,
    })
}

/// The kind of a bridge call's error: by its class if the class is decisive, else by its text.
fn of_call(class: c_int, message: &str) -> ErrorKind {
    match (class, ErrorKind::of_message(message)) {
        (ffi::OUT_OF_MEMORY, _) => ErrorKind::OutOfMemory,
        // Only a distributed call throws these: a peer is lost, or the group was aborted for a lost
        // peer.
        (ffi::DISTRIBUTED, ErrorKind::Other) if !message.contains("ncclInvalid") => {
            ErrorKind::ConnectionLost
        }
        (_, kind) => kind,
    }
}

/// Converts a string for C++.
pub(crate) fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::refused(format!("{text:?} has a NUL character")))
}

/// The text that a call of the bridge passes to the function that it gets; `None`: it passes none.
pub(crate) fn text(call: impl FnOnce(*mut c_void, ffi::Consume)) -> Option<String> {
    extern "C" fn take(context: *mut c_void, bytes: *const u8, length: usize) {
        // SAFETY: C++ passes the context from below and the bytes of a text.
        let (words, bytes) = unsafe {
            (
                &mut *context.cast::<Option<String>>(),
                std::slice::from_raw_parts(bytes, length),
            )
        };
        *words = Some(String::from_utf8_lossy(bytes).into_owned());
    }
    let mut words: Option<String> = None;
    call((&raw mut words).cast(), take);
    words
}

#[cfg(test)]
mod tests {
    use super::ErrorKind::{ConnectionLost, Device, Other, OutOfMemory};
    use super::*;

    #[test]
    fn class_of_an_exception_takes_precedence_over_its_text() {
        let words = "NCCL error: an unknown message";
        assert_eq!(of_call(ffi::DISTRIBUTED, words), ConnectionLost);
        assert_eq!(of_call(ffi::ERROR, words), Other);
        assert_eq!(of_call(ffi::OUT_OF_MEMORY, words), OutOfMemory);
        let usage = "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.";
        assert_eq!(of_call(ffi::DISTRIBUTED, usage), Other);
        let misread = "ncclInvalidArgument: Invalid value for an argument.";
        assert_eq!(of_call(ffi::DISTRIBUTED, misread), Other);
        let ecc = "ncclUnhandledCudaError: uncorrectable ECC error encountered";
        assert_eq!(of_call(ffi::DISTRIBUTED, ecc), Device);
        let assertion = "CUDA error: device-side assert triggered";
        assert_eq!(of_call(ffi::ACCELERATOR, assertion), Other);
    }
}
