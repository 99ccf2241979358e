use super::*;

#[test]
fn cpu_has_no_device_memory() {
    assert_eq!(device_memory(Device::Cpu).unwrap(), None);
    reset_peak_memory(Device::Cpu).unwrap();
}
