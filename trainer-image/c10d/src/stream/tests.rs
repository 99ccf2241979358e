use tch::Kind;

use super::*;

#[test]
fn on_a_cpu_streams_and_events_do_nothing() {
    let stream = Stream::new(Device::Cpu).unwrap();
    let guard = stream.enter().unwrap();
    let tensor = Tensor::ones([2], (Kind::Float, Device::Cpu));
    stream.uses(&tensor).unwrap();
    guard.outer().uses(&tensor).unwrap();
    let event = Event::record(Device::Cpu).unwrap();
    assert!(event.has_passed().unwrap());
    event.block().unwrap();
    event.wait().unwrap();
    drop(guard);
    stream.wait().unwrap();
    assert!(Stream::new(Device::Mps).is_err());
}

#[test]
fn events_of_a_cpu_are_points_in_time() {
    let before = std::time::Instant::now();
    let first = Event::record_timed(Device::Cpu).unwrap();
    let inner = std::time::Instant::now();
    while inner.elapsed() < Duration::from_millis(2) {}
    let second = Event::record_timed(Device::Cpu).unwrap();
    let took = second.since(&first).unwrap();
    assert!(took >= Duration::from_millis(2) && took <= before.elapsed());
    // A clock that was asked the wrong way round tells nothing.
    assert_eq!(first.since(&second).unwrap(), Duration::ZERO);
}

#[test]
fn a_tensor_that_goes_to_the_cpu_stays_where_it_is() {
    let tensor = Tensor::from_slice(&[1.0_f64, 2.0]);
    let same = upload(&tensor, Device::Cpu).unwrap();
    assert_eq!(same.data_ptr(), tensor.data_ptr());
}
