//! Calls to the API server: deadlines, the pauses that the server asks for, metrics, and answers
//! that are read in part.

pub mod calls;
pub mod error;
pub mod metadata;
pub mod metered;
pub(crate) mod object;
pub mod retry_after;
