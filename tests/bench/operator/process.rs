//! Measures the memory and CPU time of a process.

use std::time::{Duration, Instant};

use anyhow::Context;

/// The peak of resident memory so far, in MiB.
pub(crate) fn peak_memory(process: u32) -> anyhow::Result<f64> {
    of_status(process, "VmHWM:")
}

/// Resets the peak of resident memory to the current value.
pub(crate) fn reset_peak(process: u32) -> anyhow::Result<()> {
    // See proc_pid_clear_refs(5).
    Ok(std::fs::write(format!("/proc/{process}/clear_refs"), "5")?)
}

/// The current resident memory, in MiB.
pub(crate) fn memory(process: u32) -> anyhow::Result<f64> {
    of_status(process, "VmRSS:")
}

fn of_status(process: u32, name: &str) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib.with_context(|| format!("no {name}"))?.parse::<f64>()? / 1024.0)
}

/// Seconds of CPU time so far.
pub(crate) fn cpu_time(process: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // After the name in parentheses, user and system time are the 12th and 13th field.
    let (_, rest) = stat.rsplit_once(')').context("no name")?;
    let ticks = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(str::parse::<f64>);
    let ticks: Vec<f64> = ticks.collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<f64>() / rustix::param::clock_ticks_per_second() as f64)
}

/// The CPU cores that a process uses on average during `time`.
pub(crate) async fn load(process: u32, time: Duration) -> anyhow::Result<f64> {
    let (before, started) = (cpu_time(process)?, Instant::now());
    tokio::time::sleep(time).await;
    Ok((cpu_time(process)? - before) / started.elapsed().as_secs_f64())
}
