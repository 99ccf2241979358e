//! The rendezvous store: `TCPStore` and `PrefixStore`.

use std::ffi::c_void;
use std::net::{IpAddr, TcpListener};
use std::os::fd::IntoRawFd;
use std::ptr::NonNull;
use std::time::Duration;

use crate::error::{Error, Result, c_string, check};
use crate::ffi;

/// A key-value store through which the ranks of a generation find each other. It has no
/// authentication, so serve it with [`Self::host_at`] on an address that only the ranks can reach.
#[derive(Debug)]
pub struct Store {
    raw: NonNull<ffi::RhStore>,
    port: u16,
}

// SAFETY: c10d's stores have their own locks; any thread can use all calls.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Store {
    /// Serves a store on `port` (0: any free port) of all interfaces and connects to it. It does
    /// not wait for other ranks.
    ///
    /// # Errors
    /// The port is in use.
    pub fn host(port: u16, timeout: Duration) -> Result<Self> {
        Self::open("127.0.0.1", port, true, None, timeout)
    }

    /// Serves a store on `port` (0: any free port) of one IPv4 or IPv6 address of this host and
    /// connects to it. Other addresses of the host do not answer. It does not wait for other ranks.
    ///
    /// # Errors
    /// The port is in use, or the address does not belong to this host.
    pub fn host_at(address: IpAddr, port: u16, timeout: Duration) -> Result<Self> {
        let refused =
            |error| Error::refused(format!("listening on {address}, port {port}: {error}"));
        let listener = TcpListener::bind((address, port)).map_err(refused)?;
        let port = listener.local_addr().map_err(refused)?.port();
        Self::open(&address.to_string(), port, true, Some(listener), timeout)
    }

    /// Connects to a store that another process serves.
    ///
    /// # Errors
    /// No store answers within `timeout`.
    pub fn connect(host: &str, port: u16, timeout: Duration) -> Result<Self> {
        Self::open(host, port, false, None, timeout)
    }

    fn open(
        host: &str,
        port: u16,
        serve: bool,
        listener: Option<TcpListener>,
        timeout: Duration,
    ) -> Result<Self> {
        let host = c_string(host)?;
        let timeout = milliseconds(timeout);
        // The store takes ownership of the descriptor and closes it, also on failure.
        let listening = listener.map_or(-1, IntoRawFd::into_raw_fd);
        make(|out| {
            // SAFETY: `host` is NUL-terminated and outlives the call; the descriptor is open and
            // has no other owner; `out` is valid for a write.
            unsafe { ffi::rh_store_open(host.as_ptr(), port, serve, listening, timeout, out) }
        })
        .map(|raw| Self {
            raw,
            // SAFETY: the store was just created and lives until drop.
            port: unsafe { ffi::rh_store_port(raw.as_ptr()) },
        })
    }

    /// Sets how long later calls wait for a key, also through prefixes. The initial value is the
    /// timeout of the connection.
    ///
    /// # Errors
    /// None that a caller can cause.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        // SAFETY: `raw` is live.
        check(unsafe { ffi::rh_store_set_timeout(self.raw.as_ptr(), milliseconds(timeout)) })
    }

    /// The port of the store's server.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The store with a prefix before each key, so that generations do not share keys.
    ///
    /// # Errors
    /// The prefix has a NUL character.
    pub fn prefix(&self, prefix: &str) -> Result<Self> {
        let prefix = c_string(prefix)?;
        make(|out| {
            // SAFETY: `raw` is live, `prefix` NUL-terminated, `out` valid for a write.
            unsafe { ffi::rh_store_prefix(self.raw.as_ptr(), prefix.as_ptr(), out) }
        })
        .map(|raw| Self {
            raw,
            port: self.port,
        })
    }

    /// Sets a key to a value.
    ///
    /// # Errors
    /// The store is not reachable.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let key = c_string(key)?;
        // SAFETY: pointers and length describe live memory, copied before the call returns.
        check(unsafe {
            ffi::rh_store_set(self.raw.as_ptr(), key.as_ptr(), value.as_ptr(), value.len())
        })
    }

    /// Waits until a key is set, and reads it.
    ///
    /// # Errors
    /// The store is not reachable, or the key was not set within the store's timeout.
    pub fn get(&self, key: &str) -> Result<Vec<u8>> {
        extern "C" fn consume(context: *mut c_void, bytes: *const u8, length: usize) {
            // SAFETY: `context` is the vector below; C++ passes `length` readable bytes.
            unsafe {
                let value = &mut *context.cast::<Vec<u8>>();
                if length > 0 {
                    value.extend_from_slice(std::slice::from_raw_parts(bytes, length));
                }
            }
        }
        let key = c_string(key)?;
        let mut value = Vec::<u8>::new();
        let context = std::ptr::from_mut(&mut value).cast();
        // SAFETY: `consume` is called before the call returns, with the context given here.
        check(unsafe { ffi::rh_store_get(self.raw.as_ptr(), key.as_ptr(), context, consume) })?;
        Ok(value)
    }

    /// Adds to a counter and returns its new value. A missing counter counts as 0.
    ///
    /// # Errors
    /// The store is not reachable.
    pub fn add(&self, key: &str, delta: i64) -> Result<i64> {
        let key = c_string(key)?;
        let mut value = 0;
        // SAFETY: `raw` is live, `key` NUL-terminated, `value` valid for a write.
        check(unsafe {
            ffi::rh_store_add(self.raw.as_ptr(), key.as_ptr(), delta, &raw mut value)
        })?;
        Ok(value)
    }

    /// Deletes a key. Returns whether it existed.
    ///
    /// # Errors
    /// The store is not reachable.
    pub fn delete(&self, key: &str) -> Result<bool> {
        let key = c_string(key)?;
        let mut was_there = false;
        // SAFETY: `raw` is live, `key` NUL-terminated, `was_there` valid for a write.
        check(unsafe {
            ffi::rh_store_delete(self.raw.as_ptr(), key.as_ptr(), &raw mut was_there)
        })?;
        Ok(was_there)
    }

    /// Deletes all keys with this store's prefix, including those of process groups, and returns
    /// their number. The root store deletes all keys. No rank may still use the prefix.
    ///
    /// # Errors
    /// The store is not reachable.
    pub fn clear(&self) -> Result<u64> {
        let mut deleted = 0;
        // SAFETY: `raw` is live, `deleted` valid for a write.
        check(unsafe { ffi::rh_store_clear(self.raw.as_ptr(), &raw mut deleted) })?;
        Ok(deleted)
    }

    /// Number of keys in the whole store, independent of the prefix. The store itself keeps a few
    /// keys.
    ///
    /// # Errors
    /// The store is not reachable.
    pub fn num_keys(&self) -> Result<u64> {
        let mut keys = 0;
        // SAFETY: `raw` is live, `keys` valid for a write.
        check(unsafe { ffi::rh_store_num_keys(self.raw.as_ptr(), &raw mut keys) })?;
        Ok(u64::try_from(keys).unwrap_or(0))
    }

    pub(crate) fn as_ptr(&self) -> *const ffi::RhStore {
        self.raw.as_ptr()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: the bridge created the store, and this frees it once. An error while closing has
        // no effect.
        let _ = unsafe { ffi::rh_store_free(self.raw.as_ptr()) };
    }
}

/// A timeout as milliseconds for C++.
pub(crate) fn milliseconds(timeout: Duration) -> i64 {
    i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX / 2)
}

/// Calls a constructor of the bridge.
pub(crate) fn make<T>(call: impl FnOnce(*mut *mut T) -> std::ffi::c_int) -> Result<NonNull<T>> {
    let mut made = std::ptr::null_mut();
    check(call(&raw mut made))?;
    NonNull::new(made).ok_or_else(|| Error::refused("the bridge created no object"))
}
