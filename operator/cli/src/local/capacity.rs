//! Limits the number of processes on this machine. A typing error in `replicas` could otherwise
//! exhaust it: there is no scheduler that refuses workers without resources.

use std::num::NonZero;
use std::thread::available_parallelism;

use anyhow::ensure;
use roundhouse_planner::ValidatedJob;

/// More processes per core than can train well, but few enough that Ctrl-C still works.
const MOST_PER_CORE: usize = 16;

/// Checks that this machine can run the job's processes.
pub(super) fn check(job: &ValidatedJob) -> anyhow::Result<()> {
    let cores = available_parallelism().map_or(1, NonZero::get);
    check_on(cores, job.replicas, job.procs_per_worker)
}

fn check_on(cores: usize, workers: u32, procs_per_worker: u32) -> anyhow::Result<()> {
    let (wanted, most) = (
        workers as usize * procs_per_worker as usize,
        cores * MOST_PER_CORE,
    );
    ensure!(
        wanted <= most,
        "spec.workers.replicas: {workers} workers with {procs_per_worker} processes each are {wanted} processes \
         on {cores} cores; --local allows at most {most}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_processes_per_core_are_refused() {
        assert!(check_on(2, 16, 2).is_ok());
        let refused = check_on(2, 1_000, 1).unwrap_err().to_string();
        assert!(refused.contains("1000 processes on 2 cores"), "{refused}");
    }
}
