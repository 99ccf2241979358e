//! The commands, one file each: what they read, and what they print or change.

pub(crate) mod change;
pub(crate) mod complete;
pub(crate) mod completion;
pub(crate) mod convert;
pub(crate) mod logs;
pub(crate) mod metrics;
pub(crate) mod plot;
pub(crate) mod report;
pub(crate) mod status;
pub(crate) mod submit;
pub(crate) mod top;
pub(crate) mod ui;
pub(crate) mod version;
pub(crate) mod why;

use std::process::ExitCode;

/// `watch` gave up before the job had ended.
pub(crate) const NOT_IN_TIME: u8 = 2;
/// The job was deleted while it was watched.
pub(crate) const DELETED: u8 = 3;
/// `why` has found something that is wrong.
pub(crate) const WRONG: u8 = 4;

/// Ended by Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

/// What a command ends with, or why it failed.
pub(crate) type Outcome = anyhow::Result<ExitCode>;
