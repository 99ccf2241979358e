//! The part of the C ABI without stores, groups and Reducers.

use std::ffi::{c_char, c_int, c_void};

use torch_sys::C_tensor;

use super::RhGroup;

#[repr(C)]
pub(crate) struct RhEvent {
    _opaque: [u8; 0],
}

#[repr(C)]
pub(crate) struct RhRecording {
    _opaque: [u8; 0],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RhAutocast {
    cuda: bool,
    enabled: bool,
    dtype: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RhNumerics {
    pub(crate) tf32: bool,
    pub(crate) benchmark: bool,
    pub(crate) deterministic: bool,
}

#[repr(C)]
pub(crate) struct RhSgd {
    pub(crate) lr: f64,
    pub(crate) momentum: f64,
    pub(crate) weight_decay: f64,
    pub(crate) nesterov: bool,
}

#[repr(C)]
pub(crate) struct RhAdamW {
    pub(crate) lr: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) eps: f64,
    pub(crate) weight_decay: f64,
}

#[repr(C)]
#[derive(Default)]
pub(crate) struct RhMemory {
    pub(crate) allocated: i64,
    pub(crate) peak_allocated: i64,
    pub(crate) reserved: i64,
    pub(crate) peak_reserved: i64,
    pub(crate) retries: i64,
    pub(crate) failures: i64,
}

#[repr(C)]
pub(crate) struct RhPipe {
    _opaque: [u8; 0],
}

#[repr(C)]
pub(crate) struct RhSharding {
    _opaque: [u8; 0],
}

/// A string that C++ owns.
#[repr(C)]
pub(crate) struct RhWords {
    _opaque: [u8; 0],
}

#[repr(C)]
pub(crate) struct RhSegment {
    pub(crate) context: *mut c_void,
    pub(crate) run: extern "C" fn(
        context: *mut c_void,
        inputs: List,
        count: usize,
        output: *mut *mut C_tensor,
        words: *mut RhWords,
    ) -> bool,
    pub(crate) free: extern "C" fn(context: *mut c_void),
}

/// An array of pointers to tensors.
pub(crate) type List = *const *mut C_tensor;

unsafe extern "C" {
    pub(crate) fn rh_autocast_enter(
        cuda: bool,
        enabled: bool,
        dtype: c_int,
        before: *mut RhAutocast,
    ) -> c_int;
    pub(crate) fn rh_autocast_leave(before: *const RhAutocast) -> c_int;
    pub(crate) fn rh_numerics_set(numerics: *const RhNumerics) -> c_int;
    pub(crate) fn rh_numerics_get(out: *mut RhNumerics) -> c_int;

    pub(crate) fn rh_recompute(
        inputs: List,
        count: usize,
        segment: *const RhSegment,
        out: *mut *mut C_tensor,
    ) -> c_int;
    pub(crate) fn rh_sharding_new(
        group: *const RhGroup,
        keeps_whole: bool,
        sums: bool,
        out: *mut *mut RhSharding,
    ) -> c_int;
    pub(crate) fn rh_sharding_share(
        sharding: *const RhSharding,
        out: *mut *mut RhSharding,
    ) -> c_int;
    pub(crate) fn rh_sharding_free(sharding: *mut RhSharding);
    pub(crate) fn rh_sharding_add(
        sharding: *mut RhSharding,
        like: List,
        count: usize,
        starts: *const i64,
        shard: *const C_tensor,
        whole: *const C_tensor,
    ) -> c_int;
    pub(crate) fn rh_sharding_begin_pass(sharding: *mut RhSharding) -> c_int;
    pub(crate) fn rh_sharding_end_pass(sharding: *mut RhSharding) -> c_int;
    pub(crate) fn rh_sharding_abandon(sharding: *mut RhSharding) -> c_int;
    pub(crate) fn rh_sharding_gradients(
        sharding: *mut RhSharding,
        index: usize,
        out: *mut *mut C_tensor,
    ) -> c_int;
    pub(crate) fn rh_sharding_failure(
        sharding: *const RhSharding,
        context: *mut c_void,
        consume: super::Consume,
    );
    pub(crate) fn rh_sharded(
        sharding: *const RhSharding,
        index: usize,
        recomputes: bool,
        x: *const C_tensor,
        segment: *const RhSegment,
        out: *mut *mut C_tensor,
    ) -> c_int;
    pub(crate) fn rh_experts(
        sharding: *const RhSharding,
        index: usize,
        count: i64,
        x: *const C_tensor,
        segment: *const RhSegment,
        out: *mut *mut C_tensor,
    ) -> c_int;
    pub(crate) fn rh_pipe_new(
        down: *const RhGroup,
        up: *const RhGroup,
        out: *mut *mut RhPipe,
    ) -> c_int;
    pub(crate) fn rh_pipe_free(pipe: *mut RhPipe);
    pub(crate) fn rh_pipe_receive(
        pipe: *const RhPipe,
        shape: *const i64,
        dims: usize,
        beside: *const C_tensor,
        out: *mut *mut C_tensor,
    ) -> c_int;
    pub(crate) fn rh_pipe_send(
        pipe: *const RhPipe,
        x: *const C_tensor,
        out: *mut *mut C_tensor,
    ) -> c_int;
    pub(crate) fn rh_pipe_flush(pipe: *const RhPipe) -> c_int;
    pub(crate) fn rh_pipe_failure(
        pipe: *const RhPipe,
        context: *mut c_void,
        consume: super::Consume,
    );
    pub(crate) fn rh_segment_failed(words: *mut RhWords, text: *const c_char, length: usize);

    pub(crate) fn rh_contiguous(
        tensor: *const C_tensor,
        format: c_int,
        out: *mut *mut C_tensor,
    ) -> c_int;
    pub(crate) fn rh_is_contiguous(tensor: *const C_tensor, format: c_int, out: *mut bool)
    -> c_int;
    pub(crate) fn rh_empty_like(
        tensor: *const C_tensor,
        format: c_int,
        out: *mut *mut C_tensor,
    ) -> c_int;
    pub(crate) fn rh_convert(tensors: List, count: usize, format: c_int) -> c_int;

    pub(crate) fn rh_foreach_norm(
        tensors: List,
        count: usize,
        order: f64,
        out: *mut *mut C_tensor,
    ) -> c_int;
    pub(crate) fn rh_total_norm(tensors: List, count: usize, out: *mut *mut C_tensor) -> c_int;
    pub(crate) fn rh_foreach_sqrt(tensors: List, count: usize) -> c_int;
    pub(crate) fn rh_foreach_scalar(
        operation: c_int,
        tensors: List,
        count: usize,
        value: f64,
    ) -> c_int;
    pub(crate) fn rh_foreach_div_tensor(
        tensors: List,
        count: usize,
        value: *const C_tensor,
    ) -> c_int;
    pub(crate) fn rh_foreach_list(
        operation: c_int,
        tensors: List,
        others: List,
        count: usize,
        factor: f64,
    ) -> c_int;

    pub(crate) fn rh_fused_sgd(
        parameters: List,
        gradients: List,
        momenta: List,
        count: usize,
        sgd: *const RhSgd,
        scale: *const C_tensor,
        found_inf: *const C_tensor,
    ) -> c_int;
    pub(crate) fn rh_fused_adamw(
        parameters: List,
        gradients: List,
        means: List,
        squares: List,
        count: usize,
        step: *mut C_tensor,
        adamw: *const RhAdamW,
        scale: *const C_tensor,
        found_inf: *const C_tensor,
    ) -> c_int;

    pub(crate) fn rh_host_syncs() -> u64;
    pub(crate) fn rh_stream_new(device: c_int, out: *mut i64) -> c_int;
    pub(crate) fn rh_stream_exchange(device: c_int, id: i64, before: *mut i64) -> c_int;
    pub(crate) fn rh_record_stream(tensor: *const C_tensor, device: c_int, id: i64) -> c_int;
    pub(crate) fn rh_event_record(device: c_int, timed: bool, out: *mut *mut RhEvent) -> c_int;
    pub(crate) fn rh_event_elapsed(
        from: *const RhEvent,
        to: *const RhEvent,
        nanoseconds: *mut i64,
    ) -> c_int;
    pub(crate) fn rh_event_query(event: *const RhEvent, out: *mut bool) -> c_int;
    pub(crate) fn rh_count_host_sync();
    pub(crate) fn rh_event_block(event: *const RhEvent) -> c_int;
    pub(crate) fn rh_event_free(event: *mut RhEvent) -> c_int;
    pub(crate) fn rh_upload(
        tensor: *const C_tensor,
        device: c_int,
        out: *mut *mut C_tensor,
    ) -> c_int;
    pub(crate) fn rh_host_bytes(length: i64, pinned: c_int, out: *mut *mut C_tensor) -> c_int;
    pub(crate) fn rh_copy_later(to: *mut C_tensor, from: *const C_tensor) -> c_int;
    #[cfg(feature = "nccl")]
    pub(crate) fn rh_sync_debug(mode: c_int) -> c_int;

    pub(crate) fn rh_digest_of(tensors: List, count: usize, out: *mut *mut C_tensor) -> c_int;
    pub(crate) fn rh_agree(
        group: *const RhGroup,
        values: *const C_tensor,
        finite: *const C_tensor,
        equal: *const C_tensor,
        aside: *const C_tensor,
        factor: f64,
        world_size: f64,
        tolerance: f64,
        sums: *mut *mut C_tensor,
        found_inf: *mut *mut C_tensor,
        host: *mut *mut C_tensor,
        event: *mut *mut RhEvent,
    ) -> c_int;

    pub(crate) fn rh_device_memory(device: c_int, out: *mut RhMemory) -> c_int;
    pub(crate) fn rh_reset_peak_memory(device: c_int) -> c_int;
    #[cfg(feature = "nccl")]
    pub(crate) fn rh_nccl_versions(loaded: *mut c_int, compiled: *mut c_int) -> c_int;
    pub(crate) fn rh_trace_start(cuda: bool) -> c_int;
    pub(crate) fn rh_trace_num_operations() -> u64;
    pub(crate) fn rh_trace_stop(out: *mut *mut RhRecording) -> c_int;
    pub(crate) fn rh_recording_write(recording: *mut RhRecording, path: *const c_char) -> c_int;
    pub(crate) fn rh_recording_free(recording: *mut RhRecording) -> c_int;

    pub(crate) fn rh_group_all_gather(
        group: *const RhGroup,
        output: *mut C_tensor,
        input: *const C_tensor,
    ) -> c_int;
    pub(crate) fn rh_group_reduce_scatter(
        group: *const RhGroup,
        output: *mut C_tensor,
        input: *const C_tensor,
    ) -> c_int;
    pub(crate) fn rh_group_all_to_all(
        group: *const RhGroup,
        output: *mut C_tensor,
        input: *const C_tensor,
        come: *const i64,
        go: *const i64,
    ) -> c_int;
    pub(crate) fn rh_group_send(
        group: *const RhGroup,
        tensor: *const C_tensor,
        peer: c_int,
    ) -> c_int;
    pub(crate) fn rh_group_receive(
        group: *const RhGroup,
        tensor: *mut C_tensor,
        peer: c_int,
    ) -> c_int;
}
