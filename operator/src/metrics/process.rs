//! Metrics of the operator's own process, under the names that all Prometheus clients use
//! (<https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics>). They are
//! read from /proc at each scrape.

use std::time::SystemTime;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge, IntGauge, Registry};

use super::register;

/// One field per metric.
#[derive(Clone, Debug)]
struct Process {
    cpu: Counter,
    resident: IntGauge,
    open_files: IntGauge,
}

/// Registers the metrics of this process.
///
/// # Errors
/// The registry has a metric of the same name.
pub(super) fn add(registry: &Registry) -> Result<(), prometheus::Error> {
    let start = Gauge::new(
        "process_start_time_seconds",
        "When the process started, in seconds since 1970.",
    )?;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    register(registry, start)?.set(since.unwrap_or_default().as_secs_f64());
    registry.register(Box::new(Process {
        cpu: Counter::new(
            "process_cpu_seconds_total",
            "CPU time of the process, in user and system mode.",
        )?,
        resident: IntGauge::new(
            "process_resident_memory_bytes",
            "Memory of the process that is in RAM.",
        )?,
        open_files: IntGauge::new("process_open_fds", "Open file descriptors of the process.")?,
    }))
}

impl Process {
    fn update(&self) {
        if let Some(seconds) = read("stat").and_then(|stat| cpu_seconds(&stat)) {
            self.cpu.inc_by((seconds - self.cpu.get()).max(0.0));
        }
        if let Some(bytes) = read("statm").and_then(|statm| resident_bytes(&statm)) {
            self.resident.set(bytes);
        }
        if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
            self.open_files
                .set(i64::try_from(files.count()).unwrap_or(i64::MAX));
        }
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        let Self {
            cpu,
            resident,
            open_files,
        } = self;
        [cpu.desc(), resident.desc(), open_files.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.update();
        let Self {
            cpu,
            resident,
            open_files,
        } = self;
        [cpu.collect(), resident.collect(), open_files.collect()].concat()
    }
}

fn read(file: &str) -> Option<String> {
    std::fs::read_to_string(format!("/proc/self/{file}")).ok()
}

/// CPU seconds in user and system mode, from `/proc/PID/stat` (proc(5): fields 14 and 15, in clock
/// ticks).
fn cpu_seconds(stat: &str) -> Option<f64> {
    // The name of the program is in parentheses and may contain any character, also parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let ticks = rest.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|field| field.parse().unwrap_or(0)).sum();
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Bytes in RAM, from `/proc/PID/statm` (proc(5): field 2, in pages).
fn resident_bytes(statm: &str) -> Option<i64> {
    let pages: usize = statm.split_whitespace().nth(1)?.parse().ok()?;
    i64::try_from(pages * rustix::param::page_size()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::testing::value;

    #[test]
    fn cpu_time_is_read_after_any_program_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 4 0 99 1 2";
        let seconds = 300.0 / rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(cpu_seconds(stat), Some(seconds));
        assert_eq!(cpu_seconds("7 a S"), None);
    }

    #[test]
    fn memory_and_open_files_of_this_process_are_exposed() {
        let registry = Registry::new();
        add(&registry).unwrap();
        assert!(value(&registry, "process_resident_memory_bytes") > Some(1e6));
        assert!(value(&registry, "process_open_fds") >= Some(3.0));
        assert!(value(&registry, "process_start_time_seconds") > Some(1e9));
        assert!(value(&registry, "process_cpu_seconds_total").is_some());
    }
}
