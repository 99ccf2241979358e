use super::*;

#[test]
fn cpu_streams_and_events_have_no_effect() {
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
fn cpu_events_are_points_in_time() {
    let before = std::time::Instant::now();
    let first = Event::record_timed(Device::Cpu).unwrap();
    let inner = std::time::Instant::now();
    while inner.elapsed() < Duration::from_millis(2) {}
    let second = Event::record_timed(Device::Cpu).unwrap();
    let took = second.since(&first).unwrap();
    assert!(took >= Duration::from_millis(2) && took <= before.elapsed());
    // The time from a later to an earlier event is 0.
    assert_eq!(first.since(&second).unwrap(), Duration::ZERO);
}

#[test]
fn upload_to_a_cpu_returns_the_tensor_itself() {
    let tensor = Tensor::from_slice(&[1.0_f64, 2.0]);
    let same = upload(&tensor, Device::Cpu).unwrap();
    assert_eq!(same.data_ptr(), tensor.data_ptr());
}

#[test]
fn bytes_of_any_alignment_become_a_tensor() {
    let numbers = [1_i32, -2, 3, 4, 5, 6];
    let mut bytes = vec![0_u8];
    bytes.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
    let mut aligned = bytes.split_off(1);
    bytes.extend_from_slice(&aligned);
    let of = |bytes: &[u8]| upload_bytes(bytes, &[2, 3], Kind::Int, Device::Cpu).unwrap();
    let made = [of(&aligned), of(&bytes[1..])];
    aligned.fill(0);
    bytes.fill(0);
    for tensor in made {
        assert_eq!(tensor.size(), [2, 3]);
        assert_eq!(Vec::<i32>::try_from(tensor.view([-1])).unwrap(), numbers);
    }
    let pixels = upload_bytes(&[7, 8], &[2, 1, 1], Kind::Uint8, Device::Cpu).unwrap();
    assert_eq!(pixels.int64_value(&[1, 0, 0]), 8);
    let nothing = upload_bytes(&[], &[0, 3], Kind::Float, Device::Cpu).unwrap();
    assert_eq!(nothing.size(), [0, 3]);
}

#[test]
fn bytes_of_another_size_are_an_error() {
    for sizes in [&[2_i64, 2][..], &[], &[-1, -3]] {
        assert!(upload_bytes(&[0; 12], sizes, Kind::Float, Device::Cpu).is_err());
    }
}

#[test]
fn waiting_thread_does_not_spin() {
    let begun = std::time::Instant::now();
    let mut num_looks = 0_u32;
    let is_so = || {
        num_looks += 1;
        Ok(begun.elapsed() >= Duration::from_millis(50))
    };
    wait_until(is_so).unwrap();
    // A spinning thread would poll a hundred thousand times.
    assert!(num_looks <= 1_001, "{num_looks}");
    let fails = || Err(Error::refused("the device has failed"));
    assert!(wait_until(fails).is_err());
}
