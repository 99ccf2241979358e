//! Log lines of all workers in one stream. Where lines come from is a [`Source`], so that a test can be one.
//!
//! The agent writes the rank of a process in its current generation before each line, so a line says itself whose it is.
//! What is done here: no line is lost or shown twice while containers restart, pods are replaced and connections break.

use std::future::Future;
use std::io;

use futures::stream::BoxStream;
use jiff::Timestamp;

pub(crate) mod follow;
pub(crate) mod line;
pub(crate) mod merge;
mod reader;
mod seen;
#[cfg(test)]
mod tests;

pub(crate) use line::{Line, Speaker};
pub(crate) use reader::Begin;

/// The log of one pod, as far as its status tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Name of the pod.
    pub(crate) pod: String,
    /// UID of the pod.
    pub(crate) uid: String,
    /// Index of the worker.
    pub(crate) worker: u32,
    /// Restarts of the trainer container: which one it is now.
    pub(crate) restarts: u32,
    /// Whether a trainer container has ever run in the pod, and its node answers.
    pub(crate) has_started: bool,
    /// Whether it runs now.
    pub(crate) is_running: bool,
}

/// What is there to be read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    /// One for each pod.
    pub(crate) targets: Vec<Target>,
    /// Whether the job has ended or is gone, so that no pods follow.
    pub(crate) is_over: bool,
}

/// Which part of a log is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    /// That of the container before the last restart.
    pub(crate) previous: bool,
    /// Lines that come later, too, until the container ends.
    pub(crate) follow: bool,
    /// Lines from a moment on.
    pub(crate) since: Option<Timestamp>,
    /// So many last lines at most.
    pub(crate) tail: Option<i64>,
}

/// Lines as they arrive, each with its time before it: `2026-01-01T00:00:00.5Z text`.
pub(crate) type Lines = BoxStream<'static, io::Result<String>>;

/// Where logs come from.
pub(crate) trait Source {
    /// The pods that are there now.
    fn list(&self) -> impl Future<Output = anyhow::Result<Listing>>;

    /// Opens the log of a pod.
    fn open(&self, pod: &str, part: Part) -> impl Future<Output = anyhow::Result<Lines>>;
}
