//! The commands, one file each.

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

/// Exit code of `watch` at its timeout.
pub(crate) const NOT_IN_TIME: u8 = 2;
/// Exit code of `watch` when the job was deleted.
pub(crate) const DELETED: u8 = 3;
/// Exit code of `why` when something is wrong.
pub(crate) const WRONG: u8 = 4;

/// Exit code after Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

/// The exit code of a command, or its error.
pub(crate) type Outcome = anyhow::Result<ExitCode>;
