//! How many processes this machine is asked to bear: a slip in `replicas` would take all of it, and a
//! cluster's scheduler is not there to say no.

use std::num::NonZero;
use std::thread::available_parallelism;

use anyhow::ensure;
use roundhouse_planner::ValidatedJob;

/// Far more than train well, and still few enough to be ended with Ctrl-C.
const MOST_PER_CORE: usize = 16;

/// Whether the job's processes may be started here.
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
         on {cores} cores; with --local there may be {most}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_processes_than_the_machine_bears_are_refused() {
        assert!(check_on(2, 16, 2).is_ok());
        let refused = check_on(2, 1_000, 1).unwrap_err().to_string();
        assert!(refused.contains("1000 processes on 2 cores"), "{refused}");
    }
}
