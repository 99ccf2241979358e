//! The C ABI of `src/bridge`, as declared there.

use std::ffi::{c_char, c_int, c_void};

use torch_sys::C_tensor;

pub(crate) const OK: c_int = 0;
pub(crate) const CONNECTION_LOST: c_int = 2;
pub(crate) const TIMEOUT: c_int = 3;

#[repr(C)]
pub(crate) struct RhStore {
    _opaque: [u8; 0],
}

#[repr(C)]
pub(crate) struct RhGroup {
    _opaque: [u8; 0],
}

#[repr(C)]
pub(crate) struct RhReducer {
    _opaque: [u8; 0],
}

pub(crate) type Consume = extern "C" fn(*mut c_void, *const u8, usize);

unsafe extern "C" {
    pub(crate) fn rh_error_message() -> *const c_char;

    pub(crate) fn rh_store_open(
        host: *const c_char,
        port: u16,
        serve: bool,
        timeout_ms: i64,
        out: *mut *mut RhStore,
    ) -> c_int;
    pub(crate) fn rh_store_prefix(
        store: *const RhStore,
        prefix: *const c_char,
        out: *mut *mut RhStore,
    ) -> c_int;
    pub(crate) fn rh_store_set_timeout(store: *const RhStore, timeout_ms: i64) -> c_int;
    pub(crate) fn rh_store_port(store: *const RhStore) -> u16;
    pub(crate) fn rh_store_set(
        store: *const RhStore,
        key: *const c_char,
        value: *const u8,
        length: usize,
    ) -> c_int;
    pub(crate) fn rh_store_get(
        store: *const RhStore,
        key: *const c_char,
        context: *mut c_void,
        consume: Consume,
    ) -> c_int;
    pub(crate) fn rh_store_add(
        store: *const RhStore,
        key: *const c_char,
        delta: i64,
        out: *mut i64,
    ) -> c_int;
    pub(crate) fn rh_store_free(store: *mut RhStore) -> c_int;

    pub(crate) fn rh_group_gloo(
        store: *const RhStore,
        rank: c_int,
        size: c_int,
        timeout_ms: i64,
        address: *const c_char,
        name: *const c_char,
        out: *mut *mut RhGroup,
    ) -> c_int;
    #[cfg(feature = "nccl")]
    pub(crate) fn rh_group_nccl(
        store: *const RhStore,
        rank: c_int,
        size: c_int,
        timeout_ms: i64,
        device: c_int,
        name: *const c_char,
        out: *mut *mut RhGroup,
    ) -> c_int;
    #[cfg(feature = "fake-nccl")]
    pub(crate) fn rh_group_fake_nccl(
        store: *const RhStore,
        rank: c_int,
        size: c_int,
        timeout_ms: i64,
        address: *const c_char,
        name: *const c_char,
        out: *mut *mut RhGroup,
    ) -> c_int;
    pub(crate) fn rh_group_all_reduce(
        group: *const RhGroup,
        tensor: *mut C_tensor,
        operation: c_int,
    ) -> c_int;
    pub(crate) fn rh_group_broadcast(
        group: *const RhGroup,
        tensor: *mut C_tensor,
        root: c_int,
    ) -> c_int;
    pub(crate) fn rh_group_broadcast_coalesced(
        group: *const RhGroup,
        tensors: *const *mut C_tensor,
        count: usize,
        root: c_int,
    ) -> c_int;
    pub(crate) fn rh_group_barrier(group: *const RhGroup) -> c_int;
    pub(crate) fn rh_group_failed(group: *const RhGroup, out: *mut bool) -> c_int;
    pub(crate) fn rh_group_abort(group: *const RhGroup) -> c_int;
    pub(crate) fn rh_group_free(group: *mut RhGroup) -> c_int;

    pub(crate) fn rh_reducer_new(
        parameters: *const *mut C_tensor,
        count: usize,
        group: *const RhGroup,
        bucket_bytes: i64,
        first_bucket_bytes: i64,
        view: bool,
        out: *mut *mut RhReducer,
    ) -> c_int;
    pub(crate) fn rh_zero_grad(parameters: *const *mut C_tensor, count: usize) -> c_int;
    pub(crate) fn rh_reducer_prepare_for_forward(reducer: *mut RhReducer) -> c_int;
    pub(crate) fn rh_reducer_prepare_for_backward(reducer: *mut RhReducer) -> c_int;
    pub(crate) fn rh_reducer_waited(reducer: *mut RhReducer, out: *mut i64) -> c_int;
    pub(crate) fn rh_reducer_free(reducer: *mut RhReducer) -> c_int;
    pub(crate) fn rh_backward(loss: *const C_tensor) -> c_int;
}
