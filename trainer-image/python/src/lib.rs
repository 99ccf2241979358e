//! The native part of the Python package `roundhouse`: the membership of a process in generations,
//! for scripts that train with their own PyTorch. It does not link libtorch.
//!
//! [`process`] is the member; `roundhouse/loops.py` and `roundhouse/open_step.py` drive it. It uses
//! PyTorch through objects of the package: [`network`] and [`group`] wrap stores and process
//! groups, and [`state`] wraps the trained bytes. [`sampler`] assigns samples to steps, and
//! [`failure`] converts errors.

mod failure;
mod faults;
mod group;
mod network;
mod process;
mod sampler;
mod state;

use pyo3::prelude::*;

/// The Python module `roundhouse._native`.
#[pymodule]
mod _native {
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use super::failure::own_failure;
    #[pymodule_export]
    use super::faults::fault_point;
    #[pymodule_export]
    use super::process::Process;
    #[pymodule_export]
    use super::process::endings::ask_to_leave;
    #[pymodule_export]
    use super::process::endings::fail_early;
    #[pymodule_export]
    use super::process::endings::is_asked_to_leave;
    #[pymodule_export]
    use super::sampler::SampleSchedule;
}
