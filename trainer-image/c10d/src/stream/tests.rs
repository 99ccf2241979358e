use tch::Kind;

use super::*;

#[test]
fn on_a_cpu_streams_and_events_do_nothing() {
    let stream = Stream::new(Device::Cpu).unwrap();
    let guard = stream.enter().unwrap();
    let tensor = Tensor::ones([2], (Kind::Float, Device::Cpu));
    stream.uses(&tensor).unwrap();
    let event = Event::record(Device::Cpu).unwrap();
    assert!(event.has_passed().unwrap());
    event.block().unwrap();
    event.wait().unwrap();
    drop(guard);
    stream.wait().unwrap();
    assert!(Stream::new(Device::Mps).is_err());
}
