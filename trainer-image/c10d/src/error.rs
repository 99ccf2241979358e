//! What can go wrong below.

use std::ffi::{CStr, CString, c_int};

use crate::ffi;

pub use roundhouse_torch_errors::ErrorKind;

/// Result of a call into libtorch.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What the caller can do about it.
    pub kind: ErrorKind,
    /// libtorch's words.
    pub message: String,
}

impl Error {
    /// A call that was refused before it reached libtorch.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::Other,
            message: message.into(),
        }
    }

    /// Whether a peer or the store is the cause, not the call.
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

/// Where tch's own calls fail, too. The message still tells the kind: [`ErrorKind::of_message`].
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

/// Kind of a bridge call's error: by its class, if that decides, else by its text.
fn of_call(class: c_int, message: &str) -> ErrorKind {
    match (class, ErrorKind::of_message(message)) {
        (ffi::OUT_OF_MEMORY, _) => ErrorKind::OutOfMemory,
        // Only a distributed call throws these: a peer is gone, or the group was aborted because one is.
        (ffi::DISTRIBUTED, ErrorKind::Other) if !message.contains("ncclInvalid") => {
            ErrorKind::ConnectionLost
        }
        (_, kind) => kind,
    }
}

/// Text for C++.
pub(crate) fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::refused(format!("{text:?} has a NUL character")))
}

#[cfg(test)]
mod tests {
    use super::ErrorKind::{ConnectionLost, Device, Other, OutOfMemory};
    use super::*;

    #[test]
    fn the_class_of_an_exception_decides_before_its_text() {
        let words = "NCCL error: some words that nobody knows";
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
