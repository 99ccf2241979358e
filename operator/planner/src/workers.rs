//! The pods of the workers: which are made, replaced and removed.

pub(crate) mod delete;
pub(crate) mod group;
pub(crate) mod kueue;
pub(crate) mod leave_domain;
pub(crate) mod owned_objects;
mod replace;
