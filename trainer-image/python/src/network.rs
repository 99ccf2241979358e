//! Stores and process groups of the user's PyTorch behind the rendezvous traits of
//! `roundhouse-member`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use roundhouse_member::failure::Failure;
use roundhouse_member::rendezvous::{Network, Ranks, Store};

use crate::failure::lost;
use crate::group::PyGroup;

/// The module `roundhouse.network`, or an object like it.
#[derive(Clone, Debug)]
pub(crate) struct PyNetwork(Arc<Py<PyAny>>);

/// Wraps a `roundhouse.network.Store` of Python.
#[derive(Debug)]
pub(crate) struct PyStore {
    store: Py<PyAny>,
    port: u16,
}

impl PyNetwork {
    pub(crate) fn new(network: Py<PyAny>) -> Self {
        Self(Arc::new(network))
    }

    fn store<'py>(
        &self,
        py: Python<'py>,
        method: &str,
        arguments: impl PyCallArgs<'py>,
    ) -> Result<PyStore, Failure> {
        let store = self.0.call_method1(py, method, arguments);
        let store = store.and_then(|store| PyStore::new(py, store));
        store.map_err(|error| lost(py, &error))
    }
}

impl PyStore {
    fn new(py: Python<'_>, store: Py<PyAny>) -> PyResult<Self> {
        let port = store.getattr(py, "port")?.extract(py)?;
        Ok(Self { store, port })
    }

    fn call<T>(
        &self,
        method: impl FnOnce(Python<'_>, &Py<PyAny>) -> PyResult<T>,
    ) -> Result<T, Failure> {
        Python::attach(|py| method(py, &self.store).map_err(|error| lost(py, &error)))
    }
}

impl Store for PyStore {
    fn add(&self, key: &str, amount: i64) -> Result<i64, Failure> {
        self.call(|py, store| store.call_method1(py, "add", (key, amount))?.extract(py))
    }

    fn part(&self, name: &str) -> Result<Self, Failure> {
        self.call(|py, store| Self::new(py, store.call_method1(py, "part", (name,))?))
    }

    fn set_timeout(&self, timeout: Duration) -> Result<(), Failure> {
        let seconds = timeout.as_secs_f64();
        self.call(|py, store| {
            store
                .call_method1(py, "set_timeout", (seconds,))
                .map(|_| ())
        })
    }

    fn clear(&self) -> Result<(), Failure> {
        self.call(|py, store| store.call_method0(py, "clear").map(|_| ()))
    }

    fn port(&self) -> u16 {
        self.port
    }
}

impl Network for PyNetwork {
    type Store = PyStore;
    type Group = PyGroup;

    fn host(&self, address: IpAddr, port: u16, timeout: Duration) -> Result<PyStore, Failure> {
        let arguments = (address.to_string(), port, timeout.as_secs_f64());
        Python::attach(|py| self.store(py, "host", arguments))
    }

    fn dial(&self, address: &str, port: u16, timeout: Duration) -> Result<PyStore, Failure> {
        let arguments = (address, port, timeout.as_secs_f64());
        Python::attach(|py| self.store(py, "dial", arguments))
    }

    fn connect(&self, store: PyStore, ranks: &Ranks) -> Result<PyGroup, Failure> {
        let Ranks {
            generation,
            rank,
            size,
            timeout,
            address,
            own_store_port,
        } = *ranks;
        Python::attach(|py| {
            let arguments = (
                store.store.bind(py),
                generation,
                rank,
                size,
                timeout.as_secs_f64(),
                address.to_string(),
                own_store_port,
            );
            let group = self.0.call_method1(py, "connect", arguments);
            let group = group.and_then(|group| PyGroup::new(py, group));
            group.map_err(|error| lost(py, &error))
        })
    }
}
