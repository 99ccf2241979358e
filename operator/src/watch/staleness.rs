//! Whether a cache is too old to act on: questions to the API server before something irrevocable is done.

pub mod confirm;
pub(crate) mod deleted_job;
pub(crate) mod missing_pod;
