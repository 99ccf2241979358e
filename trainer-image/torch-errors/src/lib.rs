//! Classifies PyTorch's error messages. Gloo, cuDNN, cuBLAS and the CPU allocator throw plain
//! runtime errors, so only the text shows their kind. The same holds for errors that tch returns,
//! and for a `RuntimeError` in Python.

/// Kind of an error: what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// A peer or the store is gone; a new group without it can continue.
    ConnectionLost,
    /// A peer or the store did not answer in time.
    Timeout,
    /// The host or the device has too little memory for the call. A smaller batch may fit.
    OutOfMemory,
    /// The device or its driver has failed. The process cannot use the device any more.
    Device,
    /// The call itself is wrong, for example its arguments.
    Other,
}

const OUT_OF_MEMORY: [&str; 6] = [
    "out of memory",
    "can't allocate memory",
    "Cannot allocate memory",
    "not enough memory",
    "STATUS_ALLOC_FAILED",
    "bad_alloc",
];
const DEVICE: [&str; 14] = [
    "CUDA error",
    "CUDA driver",
    "CUDA unknown error",
    "CUDA-capable device",
    "Cuda failure",
    "cuda error",
    "ncclUnhandledCudaError",
    "NVIDIA driver",
    "ECC error",
    "STATUS_EXECUTION_FAILED",
    "STATUS_INTERNAL_ERROR",
    "STATUS_MAPPING_ERROR",
    "STATUS_NOT_INITIALIZED",
    "NVML_ERROR",
];
/// Errors of the device that the program has caused. They would occur on another device too.
const PROGRAM: [&str; 13] = [
    "device-side assert",
    "invalid argument",
    "invalid configuration argument",
    "invalid device ordinal",
    "invalid resource handle",
    "no kernel image",
    "too many resources requested",
    "operation not permitted when stream is capturing",
    "_INVALID_VALUE",
    "_NOT_SUPPORTED",
    "_BAD_PARAM",
    "_ARCH_MISMATCH",
    "ncclInvalidUsage",
];
const TIMEOUT: [&str; 3] = ["imed out", "timeout", "Timeout"];
const CONNECTION_LOST: [&str; 13] = [
    "onnection reset",
    "onnection closed",
    "onnection refused",
    "roken pipe",
    "onnect",
    "Socket",
    "socket",
    "recvBytes",
    "sendBytes",
    "ncclRemoteError",
    "ncclSystemError",
    "communicator was aborted",
    "NET/",
];

impl ErrorKind {
    /// Returns the kind of an error by its text. Memory comes before the device, and the device
    /// before peers, because a message may name an effect beside its cause.
    #[must_use]
    pub fn of_message(message: &str) -> Self {
        let contains = |signs: &[&str]| signs.iter().any(|sign| message.contains(sign));
        if contains(&OUT_OF_MEMORY) {
            Self::OutOfMemory
        } else if contains(&PROGRAM) {
            Self::Other
        } else if contains(&DEVICE) {
            Self::Device
        } else if contains(&TIMEOUT) {
            Self::Timeout
        } else if contains(&CONNECTION_LOST) {
            Self::ConnectionLost
        } else {
            Self::Other
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ErrorKind::{ConnectionLost, Device, Other, OutOfMemory, Timeout};
    use super::*;

    #[test]
    fn real_libtorch_messages_are_classified() {
        for (message, kind) in [
            (
                "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 3.12 GiB is free.",
                OutOfMemory,
            ),
            (
                "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
                OutOfMemory,
            ),
            (
                "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4611686018427387904 bytes. Error code 12 (Cannot allocate memory)",
                OutOfMemory,
            ),
            (
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
                OutOfMemory,
            ),
            ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", OutOfMemory),
            ("std::bad_alloc", OutOfMemory),
            ("NCCL WARN Cuda failure 2 'out of memory'", OutOfMemory),
            (
                "NCCL error in: ProcessGroupNCCL.cpp:94, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
                OutOfMemory,
            ),
            ("CUDA error: uncorrectable ECC error encountered", Device),
            (
                "CUDA error: an illegal memory access was encountered",
                Device,
            ),
            ("CUDA error: unspecified launch failure", Device),
            (
                "CUDA error: unknown error\nCUDA kernel errors might be asynchronously reported",
                Device,
            ),
            (
                "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, k)`",
                Device,
            ),
            ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", Device),
            (
                "The NVIDIA driver on your system is too old (found version 12020).",
                Device,
            ),
            (
                "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 214 'uncorrectable ECC error encountered'",
                Device,
            ),
            ("CUDA error: device-side assert triggered", Other),
            (
                "CUDA error: no kernel image is available for execution on the device",
                Other,
            ),
            ("CUDA error: invalid device ordinal", Other),
            ("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED", Other),
            (
                "NCCL WARN Call to connect returned Connection refused, retrying",
                ConnectionLost,
            ),
            (
                "NCCL WARN NET/IB : Got completion from peer 10.0.0.2 with status=12 opcode=0 len=0 vendor err 129",
                ConnectionLost,
            ),
            (
                "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
                ConnectionLost,
            ),
            (
                "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:46733",
                ConnectionLost,
            ),
            (
                "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 10000ms for recv operation to complete",
                Timeout,
            ),
            (
                "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
                Other,
            ),
            (
                "index 7 is out of bounds for dimension 0 with size 3",
                Other,
            ),
        ] {
            assert_eq!(ErrorKind::of_message(message), kind, "{message}");
        }
    }
}
