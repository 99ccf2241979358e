//! Errors that the installed libtorch throws.

use tch::{Device, Kind, Tensor};

use crate::{Error, ErrorKind};

#[test]
fn impossible_allocation_is_out_of_memory() {
    // This tensor needs 4 EiB.
    let error = Tensor::f_zeros([1 << 60], (Kind::Float, Device::Cpu)).unwrap_err();
    let error = Error::from(error);
    assert_eq!(error.kind, ErrorKind::OutOfMemory, "{error}");
}

#[test]
fn bridge_call_reports_out_of_memory() {
    // The gradient of the expanded tensor has all its elements: 4 PiB.
    let leaf = Tensor::ones([1], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let huge = leaf.expand([1 << 50], false);
    let error = crate::backward(&huge.as_strided([1], [1], 0)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutOfMemory, "{error}");
}

#[test]
fn shape_mismatch_is_no_device_or_peer_error() {
    let one = Tensor::ones([2, 3], (Kind::Float, Device::Cpu));
    let error = Error::from(one.f_matmul(&one).unwrap_err());
    assert_eq!(error.kind, ErrorKind::Other, "{error}");
}

#[test]
fn missing_gpu_is_an_error() {
    if !tch::Cuda::is_available() {
        assert!(crate::set_device(0).is_err());
    }
}
