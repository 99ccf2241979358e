//! What a process takes of the machine.

use std::time::{Duration, Instant};

use anyhow::Context;

/// Most resident memory so far, in MiB.
pub(crate) fn peak_memory(process: u32) -> anyhow::Result<f64> {
    of_status(process, "VmHWM:")
}

/// From now on the most is counted anew.
pub(crate) fn forget_peak(process: u32) -> anyhow::Result<()> {
    // See proc_pid_clear_refs(5).
    Ok(std::fs::write(format!("/proc/{process}/clear_refs"), "5")?)
}

/// Resident memory now, in MiB.
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
    // After the name, which is in parentheses: user and system time are the 12th and 13th.
    let (_, rest) = stat.rsplit_once(')').context("no name")?;
    let ticks = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(str::parse::<f64>);
    let ticks: Vec<f64> = ticks.collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<f64>() / rustix::param::clock_ticks_per_second() as f64)
}

/// Part of a core that it takes within that time.
pub(crate) async fn load(process: u32, time: Duration) -> anyhow::Result<f64> {
    let (before, begun) = (cpu_time(process)?, Instant::now());
    tokio::time::sleep(time).await;
    Ok((cpu_time(process)? - before) / begun.elapsed().as_secs_f64())
}
