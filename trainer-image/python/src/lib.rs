//! The native part of the Python package `roundhouse`: what a process does as a member of generations, for scripts that
//! train with a PyTorch of their own. It links no libtorch.
//!
//! [`process`] is the member, driven by `roundhouse/loops.py` and `roundhouse/open_step.py`. What it needs of PyTorch it asks of objects of the package:
//! [`network`] and [`group`] of stores and process groups, [`state`] of the bytes that are trained. [`sampler`] says which
//! samples belong to which step; [`failure`] how errors cross.

mod failure;
mod faults;
mod group;
mod network;
mod process;
mod sampler;
mod state;

use pyo3::prelude::*;

/// The module `roundhouse._native`.
#[pymodule]
mod _native {
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use super::failure::own_failure;
    #[pymodule_export]
    use super::faults::fault_point;
    #[pymodule_export]
    use super::process::{Process, fail_early};
    #[pymodule_export]
    use super::sampler::Course;
}
