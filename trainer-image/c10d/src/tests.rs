//! Errors that libtorch really throws here.

use tch::{Device, Kind, Tensor};

use crate::{Error, ErrorKind};

#[test]
fn an_allocation_that_no_host_can_serve_is_out_of_memory() {
    // 4 EiB.
    let error = Tensor::f_zeros([1 << 60], (Kind::Float, Device::Cpu)).unwrap_err();
    let error = Error::from(error);
    assert_eq!(error.kind, ErrorKind::OutOfMemory, "{error}");
}

#[test]
fn a_bridge_call_that_needs_too_much_memory_is_out_of_memory() {
    // The gradient of the expanded tensor has all its elements: 4 PiB.
    let leaf = Tensor::ones([1], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let huge = leaf.expand([1 << 50], false);
    let error = crate::backward(&huge.as_strided([1], [1], 0)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutOfMemory, "{error}");
}

#[test]
fn shapes_that_do_not_fit_are_no_fault_of_device_or_peer() {
    let one = Tensor::ones([2, 3], (Kind::Float, Device::Cpu));
    let error = Error::from(one.f_matmul(&one).unwrap_err());
    assert_eq!(error.kind, ErrorKind::Other, "{error}");
}

#[test]
fn a_gpu_that_is_not_there_is_an_error() {
    if !tch::Cuda::is_available() {
        assert!(crate::set_device(0).is_err());
    }
}
