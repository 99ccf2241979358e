//! Names of the objects of a job. All depend only on the job, so a repeated creation finds the
//! existing object.

/// Longest job name: `<job>-worker-<index>-<attempt>` with 5 and 4 digits stays within 63.
pub const MAX_JOB_NAME_LENGTH: usize = 44;

/// What is wrong with a job's name; `None` if the API server accepts it. The rule is stricter than
/// that of Kubernetes for object names (RFC 1123), because Services are named after the job.
#[must_use]
pub fn refusal_of_job(name: &str) -> Option<String> {
    let is_inner = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    let bytes = name.as_bytes();
    let is_right = (1..=MAX_JOB_NAME_LENGTH).contains(&bytes.len())
        && bytes[0].is_ascii_lowercase()
        && bytes.iter().all(is_inner)
        && !name.ends_with('-');
    (!is_right).then(|| {
        format!(
            "must be at most {MAX_JOB_NAME_LENGTH} characters: a lower-case letter, then lower-case letters, digits or '-', \
             and no '-' at its end"
        )
    })
}

/// What is wrong with a namespace; `None` if it is an RFC 1123 label.
#[must_use]
pub fn refusal_of_namespace(name: &str) -> Option<String> {
    let is_inner = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    let is_right = (1..=63).contains(&name.len())
        && name.as_bytes().iter().all(is_inner)
        && !name.starts_with('-')
        && !name.ends_with('-');
    (!is_right).then(|| {
        "must be at most 63 lower-case letters, digits or '-', with no '-' at its beginning or end".to_owned()
    })
}

/// Name of the headless Service and of the NetworkPolicy: the job's name.
#[must_use]
pub fn service(job: &str) -> String {
    job.to_owned()
}

/// Name of the NetworkPolicy for workers that still run when their job is gone:
/// `<job>-leaving-<first 8 characters of the job's UID>`. A later job of the same name has its
/// own NetworkPolicy beside it.
#[must_use]
pub fn leaving_policy(job: &str, uid: &str) -> String {
    let uid: String = uid.chars().take(8).collect();
    format!("{job}-leaving-{uid}")
}

/// Name of the PodGroup of one of the job's gangs: the job's name for the first one, and
/// `<job>-gang-<number>` for the others.
#[must_use]
pub fn pod_group(job: &str, gang: u32) -> String {
    if gang == 0 {
        job.to_owned()
    } else {
        format!("{job}-gang-{gang}")
    }
}

/// The gang whose PodGroup has this name; `None` if the job has no such gang.
#[must_use]
pub fn gang_of_pod_group(job: &str, name: &str) -> Option<u32> {
    if name == job {
        return Some(0);
    }
    let number = name.strip_prefix(job)?.strip_prefix("-gang-")?;
    let number = number.parse().ok().filter(|number| *number > 0)?;
    // Only the usual form of a number makes the name of a PodGroup.
    (pod_group(job, number) == name).then_some(number)
}

/// Host name of a worker, equal for all attempts: `<job>-worker-<index>`.
#[must_use]
pub fn worker_host(job: &str, index: u32) -> String {
    format!("{job}-worker-{index}")
}

/// Name of the pod of a worker's attempt: `<job>-worker-<index>-<attempt>`. A pod on a lost node
/// can stay Terminating indefinitely, so the next attempt needs another name.
#[must_use]
pub fn worker_pod(job: &str, index: u32, attempt: u32) -> String {
    format!("{job}-worker-{index}-{attempt}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules_of_the_api_server() {
        let longest = "j".repeat(MAX_JOB_NAME_LENGTH);
        for name in ["a", "digits", "a-1", &longest] {
            assert_eq!(refusal_of_job(name), None, "{name}");
        }
        let too_long = "j".repeat(MAX_JOB_NAME_LENGTH + 1);
        for name in ["", "1a", "-a", "a-", "a.b", "a_b", "Digits", "ä", &too_long] {
            assert!(refusal_of_job(name).is_some(), "{name}");
        }
        for (name, is_right) in [
            ("ml", true),
            ("1", true),
            ("-", false),
            ("Ml", false),
            ("", false),
        ] {
            assert_eq!(refusal_of_namespace(name).is_none(), is_right, "{name}");
        }
    }

    #[test]
    fn longest_job_name_leaves_room_for_index_and_attempt() {
        let job = "j".repeat(MAX_JOB_NAME_LENGTH);
        assert_eq!(worker_pod(&job, 99_999, 9_999).len(), 62);
        assert!(pod_group(&job, u32::MAX).len() <= 63);
    }

    #[test]
    fn name_of_a_pod_group_names_its_gang() {
        for (name, gang) in [
            ("digits", Some(0)),
            ("digits-gang-1", Some(1)),
            ("digits-gang-12", Some(12)),
            ("digits-gang-0", None),
            ("digits-gang-01", None),
            ("digits-gang-", None),
            ("digits-gang-x", None),
            ("digits-2", None),
            ("other", None),
        ] {
            assert_eq!(gang_of_pod_group("digits", name), gang, "{name}");
        }
        assert_eq!(pod_group("digits", 0), "digits");
        assert_eq!(pod_group("digits", 12), "digits-gang-12");
    }
}
