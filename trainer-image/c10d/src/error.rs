//! What can go wrong below.

use std::ffi::{CStr, CString, c_int};

use crate::ffi;

mod kind;

pub use kind::ErrorKind;

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
        kind: ErrorKind::of_call(status, &message),
        message,
    })
}

/// Text for C++.
pub(crate) fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::refused(format!("{text:?} has a NUL character")))
}
