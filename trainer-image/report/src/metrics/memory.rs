//! Metrics of the memory of the process and of its GPU.

use prometheus::{IntCounter, IntGauge, Registry};

use super::{int_counter, int_gauge, raise};
use crate::work::DeviceMemory;

#[derive(Debug)]
pub struct MemoryMetrics {
    resident: IntGauge,
    peak_resident: IntGauge,
    device: Option<DeviceGauges>,
    registry: Registry,
}

#[derive(Debug)]
struct DeviceGauges {
    allocated: IntGauge,
    peak_allocated: IntGauge,
    reserved: IntGauge,
    peak_reserved: IntGauge,
    retries: IntCounter,
}

impl MemoryMetrics {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            resident: int_gauge(
                registry,
                "resident_memory_bytes",
                "Memory of the process that is in RAM",
            )?,
            peak_resident: int_gauge(
                registry,
                "resident_memory_peak_bytes",
                "Most memory of the process that was in RAM",
            )?,
            device: None,
            registry: registry.clone(),
        })
    }

    /// Reads the memory of the process. `device` is the memory of its GPU, if it has one; its
    /// metrics are absent until then.
    pub(crate) fn read(&mut self, device: Option<DeviceMemory>) {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        for (gauge, key) in [(&self.resident, "VmRSS:"), (&self.peak_resident, "VmHWM:")] {
            if let Some(bytes) = field(&status, key) {
                gauge.set(bytes.cast_signed());
            }
        }
        let Some(memory) = device else { return };
        if self.device.is_none() {
            self.device = DeviceGauges::new(&self.registry).ok();
        }
        if let Some(gauges) = &self.device {
            gauges.set(&memory);
        }
    }
}

impl DeviceGauges {
    fn new(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |name, help| int_gauge(registry, name, help);
        Ok(Self {
            allocated: gauge(
                "device_memory_allocated_bytes",
                "Memory of the GPU that is in tensors",
            )?,
            peak_allocated: gauge(
                "device_memory_allocated_peak_bytes",
                "Most memory of the GPU that was in tensors",
            )?,
            reserved: gauge(
                "device_memory_reserved_bytes",
                "Memory that libtorch's allocator has taken from the GPU; NCCL, cuDNN and the driver take more",
            )?,
            peak_reserved: gauge(
                "device_memory_reserved_peak_bytes",
                "Most memory that libtorch's allocator had taken from the GPU",
            )?,
            retries: int_counter(
                registry,
                "device_memory_retries_total",
                "Times that libtorch's allocator had to give memory back before the GPU had some left",
            )?,
        })
    }

    fn set(&self, memory: &DeviceMemory) {
        let DeviceMemory {
            allocated,
            peak_allocated,
            reserved,
            peak_reserved,
            num_retries,
        } = *memory;
        for (gauge, value) in [
            (&self.allocated, allocated),
            (&self.peak_allocated, peak_allocated),
            (&self.reserved, reserved),
            (&self.peak_reserved, peak_reserved),
        ] {
            gauge.set(value.cast_signed());
        }
        raise(&self.retries, num_retries);
    }
}

/// Reads a field of `/proc/PID/status` in bytes. The file has KiB.
fn field(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t     4 kB\n";
        assert_eq!(field(status, "VmRSS:"), Some(4_096));
        assert_eq!(field(status, "VmHWM:"), Some(2 << 20));
        assert_eq!(field(status, "VmSwap:"), None);
    }

    #[test]
    fn metrics_of_the_device_are_absent_on_a_cpu() {
        let registry = Registry::new();
        let mut metrics = MemoryMetrics::new(&registry).unwrap();
        metrics.read(None);
        assert!(metrics.resident.get() > 0);
        assert!(metrics.peak_resident.get() >= metrics.resident.get());
        assert_eq!(registry.gather().len(), 2);
        metrics.read(Some(DeviceMemory {
            allocated: 7,
            ..DeviceMemory::default()
        }));
        assert_eq!(registry.gather().len(), 7);
        assert_eq!(metrics.device.unwrap().allocated.get(), 7);
    }
}
