//! Errors that cross between Python and Rust.

use std::cell::RefCell;

use pyo3::exceptions::{PyException, PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use roundhouse_contract::environment::EnvironmentInvalid;
use roundhouse_member::failure::Failure;
use roundhouse_report::Ending;
use roundhouse_torch_errors::ErrorKind;

/// Where the package's exceptions are made.
const ERRORS: &str = "roundhouse.errors";

thread_local! {
    /// What has interrupted Python code that was called from here: Ctrl-C, which is no failure.
    static INTERRUPT: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// The exception of the last [`Failure::State`], which has its own exit code.
    static REFUSAL: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// A failure as the exception of its exit code; as the interrupt that has caused it, if one has; as that of the state if
/// its bytes could not be copied.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn raised(failure: Failure) -> PyErr {
    if let Some(interrupt) = INTERRUPT.take() {
        return interrupt;
    }
    if let (Failure::State(_), Some(refusal)) = (&failure, REFUSAL.take()) {
        return refusal;
    }
    let Ending { code, words, newer } = failure.ending();
    exception(code.code(), &words, newer)
}

/// The result of a call into the native part. Ctrl-C may have come in a call of Python whose error nobody wants, such as that of a
/// change of a timeout.
pub(crate) fn returned<T>(result: Result<T, Failure>) -> PyResult<T> {
    match INTERRUPT.take() {
        Some(interrupt) => Err(interrupt),
        None => result.map_err(raised),
    }
}

/// A wrong environment is a wrong configuration.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn misled(error: EnvironmentInvalid) -> PyErr {
    let code = roundhouse_contract::ExitCode::ConfigInvalid.code();
    exception(code, &error.to_string(), None)
}

/// The package's exception for an exit code.
fn exception(code: i32, words: &str, newer: Option<u64>) -> PyErr {
    Python::attach(|py| {
        let made = py
            .import(ERRORS)
            .and_then(|errors| errors.call_method1("of_code", (code, words, newer)));
        made.map_or_else(|error| error, PyErr::from_value)
    })
}

/// What an exception of a process group or a store means: what torch raises for a connection is a `RuntimeError`.
pub(crate) fn lost(py: Python<'_>, error: &PyErr) -> Failure {
    let words = words(py, error);
    let is_of_torch =
        error.is_instance_of::<PyRuntimeError>(py) || error.is_instance_of::<PyOSError>(py);
    if is_of_memory(py, error) {
        return Failure::OutOfMemory(words);
    }
    match own(&words) {
        Some(failure) if is_of_torch => failure(words),
        None if is_of_torch => Failure::PeerLost(words),
        _ => Failure::Internal(words),
    }
}

/// The failure that words of PyTorch tell of if no peer is its cause.
fn own(words: &str) -> Option<fn(String) -> Failure> {
    match ErrorKind::of_message(words) {
        ErrorKind::OutOfMemory => Some(Failure::OutOfMemory),
        ErrorKind::Device => Some(Failure::Device),
        // Of the program: the device is of no use to this process any more.
        ErrorKind::Other if words.starts_with("CUDA error") => Some(Failure::Internal),
        ErrorKind::Other | ErrorKind::ConnectionLost | ErrorKind::Timeout => None,
    }
}

/// The exit code of a process in which PyTorch has raised a `RuntimeError` with these words; None if a peer may be its cause.
#[pyfunction]
pub(crate) fn own_failure(words: &str) -> Option<i32> {
    own(words).map(|failure| failure(String::new()).exit_code().code())
}

/// What an exception means where the bytes of the state are copied.
pub(crate) fn refused(py: Python<'_>, error: &PyErr) -> Failure {
    let words = words(py, error);
    if is_of_memory(py, error) {
        Failure::OutOfMemory(words)
    } else {
        REFUSAL.set(Some(error.clone_ref(py)));
        Failure::State(words)
    }
}

/// An exception where there should be none, in its words.
pub(crate) fn told(error: &PyErr) -> String {
    unwanted(error);
    error.to_string()
}

/// Notes an interrupt in a call whose error nobody wants.
pub(crate) fn unwanted(error: &PyErr) {
    Python::attach(|py| note_interrupt(py, error));
}

fn note_interrupt(py: Python<'_>, error: &PyErr) {
    if !error.is_instance_of::<PyException>(py) {
        INTERRUPT.set(Some(error.clone_ref(py)));
    }
}

/// Memory of the GPU: that of the host is told by words alone.
fn is_of_memory(py: Python<'_>, error: &PyErr) -> bool {
    let found = error.get_type(py).name();
    found.is_ok_and(|found| found == "OutOfMemoryError")
}

/// The first line: torch's errors of connections go on with a stack trace.
fn words(py: Python<'_>, error: &PyErr) -> String {
    note_interrupt(py, error);
    let all = error.value(py).to_string();
    all.lines().next().unwrap_or_default().to_owned()
}
