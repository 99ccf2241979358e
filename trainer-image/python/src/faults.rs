//! Faults at points in the Python package, for tests.

use pyo3::prelude::*;
use roundhouse_member::faults::{self, Point};

/// Ends or stops the process if a test has injected a fault at this point of a rank's step:
/// "Forward", "Backward" or "Column". Has no effect without the feature `faults`.
#[pyfunction]
pub(crate) fn fault_point(name: &str, rank: u32, step: u64) {
    let point = match name {
        "Forward" => Point::Forward,
        "Column" => Point::Column,
        _ => Point::Backward,
    };
    if point == Point::Forward {
        faults::slow_down();
    }
    faults::point(point, rank, step);
}
