//! Reports of processes that end before their training is complete.

use pyo3::prelude::*;
use roundhouse_contract::{ExitCode, Reason};
use roundhouse_member::{Failure, Launch, process, signals};
use roundhouse_report::files::RunFiles;
use roundhouse_report::{Ending, Reporter};

use super::launches::variable;
use crate::failure::raised;

/// Reports the end of the process. `is_of_script`: whether it is an error of the script.
pub(super) fn report_end(
    launch: &Launch,
    reporter: &mut Reporter,
    ending: &Ending,
    is_of_script: bool,
) {
    reporter.fail(ending);
    if let (true, Some(run_dir)) = (is_of_script, &launch.run_dir) {
        let mut words = reporter.last_words(ending);
        words.reason = Reason::Crashed;
        RunFiles::new(run_dir, launch.local_rank).write_failure(&words);
    }
}

/// Writes the termination message of a process that ends before it has joined.
#[pyfunction]
pub(crate) fn fail_early(code: i32, words: &str) {
    let code = ExitCode::from_code(code).unwrap_or(ExitCode::Internal);
    process::fail_early(code, words, variable);
}

/// Whether this process was asked to leave.
#[pyfunction]
pub(crate) fn is_asked_to_leave() -> bool {
    signals::is_asked()
}

/// Asks this process to leave, because another one of its replica has to.
#[pyfunction]
pub(crate) fn ask_to_leave() {
    signals::ask();
}

/// Reports a failure of a process that has no reporter.
pub(super) fn failed_early(failure: Failure) -> PyErr {
    let Ending { code, words, .. } = failure.ending();
    process::fail_early(code, &words, variable);
    raised(failure)
}
