//! Merges the log lines of all workers into one stream. Lines come from a [`Source`], which tests
//! implement, too.
//!
//! The agent prefixes each line with the rank of its process in the current generation, so a line
//! names its writer. These modules guarantee that no line is lost or shown twice while containers
//! restart, pods are replaced and connections break.

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

/// A pod whose log can be read, from the pod's status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Name of the pod.
    pub(crate) pod: String,
    /// UID of the pod.
    pub(crate) uid: String,
    /// Index of the worker.
    pub(crate) worker: u32,
    /// Restarts of the trainer container, which identify the present container.
    pub(crate) restarts: u32,
    /// Whether a trainer container has ever run in the pod, and the node answers.
    pub(crate) has_started: bool,
    /// Whether the trainer container runs now.
    pub(crate) is_running: bool,
}

/// The pods of a job at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    /// One target for each pod.
    pub(crate) targets: Vec<Target>,
    /// Whether the job has ended or is gone, so that no new pods will appear.
    pub(crate) is_over: bool,
}

/// The part of a log to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    /// Whether to read the container before the last restart.
    pub(crate) previous: bool,
    /// Whether to wait for later lines until the container ends.
    pub(crate) follow: bool,
    /// Only lines from this time on.
    pub(crate) since: Option<Timestamp>,
    /// Only this many last lines.
    pub(crate) tail: Option<i64>,
}

/// Lines as they arrive, each with its time before it: `2026-01-01T00:00:00.5Z text`.
pub(crate) type Lines = BoxStream<'static, io::Result<String>>;

/// A source of logs.
pub(crate) trait Source {
    /// Lists the present pods.
    fn list(&self) -> impl Future<Output = anyhow::Result<Listing>>;

    /// Opens the log of a pod.
    fn open(&self, pod: &str, part: Part) -> impl Future<Output = anyhow::Result<Lines>>;
}
