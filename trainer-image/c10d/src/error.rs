//! What can go wrong below.

use std::ffi::{CStr, CString, c_int};

use crate::ffi;

/// Result of a call into c10d.
pub type Result<T> = std::result::Result<T, Error>;

/// Kind of an [`Error`]: what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// A peer or the store is gone; a new group without it can go on.
    ConnectionLost,
    /// A peer or the store did not answer in time.
    Timeout,
    /// The call itself is wrong.
    Other,
}

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

/// Turns the status of a bridge call into a result.
pub(crate) fn check(status: c_int) -> Result<()> {
    let kind = match status {
        ffi::OK => return Ok(()),
        ffi::CONNECTION_LOST => ErrorKind::ConnectionLost,
        ffi::TIMEOUT => ErrorKind::Timeout,
        _ => ErrorKind::Other,
    };
    // SAFETY: the bridge returns a NUL-terminated string that lives until this thread's next call.
    let text = unsafe { CStr::from_ptr(ffi::rh_error_message()) };
    Err(Error {
        kind,
        message: text.to_string_lossy().into_owned(),
    })
}

/// Text for C++.
pub(crate) fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::refused(format!("{text:?} has a NUL character")))
}
