//! The pods of the workers: which are made, replaced and removed.

pub(crate) mod children;
pub(crate) mod group;
mod kueue;
mod replace;
