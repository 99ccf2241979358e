//! Declarations of the C ABI of `src/bridge`.

use std::ffi::{c_char, c_int, c_void};

use torch_sys::C_tensor;

mod tools;

pub(crate) use tools::*;

pub(crate) const OK: c_int = 0;
#[cfg(test)]
pub(crate) const ERROR: c_int = 1;
pub(crate) const DISTRIBUTED: c_int = 2;
pub(crate) const OUT_OF_MEMORY: c_int = 3;
#[cfg(test)]
pub(crate) const ACCELERATOR: c_int = 4;

#[repr(C)]
pub(crate) struct RhStore {
    _opaque: [u8; 0],
}

#[repr(C)]
pub(crate) struct RhGroup {
    _opaque: [u8; 0],
}

#[repr(C)]
pub(crate) struct RhExchange {
    _opaque: [u8; 0],
}

#[repr(C)]
pub(crate) struct RhReducer {
    _opaque: [u8; 0],
}

#[repr(C)]
pub(crate) struct RhReducerOptions {
    pub(crate) bucket_bytes: i64,
    pub(crate) first_bucket_bytes: i64,
    pub(crate) view: bool,
    pub(crate) find_unused: bool,
    pub(crate) static_graph: bool,
    pub(crate) hook: c_int,
    pub(crate) power_sgd: RhPowerSgd,
    pub(crate) whole_count: usize,
    pub(crate) whole_indices: *const usize,
    pub(crate) bucket_count: usize,
    pub(crate) bucket_sizes: *const usize,
    pub(crate) bucket_indices: *const usize,
}

#[repr(C)]
#[derive(Default)]
pub(crate) struct RhPowerSgd {
    pub(crate) rank: i64,
    pub(crate) min_compression_rate: i64,
    pub(crate) plain_passes: u64,
    pub(crate) seed: u64,
}

pub(crate) type Consume = extern "C" fn(*mut c_void, *const u8, usize);

