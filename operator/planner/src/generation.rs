//! A generation: which workers could form the next one and in which order, how it is raised and
//! issued, and how the operator notices that it is broken or that workers follow a newer one.

pub mod beside;
pub(crate) mod completed;
pub(crate) mod copies;
pub(crate) mod copy_pairs;
pub(crate) mod form;
pub mod members;
mod newest_seen;
pub(crate) mod reissue;
pub(crate) mod stranded;
mod topology;
