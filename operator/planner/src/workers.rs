//! The pods of the workers: which ones the operator creates, replaces and removes.

pub(crate) mod delete;
pub(crate) mod gangs;
pub(crate) mod group;
pub(crate) mod kueue;
pub(crate) mod leave_domain;
pub(crate) mod owned_objects;
mod replace;
pub(crate) mod replica_labels;
