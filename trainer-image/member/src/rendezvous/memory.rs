//! A store in the memory of one process, for tests. Its ports are keys of a table.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{Network, Ranks, Store};
use crate::failure::Failure;
use crate::group::threads::Threads;

type Keys = Arc<Mutex<BTreeMap<String, i64>>>;

/// The stores of a test, by their ports.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory(Arc<Mutex<BTreeMap<u16, Keys>>>);

/// A store of [`Memory`], or a part of one.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryStore {
    keys: Keys,
    prefix: String,
    port: u16,
}

impl Memory {
    /// Returns the store of a port.
    pub(super) fn serve(&self, port: u16) -> MemoryStore {
        let served = self.host(Ipv4Addr::LOCALHOST.into(), port, Duration::ZERO);
        served.unwrap_or_default()
    }
}

impl MemoryStore {
    /// Number of keys of the whole store.
    pub(super) fn num_keys(&self) -> usize {
        self.keys
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }
}

impl Store for MemoryStore {
    fn add(&self, key: &str, amount: i64) -> Result<i64, Failure> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let value = keys.entry(format!("{}{key}", self.prefix)).or_default();
        *value += amount;
        Ok(*value)
    }

    fn part(&self, name: &str) -> Result<Self, Failure> {
        Ok(Self {
            prefix: format!("{}{name}/", self.prefix),
            ..self.clone()
        })
    }

    fn set_timeout(&self, _: Duration) -> Result<(), Failure> {
        Ok(())
    }

    fn clear(&self) -> Result<(), Failure> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.retain(|key, _| !key.starts_with(&self.prefix));
        Ok(())
    }

    fn port(&self) -> u16 {
        self.port
    }
}

impl Network for Memory {
    type Store = MemoryStore;
    type Group = Threads;

    fn host(&self, _: IpAddr, port: u16, _: Duration) -> Result<MemoryStore, Failure> {
        let mut stores = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(MemoryStore {
            keys: Arc::clone(stores.entry(port).or_default()),
            prefix: String::new(),
            port,
        })
    }

    fn dial(&self, _: &str, port: u16, timeout: Duration) -> Result<MemoryStore, Failure> {
        self.host(Ipv4Addr::LOCALHOST.into(), port, timeout)
    }

    fn connect(&self, _: MemoryStore, _: &Ranks) -> Result<Threads, Failure> {
        Err(Failure::Internal("these ranks are threads".to_owned()))
    }
}
