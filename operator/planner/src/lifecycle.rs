//! The lifecycle of a job: suspension and resumption, deadlines, the end, and how long an ended job
//! is kept.

pub(crate) mod deadlines;
pub(crate) mod deleting;
pub(crate) mod finish;
pub(crate) mod newer_protocol;
pub(crate) mod outdated;
pub(crate) mod suspend;
pub(crate) mod ttl;
