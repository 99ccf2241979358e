//! Calls to the API server: deadlines, back-off that the server asks for, metrics, and answers that are read in part.

pub mod calls;
pub(crate) mod metadata;
pub mod metered;
pub mod retry_after;
