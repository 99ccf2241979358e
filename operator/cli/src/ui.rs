//! The page of `ui`: a small HTTP server for one user of this machine. It reads and never writes.
//!
//! The [`guard`] admits or refuses a request. The [`server`] routes it to [`assets`] or to the
//! [`query_cache`]. The cache reads the [`source`] (a cluster, or the directory of a run) and
//! limits how often it does so.

mod assets;
mod document;
mod guard;
mod history;
mod model;
mod query_cache;
mod server;
pub(crate) mod source;
#[cfg(test)]
mod tests;

pub(crate) use guard::Guard;
pub(crate) use query_cache::QueryCache;
pub(crate) use server::serve;
