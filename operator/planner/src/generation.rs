//! A generation: which workers could form the next one and in which order, how it is raised and issued, and how it is
//! noticed that it is broken.

pub(crate) mod form;
pub mod members;
pub(crate) mod stranded;
mod topology;
pub mod worker;
