//! The pods of the workers: which are made, replaced and removed.

pub(crate) mod children;
mod replace;
