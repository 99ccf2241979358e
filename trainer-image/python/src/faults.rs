//! Faults at points that the package knows and the native part does not, for tests.

use pyo3::prelude::*;
use roundhouse_member::faults::{self, Point};

/// Ends or stops the process if a test has told it to at this point of a rank's step: "Forward" or "Backward". Without the
/// feature `faults` there is nothing.
#[pyfunction]
pub(crate) fn fault_point(name: &str, rank: u32, step: u64) {
    let point = match name {
        "Forward" => Point::Forward,
        _ => Point::Backward,
    };
    if point == Point::Forward {
        faults::slow_down();
    }
    faults::point(point, rank, step);
}
