//! Converts errors between Python and Rust.

use std::cell::RefCell;

use pyo3::exceptions::{PyException, PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use roundhouse_contract::environment::EnvironmentInvalid;
use roundhouse_member::failure::Failure;
use roundhouse_report::Ending;
use roundhouse_torch_errors::ErrorKind;

/// The Python module of the package's exceptions.
const ERRORS: &str = "roundhouse.errors";

thread_local! {
    /// An interrupt (Ctrl-C) of Python code that was called from here. It is not a failure.
    static INTERRUPT: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// The exception of the last [`Failure::State`], which has its own exit code.
    static REFUSAL: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// The exception for a failure: the interrupt that caused it, if there was one; the exception of
/// the state if its bytes could not be copied; else the exception for its exit code.
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

/// The result of a call into the native part. It is an interrupt if Ctrl-C came during a Python
/// call whose error is ignored, such as changing a timeout.
pub(crate) fn returned<T>(result: Result<T, Failure>) -> PyResult<T> {
    match INTERRUPT.take() {
        Some(interrupt) => Err(interrupt),
        None => result.map_err(raised),
    }
}

/// The exception for an invalid environment, which is a configuration error.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn misled(error: EnvironmentInvalid) -> PyErr {
    let code = roundhouse_contract::ExitCode::ConfigInvalid.code();
    exception(code, &error.to_string(), None)
}

/// The exception of the package for an exit code.
fn exception(code: i32, words: &str, newer: Option<u64>) -> PyErr {
    Python::attach(|py| {
        let made = py
            .import(ERRORS)
            .and_then(|errors| errors.call_method1("of_code", (code, words, newer)));
        made.map_or_else(|error| error, PyErr::from_value)
    })
}

/// The failure for an exception of a process group or a store. PyTorch raises a `RuntimeError` for
/// connections.
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

/// The failure for an exception of `Generations`: [`Failure::PeerLost`] if it has that exit code,
/// else [`Failure::Internal`].
pub(crate) fn of_generations(py: Python<'_>, error: &PyErr) -> Failure {
    let words = words(py, error);
    let code = error.value(py).getattr("exit_code");
    let code = code.and_then(|code| code.extract::<i32>());
    if code.is_ok_and(|code| code == roundhouse_contract::ExitCode::PeerLost.code()) {
        return Failure::PeerLost(words);
    }
    Failure::Internal(words)
}

/// The failure for an error message of PyTorch if the cause is local and not a peer.
fn own(words: &str) -> Option<fn(String) -> Failure> {
    match ErrorKind::of_message(words) {
        ErrorKind::OutOfMemory => Some(Failure::OutOfMemory),
        ErrorKind::Device => Some(Failure::Device),
        // An error of the program, after which this process can no longer use the device.
        ErrorKind::Other if words.starts_with("CUDA error") => Some(Failure::Internal),
        ErrorKind::Other | ErrorKind::ConnectionLost | ErrorKind::Timeout => None,
    }
}

/// The exit code for a `RuntimeError` of PyTorch with this message; None if a peer may be the
/// cause.
#[pyfunction]
pub(crate) fn own_failure(words: &str) -> Option<i32> {
    own(words).map(|failure| failure(String::new()).exit_code().code())
}

/// The failure for an exception while bytes of the state are copied.
pub(crate) fn refused(py: Python<'_>, error: &PyErr) -> Failure {
    let words = words(py, error);
    if is_of_memory(py, error) {
        Failure::OutOfMemory(words)
    } else {
        REFUSAL.set(Some(error.clone_ref(py)));
        Failure::State(words)
    }
}

/// Calls a method of the library and ignores its errors.
pub(crate) fn notify(call: impl FnOnce(Python<'_>) -> PyResult<Py<PyAny>>) {
    if let Err(error) = Python::attach(call) {
        unwanted(&error);
    }
}

/// Records an interrupt in a call whose error is ignored.
pub(crate) fn unwanted(error: &PyErr) {
    Python::attach(|py| note_interrupt(py, error));
}

fn note_interrupt(py: Python<'_>, error: &PyErr) {
    if !error.is_instance_of::<PyException>(py) {
        INTERRUPT.set(Some(error.clone_ref(py)));
    }
}

/// Whether the GPU is out of memory. For host memory only the message shows it.
fn is_of_memory(py: Python<'_>, error: &PyErr) -> bool {
    let found = error.get_type(py).name();
    found.is_ok_and(|found| found == "OutOfMemoryError")
}

/// The first line of the message: PyTorch's connection errors continue with a stack trace.
fn words(py: Python<'_>, error: &PyErr) -> String {
    note_interrupt(py, error);
    let all = error.value(py).to_string();
    all.lines().next().unwrap_or_default().to_owned()
}
