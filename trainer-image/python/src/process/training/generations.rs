//! Calls of the object that has the generations of this process in Python.

use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use roundhouse_member::Failure;
use roundhouse_member::group::Abort;

use crate::failure::{notify, of_generations};

/// A `roundhouse.generations.Generations`, which documents its methods.
#[derive(Debug)]
pub(in crate::process) struct Generations(Py<PyAny>);

impl Generations {
    pub(in crate::process) const fn new(generations: Py<PyAny>) -> Self {
        Self(generations)
    }

    /// Drops all uses of the current generation's group.
    pub(super) fn leave(&self) -> Result<(), Failure> {
        self.call("leave", ()).map(|_: Option<bool>| ())
    }

    /// Whether a generation has formed in all processes of this replica. `has_formed`: whether it
    /// has in this process.
    ///
    /// # Errors
    /// The failure that ends this process if another process of the replica is lost.
    pub(super) fn formed(&self, generation: u64, has_formed: bool) -> Result<bool, Failure> {
        self.call("formed", (generation, has_formed))
    }

    /// Checks in the lobby that the other processes of this replica are alive.
    ///
    /// # Errors
    /// The failure that ends this process if one of them is lost.
    pub(super) fn check_replica(&self) -> Result<(), Failure> {
        self.call("check_replica", ()).map(|_: Option<bool>| ())
    }

    fn call<T>(&self, method: &str, arguments: impl for<'py> PyCallArgs<'py>) -> Result<T, Failure>
    where
        T: for<'py> FromPyObject<'py, 'py, Error = PyErr>,
    {
        Python::attach(|py| {
            let found = self.0.bind(py).call_method1(method, arguments);
            found
                .and_then(|found| found.extract())
                .map_err(|error| of_generations(py, &error))
        })
    }
}

impl Abort for Generations {
    /// Ends the waits for the other processes of this replica.
    fn abort(&self) {
        notify(|py| self.0.call_method0(py, "cut_replica"));
    }
}
