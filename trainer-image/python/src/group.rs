//! The process group of a generation, which is the user's PyTorch's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use roundhouse_member::failure::Failure;
use roundhouse_member::group::{Abort, Group, Meanwhile};

use crate::failure::{lost, unwanted};

/// A `roundhouse.groups.Group`: what its methods do is said there.
#[derive(Debug)]
pub(crate) struct PyGroup {
    group: Py<PyAny>,
    rank: u32,
    size: u32,
    reports_lost_peers: bool,
    /// From the begin of its abort on: what collectives have left by then may be garbage.
    is_aborted: AtomicBool,
    abort: Once,
    /// What it was told last.
    timeout: Mutex<Option<Duration>>,
}

/// A sum that has begun.
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

    /// The object itself.
    pub(crate) fn object(&self, py: Python<'_>) -> Py<PyAny> {
        self.group.clone_ref(py)
    }

    /// How long its collectives wait for their peers from now on, if the library can change that.
    pub(crate) fn set_timeout(&self, timeout: Duration) {
        let mut known = self.timeout.lock().unwrap_or_else(PoisonError::into_inner);
        if known.replace(timeout) != Some(timeout) {
            let seconds = timeout.as_secs_f64();
            tell(|py| self.group.call_method1(py, "set_timeout", (seconds,)));
        }
    }

    /// Begins a sum over all ranks; [`Self::end_sum`] waits for it.
    ///
    /// # Errors
    /// As [`Group::sum`].
    pub(crate) fn begin_sum(&self, values: Vec<f64>) -> Result<Begun, Failure> {
        let num_values = values.len();
        let sum = Python::attach(|py| {
            let sum = self.group.call_method1(py, "begin_sum", (values,));
            sum.map_err(|error| lost(py, &error))
        })?;
        Ok(Begun { sum, num_values })
    }

    /// The sums, when all ranks have begun the same one.
    ///
    /// # Errors
    /// As [`Group::sum`].
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

/// Tells the library something. Whether it could be done makes no difference.
fn tell(call: impl FnOnce(Python<'_>) -> PyResult<Py<PyAny>>) {
    if let Err(error) = Python::attach(call) {
        unwanted(&error);
    }
}

impl Abort for PyGroup {
    fn abort(&self) {
        self.is_aborted.store(true, Ordering::SeqCst);
        self.abort.call_once(|| {
            // It is over, whatever the library says.
            tell(|py| self.group.call_method0(py, "abort"));
        });
    }

    fn shutdown(&self) {
        tell(|py| self.group.call_method0(py, "shutdown"));
    }

    fn has_failed(&self) -> bool {
        // Errors of Gloo return from the collectives.
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
