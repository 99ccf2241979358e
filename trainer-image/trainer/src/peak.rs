//! The peak performance of well-known GPUs, for the metric model FLOPs utilization.
//!
//! Dense operations per second, without sparsity, from NVIDIA's data sheets (A100: "NVIDIA A100
//! Tensor Core GPU", 2021; H100: "NVIDIA H100 Tensor Core GPU", 2023; H200: "NVIDIA H200 Tensor
//! Core GPU", 2024; L40S: "NVIDIA L40S", 2023; L4: "NVIDIA L4 Tensor Core GPU", 2023; A10: "NVIDIA
//! A10 Tensor Core GPU", 2021). If a data sheet gives only the figure with sparsity, the table has
//! half of it.

use std::path::Path;

use roundhouse_contract::TrainerConfig;
use roundhouse_contract::trainer::Precision;
use tch::Device;

/// Directory in which the driver lists the GPUs with their model names.
const DRIVER: &str = "/proc/driver/nvidia/gpus";

/// Peak operations per second of one GPU model.
struct Peak {
    /// Prefix of the model name that the driver reports.
    name: &'static str,
    fp32: f64,
    tf32: f64,
    bf16: f64,
}

/// Peaks by prefix. A longer prefix must come before a shorter prefix of the same name.
const PEAKS: [Peak; 9] = [
    peak("NVIDIA H200 NVL", 60e12, 417.5e12, 835.5e12),
    peak("NVIDIA H200", 67e12, 494.5e12, 989.5e12),
    peak("NVIDIA H100 PCIe", 51e12, 378e12, 756e12),
    peak("NVIDIA H100 NVL", 60e12, 417.5e12, 835.5e12),
    peak("NVIDIA H100", 67e12, 494.5e12, 989.5e12),
    peak("NVIDIA A100", 19.5e12, 156e12, 312e12),
    peak("NVIDIA L40S", 91.6e12, 183e12, 362e12),
    peak("NVIDIA L4", 30.3e12, 60e12, 121e12),
    peak("NVIDIA A10", 31.2e12, 62.5e12, 125e12),
];

const fn peak(name: &'static str, fp32: f64, tf32: f64, bf16: f64) -> Peak {
    Peak {
        name,
        fp32,
        tf32,
        bf16,
    }
}

/// Peak operations per second of this process' device: the configured value, or else the value of
/// its GPU model. `None`: unknown.
#[must_use]
pub fn peak_flops(config: &TrainerConfig, device: Device) -> Option<f64> {
    let of_gpu = || {
        let names = names(Path::new(DRIVER));
        of_names(&names, config.precision)
    };
    config
        .peak_flops
        .or_else(|| device.is_cuda().then(of_gpu).flatten())
}

/// Model names of all GPUs that the driver lists.
fn names(driver: &Path) -> Vec<String> {
    let Ok(gpus) = std::fs::read_dir(driver) else {
        return Vec::new();
    };
    let information = gpus
        .flatten()
        .filter_map(|gpu| std::fs::read_to_string(gpu.path().join("information")).ok());
    let name = |text: String| {
        let model = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
        Some(model.trim().to_owned())
    };
    information.filter_map(name).collect()
}

/// The peak, if all GPUs have the same peak. The driver may list more GPUs than this container has,
/// so a machine with different GPUs gives no answer.
fn of_names(names: &[String], precision: Precision) -> Option<f64> {
    let (first, others) = names.split_first()?;
    let peak = of_name(first, precision);
    let is_same = |name: &String| of_name(name, precision) == peak;
    peak.filter(|_| others.iter().all(is_same))
}

fn of_name(name: &str, precision: Precision) -> Option<f64> {
    let is_it = |peak: &&Peak| {
        let rest = name.strip_prefix(peak.name);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
    };
    let Peak {
        name: _,
        fp32,
        tf32,
        bf16,
    } = PEAKS.iter().find(is_it)?;
    Some(match precision {
        Precision::Fp32 => *fp32,
        Precision::Tf32 => *tf32,
        // Tensor cores multiply both kinds of 16 bits at the same rate.
        Precision::Bf16 | Precision::Fp16 => *bf16,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(models: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (number, model) in models.iter().enumerate() {
            let gpu = root.path().join(format!("0000:0{number}:00.0"));
            std::fs::create_dir(&gpu).unwrap();
            let text = format!("Model: \t\t {model}\nIRQ:   \t\t 100\n");
            std::fs::write(gpu.join("information"), text).unwrap();
        }
        root
    }

    #[test]
    fn peak_follows_model_and_precision() {
        for (models, precision, expected) in [
            (&["NVIDIA H200"][..], Precision::Bf16, Some(989.5e12)),
            (&["NVIDIA H200 NVL"], Precision::Bf16, Some(835.5e12)),
            (&["NVIDIA H100 80GB HBM3"], Precision::Tf32, Some(494.5e12)),
            (&["NVIDIA H100 PCIe"], Precision::Bf16, Some(756e12)),
            (&["NVIDIA A100-SXM4-80GB"], Precision::Fp32, Some(19.5e12)),
            (&["NVIDIA L40S"], Precision::Bf16, Some(362e12)),
            // These are other GPUs than the L4 and the A10.
            (&["NVIDIA L40"], Precision::Bf16, None),
            (&["NVIDIA A10G"], Precision::Bf16, None),
            (
                &["NVIDIA H200", "NVIDIA H200"],
                Precision::Bf16,
                Some(989.5e12),
            ),
            (&["NVIDIA H200", "NVIDIA L4"], Precision::Bf16, None),
            (&[], Precision::Bf16, None),
        ] {
            let root = driver(models);
            let found = of_names(&names(root.path()), precision);
            assert_eq!(found, expected, "{models:?}");
        }
        assert_eq!(names(Path::new("/nonexistent")), Vec::<String>::new());
    }
}
