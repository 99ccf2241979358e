use tch::{Kind, Tensor};

use super::*;

fn product(size: i64) {
    let ones = Tensor::ones([size, size], (Kind::Float, Device::Cpu));
    let _ = ones.matmul(&ones);
}

// One test, because a process has one trace at a time.
#[test]
fn recording_is_written_while_the_next_one_runs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.json");
    let trace = Trace::start(Device::Cpu).unwrap();
    assert_eq!(trace.num_operations(), 0);
    product(8);
    let of_one = trace.num_operations();
    assert!(of_one > 0);
    let recording = trace.stop().unwrap();
    product(8);
    let next = Trace::start(Device::Cpu).unwrap();
    product(8);
    product(8);
    assert_eq!(next.num_operations(), 2 * of_one);
    let first = path.clone();
    std::thread::spawn(move || recording.write(&first).unwrap())
        .join()
        .unwrap();
    let num_products = || {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("\"traceEvents\""));
        text.matches("\"aten::matmul\"").count()
    };
    assert_eq!(num_products(), 1);
    next.stop().unwrap().write(&path).unwrap();
    assert_eq!(num_products(), 2);

    drop(Trace::start(Device::Cpu).unwrap());
    drop(Trace::start(Device::Cpu).unwrap().stop().unwrap());
    let nowhere = directory.path().join("missing/trace.json");
    let recording = Trace::start(Device::Cpu).unwrap().stop().unwrap();
    assert!(recording.write(&nowhere).is_err());
}
