use tch::{Kind, Tensor};

use super::*;

#[test]
fn a_trace_names_the_operations() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.json");
    let trace = Trace::start(Device::Cpu).unwrap();
    let ones = Tensor::ones([8, 8], (Kind::Float, Device::Cpu));
    let _ = ones.matmul(&ones);
    trace.stop(&path).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("\"traceEvents\"") && text.contains("aten::matmul"));
    // Another one can follow, and one that is dropped leaves nothing behind.
    drop(Trace::start(Device::Cpu).unwrap());
    let nowhere = directory.path().join("missing/trace.json");
    assert!(Trace::start(Device::Cpu).unwrap().stop(&nowhere).is_err());
}

#[test]
fn a_cpu_has_no_device_memory() {
    assert_eq!(device_memory(Device::Cpu).unwrap(), None);
    reset_peak_memory(Device::Cpu).unwrap();
}
