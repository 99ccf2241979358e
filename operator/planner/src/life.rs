//! The job's life: suspension and resumption, deadlines, and the end.

pub(crate) mod deadlines;
pub(crate) mod finish;
pub(crate) mod outdated;
pub(crate) mod suspend;
