//! The process group of a generation, which is one of the user's PyTorch.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use roundhouse_member::failure::Failure;
use roundhouse_member::group::{Abort, Group, Meanwhile};

use crate::failure::{lost, notify};

/// A `roundhouse.groups.Group`, which documents its methods.
#[derive(Debug)]
pub(crate) struct PyGroup {
    group: Py<PyAny>,
    rank: u32,
    size: u32,
    reports_lost_peers: bool,
    /// True after the start of an abort: results of collectives may then be garbage.
    is_aborted: AtomicBool,
    abort: Once,
    /// The last timeout that was set.
    timeout: Mutex<Option<Duration>>,
}

/// A started sum over all ranks.
#[derive(Debug)]
pub(crate) struct Begun {
    sum: Py<PyAny>,
    num_values: usize,
}

impl PyGroup {
    pub(crate) fn new(py: Python<'_>, group: Py<PyAny>) -> PyResult<Self> {
        let bound = group.bind(py);
        Ok(Self {
            rank: bound.getattr("rank")?.extract()?,
            size: bound.getattr("size")?.extract()?,
            reports_lost_peers: bound.getattr("reports_lost_peers")?.extract()?,
            is_aborted: AtomicBool::new(false),
            abort: Once::new(),
            timeout: Mutex::new(None),
            group,
        })
    }

    /// The Python object of the group.
    pub(crate) fn object(&self, py: Python<'_>) -> Py<PyAny> {
        self.group.clone_ref(py)
    }

    /// Sets how long later collectives wait for their peers, if the library can change it.
    pub(crate) fn set_timeout(&self, timeout: Duration) {
        let mut known = self.timeout.lock().unwrap_or_else(PoisonError::into_inner);
        if known.replace(timeout) != Some(timeout) {
            let seconds = timeout.as_secs_f64();
            notify(|py| self.group.call_method1(py, "set_timeout", (seconds,)));
        }
    }

    /// Starts a sum over all ranks; [`Self::end_sum`] waits for it.
    ///
    /// # Errors
    /// The same as [`Group::sum`].
    pub(crate) fn begin_sum(&self, values: Vec<f64>) -> Result<Begun, Failure> {
        let num_values = values.len();
        let sum = Python::attach(|py| {
            let sum = self.group.call_method1(py, "begin_sum", (values,));
            sum.map_err(|error| lost(py, &error))
        })?;
        Ok(Begun { sum, num_values })
    }

    /// Waits until all ranks have started the same sum, and returns the sums.
    ///
    /// # Errors
    /// The same as [`Group::sum`].
    pub(crate) fn end_sum(&self, begun: Begun) -> Result<Vec<f64>, Failure> {
        let Begun { sum, num_values } = begun;
        let sums: Vec<f64> = Python::attach(|py| {
            let sums = self.group.call_method1(py, "end_sum", (sum,));
            sums.and_then(|sums| sums.extract(py))
                .map_err(|error| lost(py, &error))
        })?;
        self.check()?;
        if sums.len() == num_values {
            return Ok(sums);
        }
        let words = format!("{} sums of {num_values} numbers", sums.len());
        Err(Failure::Internal(words))
    }
}

impl Abort for PyGroup {
    fn abort(&self) {
        self.is_aborted.store(true, Ordering::SeqCst);
        self.abort.call_once(|| {
            // The group counts as aborted, whatever the library returns.
            notify(|py| self.group.call_method0(py, "abort"));
        });
    }

    fn shutdown(&self) {
        notify(|py| self.group.call_method0(py, "shutdown"));
    }

    fn has_failed(&self) -> bool {
        // Gloo's collectives return their errors themselves.
        let has_failed = || {
            Python::attach(|py| {
                let failed = self.group.call_method0(py, "has_failed");
                failed.and_then(|failed| failed.extract(py))
            })
        };
        !self.reports_lost_peers && has_failed().unwrap_or(false)
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
        let sums = self.end_sum(self.begin_sum(values.to_vec())?)?;
        values.copy_from_slice(&sums);
        Ok(())
    }

    fn exchange(
        &self,
        send: Option<(&[u8], u32)>,
        receive: Option<(&mut [u8], u32)>,
        meanwhile: Meanwhile<'_>,
    ) -> Result<(), Failure> {
        let send = send.map(|(bytes, to)| {
            let address = bytes.as_ptr().expose_provenance();
            (address, bytes.len(), to)
        });
        let receive = receive.map(|(bytes, from)| {
            let address = bytes.as_mut_ptr().expose_provenance();
            (address, bytes.len(), from)
        });
        let begun = Python::attach(|py| {
            let begun = self
                .group
                .call_method1(py, "begin_exchange", (send, receive));
            begun.map_err(|error| lost(py, &error))
        })?;
        meanwhile()?;
        Python::attach(|py| {
            let moved = self.group.call_method1(py, "end_exchange", (begun,));
            moved.map_err(|error| lost(py, &error))
        })?;
        self.check()
    }

    fn check(&self) -> Result<(), Failure> {
        if self.is_aborted.load(Ordering::SeqCst) {
            return Err(Failure::PeerLost("the group was aborted".to_owned()));
        }
        Ok(())
    }

    fn reports_lost_peers(&self) -> bool {
        self.reports_lost_peers
    }
}
