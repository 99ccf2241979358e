//! The process group of a generation, which is the user's PyTorch's.

use std::sync::OnceLock;

use pyo3::prelude::*;
use roundhouse_member::failure::Failure;
use roundhouse_member::group::{Abort, Group};

use crate::failure::lost;

/// A `roundhouse.groups.Group`: what its methods do is said there.
#[derive(Debug)]
pub(crate) struct PyGroup {
    group: Py<PyAny>,
    rank: u32,
    size: u32,
    tells_lost_peers: bool,
    aborted: OnceLock<()>,
}

impl PyGroup {
    pub(crate) fn new(py: Python<'_>, group: Py<PyAny>) -> PyResult<Self> {
        let bound = group.bind(py);
        Ok(Self {
            rank: bound.getattr("rank")?.extract()?,
            size: bound.getattr("size")?.extract()?,
            tells_lost_peers: bound.getattr("tells_lost_peers")?.extract()?,
            aborted: OnceLock::new(),
            group,
        })
    }

    /// The object itself.
    pub(crate) fn object(&self, py: Python<'_>) -> Py<PyAny> {
        self.group.clone_ref(py)
    }

    /// How long its collectives wait for their peers from now on, if the library can change that.
    pub(crate) fn set_timeout(&self, timeout: std::time::Duration) {
        let seconds = timeout.as_secs_f64();
        let _ = Python::attach(|py| self.group.call_method1(py, "set_timeout", (seconds,)));
    }
}

impl Abort for PyGroup {
    fn abort(&self) {
        self.aborted.get_or_init(|| {
            // It is over, whatever the library says.
            let _ = Python::attach(|py| self.group.call_method0(py, "abort"));
        });
    }

    fn shutdown(&self) {
        let _ = Python::attach(|py| self.group.call_method0(py, "shutdown"));
    }
}

impl Group for PyGroup {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn sum(&self, values: &mut [f64]) -> Result<(), Failure> {
        let sums: Vec<f64> = Python::attach(|py| {
            let sums = self.group.call_method1(py, "sum", (values.to_vec(),));
            sums.and_then(|sums| sums.extract(py))
                .map_err(|error| lost(py, &error))
        })?;
        self.check()?;
        if sums.len() != values.len() {
            let words = format!("{} sums of {} numbers", sums.len(), values.len());
            return Err(Failure::Internal(words));
        }
        values.copy_from_slice(&sums);
        Ok(())
    }

    fn broadcast(&self, bytes: &mut [u8], source: u32) -> Result<(), Failure> {
        let (address, length) = (bytes.as_mut_ptr().expose_provenance(), bytes.len());
        Python::attach(|py| {
            let moved = self
                .group
                .call_method1(py, "broadcast", (address, length, source));
            moved.map_err(|error| lost(py, &error))
        })?;
        self.check()
    }

    fn check(&self) -> Result<(), Failure> {
        match self.aborted.get() {
            None => Ok(()),
            Some(()) => Err(Failure::PeerLost("the group was aborted".to_owned())),
        }
    }

    fn tells_lost_peers(&self) -> bool {
        self.tells_lost_peers
    }
}
