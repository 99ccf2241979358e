//! The inputs of derived metrics: the work per sample, the peak of the hardware, and the use of
//! memory and data.

use super::Reporter;

/// The computation per sample, and the peak rate of one rank's hardware.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Number of tokens of a sample; `None` for samples without tokens.
    pub tokens_per_sample: Option<u64>,
    /// Floating-point operations of a training step for one sample, forward and backward.
    pub flops_per_sample: Option<f64>,
    /// Floating-point operations per second that one rank's device can do at most, in the precision
    /// of the training.
    pub peak_flops: Option<f64>,
}

impl Work {
    /// Model FLOPs utilization: the operations per second that the model needs at this throughput
    /// of all ranks, as a share of what all devices can do (Chowdhery et al. 2022,
    /// <https://arxiv.org/abs/2204.02311>, appendix B). Operations that are done twice, as with
    /// activation checkpointing, count once.
    #[must_use]
    pub fn utilization(&self, samples_per_second: f64, world_size: u32) -> Option<f64> {
        let needed = samples_per_second * self.flops_per_sample?;
        let possible = self.peak_flops? * f64::from(world_size);
        (possible > 0.0).then_some(needed / possible)
    }
}

/// GPU memory of the process' allocator, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    pub allocated: u64,
    /// Peak of the memory in tensors.
    pub peak_allocated: u64,
    /// Memory that the allocator has reserved for tensors.
    pub reserved: u64,
    /// Peak of the reserved memory.
    pub peak_reserved: u64,
    /// How often the allocator had to free reserved memory before an allocation succeeded. Each
    /// time stalls the device.
    pub num_retries: u64,
}

/// Reads the memory of the device whenever metrics are written.
pub trait MemoryProbe: std::fmt::Debug + Send {
    /// Returns the memory; `None` for a device that shares the memory of the process, or that has
    /// not been used yet.
    fn device_memory(&self) -> Option<DeviceMemory>;
}

impl Reporter {
    /// Sets the work and the device. Call it before the first step.
    pub fn describe(&mut self, work: Work, probe: Option<Box<dyn MemoryProbe>>) {
        self.work = work;
        self.probe = probe;
    }

    /// Sets the totals that this rank has read for training: skipped corrupt samples, and samples
    /// by data set of a mix.
    pub fn data_read(&mut self, num_skipped: u64, num_by_part: &[(String, u64)]) {
        self.metrics.data.set(num_skipped, num_by_part);
    }

    /// Throughput for people, in tokens for samples that have them.
    pub(super) fn throughput(&self, samples_per_second: f64) -> String {
        match self.work.tokens_per_sample {
            Some(tokens) => format!("{:.0} tokens/s", samples_per_second * tokens as f64),
            None => format!("{samples_per_second:.0} samples/s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilization_is_needed_over_possible_flops() {
        let work = Work {
            tokens_per_sample: None,
            flops_per_sample: Some(2e12),
            peak_flops: Some(1e15),
        };
        let utilization = work.utilization(1_000.0, 4).unwrap();
        assert!((utilization - 0.5).abs() < 1e-12, "{utilization}");
    }

    #[test]
    fn utilization_is_unknown_without_a_peak_or_operations() {
        let work = Work {
            peak_flops: Some(1e15),
            ..Work::default()
        };
        assert_eq!(work.utilization(1_000.0, 1), None);
        assert_eq!(Work::default().utilization(1_000.0, 1), None);
        let no_ranks = Work {
            flops_per_sample: Some(1.0),
            ..work
        };
        assert_eq!(no_ranks.utilization(1_000.0, 0), None);
    }
}