unsafe extern "C" {
    pub(crate) fn rh_error_message() -> *const c_char;

    pub(crate) fn rh_store_open(
        host: *const c_char,
        port: u16,
        serve: bool,
        listening: c_int,
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
    pub(crate) fn rh_store_delete(
        store: *const RhStore,
        key: *const c_char,
        out: *mut bool,
    ) -> c_int;
    pub(crate) fn rh_store_num_keys(store: *const RhStore, out: *mut i64) -> c_int;
    pub(crate) fn rh_store_clear(store: *const RhStore, out: *mut u64) -> c_int;
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
    pub(crate) fn rh_group_sum(
        group: *const RhGroup,
        own: *const C_tensor,
        out: *mut *mut C_tensor,
    ) -> c_int;
    pub(crate) fn rh_group_sum_gradients(
        group: *const RhGroup,
        x: *const C_tensor,
        out: *mut *mut C_tensor,
    ) -> c_int;
    pub(crate) fn rh_group_sum_values(
        group: *const RhGroup,
        own: *const C_tensor,
        out: *mut *mut C_tensor,
    ) -> c_int;
    pub(crate) fn rh_take_sum_wait() -> i64;
    pub(crate) fn rh_group_broadcast(
        group: *const RhGroup,
        tensor: *mut C_tensor,
        root: c_int,
    ) -> c_int;
    pub(crate) fn rh_group_broadcast_each(
        group: *const RhGroup,
        tensors: *const *mut C_tensor,
        count: usize,
    ) -> c_int;
    pub(crate) fn rh_group_broadcast_coalesced(
        group: *const RhGroup,
        tensors: *const *mut C_tensor,
        count: usize,
        root: c_int,
    ) -> c_int;
    pub(crate) fn rh_group_exchange(
        group: *const RhGroup,
        sent: *const C_tensor,
        to: c_int,
        received: *mut C_tensor,
        from: c_int,
        out: *mut *mut RhExchange,
    ) -> c_int;
    pub(crate) fn rh_exchange_wait(exchange: *mut RhExchange) -> c_int;
    pub(crate) fn rh_exchange_free(exchange: *mut RhExchange) -> c_int;
    pub(crate) fn rh_group_barrier(group: *const RhGroup) -> c_int;
    pub(crate) fn rh_group_failed(group: *const RhGroup, out: *mut bool) -> c_int;
    pub(crate) fn rh_group_oldest_wait(group: *const RhGroup, out: *mut u64) -> c_int;
    pub(crate) fn rh_num_abandoned() -> u64;
    pub(crate) fn rh_group_set_timeout(group: *const RhGroup, timeout_ms: i64) -> c_int;
    pub(crate) fn rh_group_shutdown(group: *const RhGroup) -> c_int;
    #[cfg(feature = "fake-nccl")]
    pub(crate) fn rh_fake_nccl_aborts() -> u64;
    #[cfg(feature = "fake-nccl")]
    pub(crate) fn rh_count_memory();
    #[cfg(feature = "fake-nccl")]
    pub(crate) fn rh_counted_memory(held: *mut i64, peak: *mut i64);
    pub(crate) fn rh_group_abort(group: *const RhGroup) -> c_int;
    pub(crate) fn rh_group_free(group: *mut RhGroup) -> c_int;

    pub(crate) fn rh_reducer_new(
        parameters: *const *mut C_tensor,
        count: usize,
        group: *const RhGroup,
        options: *const RhReducerOptions,
        out: *mut *mut RhReducer,
    ) -> c_int;
    pub(crate) fn rh_zero_grad(parameters: *const *mut C_tensor, count: usize) -> c_int;
    pub(crate) fn rh_set_grad(
        tensors: *const *mut C_tensor,
        gradients: *const *mut C_tensor,
        count: usize,
    ) -> c_int;
    pub(crate) fn rh_reducer_prepare_for_forward(reducer: *mut RhReducer) -> c_int;
    pub(crate) fn rh_reducer_prepare_for_backward(
        reducer: *mut RhReducer,
        outputs: *const *mut C_tensor,
        count: usize,
    ) -> c_int;
    pub(crate) fn rh_reducer_digest(reducer: *const RhReducer, out: *mut *mut C_tensor) -> c_int;
    pub(crate) fn rh_reducer_end_pass(reducer: *mut RhReducer) -> c_int;
    pub(crate) fn rh_reducer_waited(reducer: *mut RhReducer, out: *mut i64) -> c_int;
    pub(crate) fn rh_reducer_waited_before(reducer: *mut RhReducer, out: *mut i64) -> c_int;
    pub(crate) fn rh_reducer_buckets(
        reducer: *const RhReducer,
        context: *mut c_void,
        consume: extern "C" fn(*mut c_void, *const usize, usize),
    ) -> c_int;
    pub(crate) fn rh_layout(
        parameters: *const *mut C_tensor,
        count: usize,
        loss: *const C_tensor,
        first_bucket_bytes: i64,
        bucket_bytes: i64,
        context: *mut c_void,
        consume: extern "C" fn(*mut c_void, *const usize, usize),
    ) -> c_int;
    pub(crate) fn rh_reducer_has_final_buckets(reducer: *const RhReducer) -> bool;
    pub(crate) fn rh_reducer_forget(reducer: *mut RhReducer) -> c_int;
    pub(crate) fn rh_reducer_rescale(reducer: *mut RhReducer, factor: f64) -> c_int;
    pub(crate) fn rh_reducer_payload_bytes(reducer: *const RhReducer) -> i64;
    pub(crate) fn rh_power_sgd_columns(
        rows: i64,
        cols: i64,
        rank: i64,
        min_compression_rate: i64,
    ) -> i64;
    pub(crate) fn rh_reducer_free(reducer: *mut RhReducer) -> c_int;
    #[cfg(feature = "nccl")]
    pub(crate) fn rh_num_gpus(out: *mut c_int) -> c_int;
    pub(crate) fn rh_empty_cache() -> c_int;
    pub(crate) fn rh_set_device(device: c_int) -> c_int;
    pub(crate) fn rh_backward(loss: *const C_tensor) -> c_int;
}
