//! The rendezvous store: `TCPStore` and `PrefixStore`.

use std::ffi::c_void;
use std::net::{IpAddr, TcpListener};
use std::os::fd::IntoRawFd;
use std::ptr::NonNull;
use std::time::Duration;

use crate::error::{Error, Result, c_string, check};
use crate::ffi;

/// A key-value store that the ranks of a generation meet in. It has no authentication: serve it with
/// [`Self::host_at`] on an address that only the ranks can reach.
#[derive(Debug)]
pub struct Store {
    raw: NonNull<ffi::RhStore>,
    port: u16,
}

// SAFETY: c10d's stores lock for themselves; all calls are usable from any thread.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Store {
    /// Serves a store on `port` (0: any free one) of all interfaces and connects to it. It does not wait for
    /// other ranks.
    ///
    /// # Errors
    /// The port is taken.
    pub fn host(port: u16, timeout: Duration) -> Result<Self> {
        Self::open("127.0.0.1", port, true, None, timeout)
    }

    /// Serves a store on `port` (0: any free one) of one IPv4 or IPv6 address of this host and connects to it.
    /// Other addresses of the host do not answer. It does not wait for other ranks.
    ///
    /// # Errors
    /// The port is taken, or the address is not this host's.
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
    /// Nobody answers within `timeout`.
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
        // The store closes it, also when it fails after it has taken it over.
        let listening = listener.map_or(-1, IntoRawFd::into_raw_fd);
        make(|out| {
            // SAFETY: `host` is NUL-terminated and outlives the call; the descriptor is open and nobody else's;
            // `out` is valid for a write.
            unsafe { ffi::rh_store_open(host.as_ptr(), port, serve, listening, timeout, out) }
        })
        .map(|raw| Self {
            raw,
            // SAFETY: just made, and live until drop.
            port: unsafe { ffi::rh_store_port(raw.as_ptr()) },
        })
    }

    /// How long a key is waited for from now on, here and through prefixes. At first as long as it took
    /// at most to connect.
    ///
    /// # Errors
    /// None that a caller can cause.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        // SAFETY: `raw` is live.
        check(unsafe { ffi::rh_store_set_timeout(self.raw.as_ptr(), milliseconds(timeout)) })
    }

    /// The port it is served on.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The same store seen through a prefix, so that generations do not meet each other's keys.
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

    /// Sets a key.
    ///
    /// # Errors
    /// The store is gone.
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
    /// The store is gone, or the key was not set within the store's timeout.
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

    /// Adds to a counter and returns its new value; a counter that is not set is 0.
    ///
    /// # Errors
    /// The store is gone.
    pub fn add(&self, key: &str, delta: i64) -> Result<i64> {
        let key = c_string(key)?;
        let mut value = 0;
        // SAFETY: `raw` is live, `key` NUL-terminated, `value` valid for a write.
        check(unsafe {
            ffi::rh_store_add(self.raw.as_ptr(), key.as_ptr(), delta, &raw mut value)
        })?;
        Ok(value)
    }

    /// Deletes a key; whether it was there.
    ///
    /// # Errors
    /// The store is gone.
    pub fn delete(&self, key: &str) -> Result<bool> {
        let key = c_string(key)?;
        let mut was_there = false;
        // SAFETY: `raw` is live, `key` NUL-terminated, `was_there` valid for a write.
        check(unsafe {
            ffi::rh_store_delete(self.raw.as_ptr(), key.as_ptr(), &raw mut was_there)
        })?;
        Ok(was_there)
    }

    /// Deletes all keys below this store's prefix, those of process groups included, and returns their number.
    /// The root store deletes everything. No rank may still use the prefix.
    ///
    /// # Errors
    /// The store is gone.
    pub fn clear(&self) -> Result<u64> {
        let mut deleted = 0;
        // SAFETY: `raw` is live, `deleted` valid for a write.
        check(unsafe { ffi::rh_store_clear(self.raw.as_ptr(), &raw mut deleted) })?;
        Ok(deleted)
    }

    /// Number of keys in the whole store, whatever the prefix; the store itself keeps a few.
    ///
    /// # Errors
    /// The store is gone.
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
        // SAFETY: made by the bridge and freed once. An error while closing changes nothing.
        let _ = unsafe { ffi::rh_store_free(self.raw.as_ptr()) };
    }
}

/// Timeout for C++.
pub(crate) fn milliseconds(timeout: Duration) -> i64 {
    i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX / 2)
}

/// Calls a constructor of the bridge.
pub(crate) fn make<T>(call: impl FnOnce(*mut *mut T) -> std::ffi::c_int) -> Result<NonNull<T>> {
    let mut made = std::ptr::null_mut();
    check(call(&raw mut made))?;
    NonNull::new(made).ok_or_else(|| Error::refused("the bridge made nothing"))
}
