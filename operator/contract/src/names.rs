//! Names of the objects of a job. All are functions of the job, so a repeated create finds itself.

/// Longest job name: `<job>-worker-<index>-<attempt>` with 5 and 4 digits stays within 63.
pub const MAX_JOB_NAME_LENGTH: usize = 44;

/// The headless Service and the NetworkPolicy bear the job's name.
#[must_use]
pub fn service(job: &str) -> String {
    job.to_owned()
}

/// The NetworkPolicy of workers that leave after their job is gone: `<job>-leaving-<beginning of the job's UID>`. A later job of the same
/// name has its own NetworkPolicy beside it.
#[must_use]
pub fn leaving_policy(job: &str, uid: &str) -> String {
    let uid: String = uid.chars().take(8).collect();
    format!("{job}-leaving-{uid}")
}

/// The PodGroup of a gang scheduler bears the job's name.
#[must_use]
pub fn pod_group(job: &str) -> String {
    job.to_owned()
}

/// Host name of a worker, stable over attempts: `<job>-worker-<index>`.
#[must_use]
pub fn worker_host(job: &str, index: u32) -> String {
    format!("{job}-worker-{index}")
}

/// Pod of a worker's attempt: `<job>-worker-<index>-<attempt>`. A pod on a lost node can stay
/// Terminating for ever, so the next attempt needs another name.
#[must_use]
pub fn worker_pod(job: &str, index: u32, attempt: u32) -> String {
    format!("{job}-worker-{index}-{attempt}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_job_name_leaves_room_for_index_and_attempt() {
        let job = "j".repeat(MAX_JOB_NAME_LENGTH);
        assert_eq!(worker_pod(&job, 99_999, 9_999).len(), 62);
    }
}
