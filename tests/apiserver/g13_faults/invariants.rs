//! What must never happen to a job and its pods, checked on their history.

use std::collections::HashMap;

use roundhouse_contract::Incarnation;
use roundhouse_contract::membership::Action;

use super::history::ObjectVersion;

/// The violations in a history:
///
/// - a generation or a number of incidents that shrinks, or too many incidents
/// - a membership of a generation that the status of the job does not contain yet. After a restore
///   of etcd (`is_restored`) this is allowed, because the status may be older than the pods.
/// - two process groups in one generation, or two members with one rank
pub(super) fn violations<'a>(
    history: impl Iterator<Item = &'a ObjectVersion>,
    most_incidents: u32,
    is_restored: bool,
) -> Vec<String> {
    let mut problems = Vec::new();
    let mut jobs: HashMap<&str, (u64, u32)> = HashMap::new();
    let mut pods: HashMap<&str, u64> = HashMap::new();
    let mut groups: HashMap<(&str, u64), &str> = HashMap::new();
    let mut ranks: HashMap<(&str, u64, u32), &Incarnation> = HashMap::new();
    for seen in history {
        match seen {
            ObjectVersion::Job {
                uid,
                generation,
                incidents,
            } => {
                let before = jobs.entry(uid).or_default();
                if *generation < before.0 || *incidents < before.1 {
                    problems.push(format!("after {before:?} came {seen:?}"));
                }
                if *incidents > most_incidents {
                    problems.push(format!("more than {most_incidents} incidents: {seen:?}"));
                }
                *before = (*generation, *incidents);
            }
            ObjectVersion::Pod { place: None, .. } => {}
            ObjectVersion::Pod {
                job,
                name: _,
                uid,
                place: Some(place),
            } => {
                let before = pods.insert(uid, place.generation).unwrap_or(0);
                if place.generation < before {
                    problems.push(format!("after generation {before} came {seen:?}"));
                }
                let raised = jobs.get(job.as_str()).map_or(0, |job| job.0);
                if place.generation > raised && !is_restored {
                    problems.push(format!("its generation was not raised: {seen:?}"));
                }
                if place.action == Action::Leave {
                    continue;
                }
                let group = (job.as_str(), place.generation);
                if *groups.entry(group).or_insert(&place.members) != place.members {
                    problems.push(format!(
                        "a second process group of one generation: {seen:?}"
                    ));
                }
                let rank = (job.as_str(), place.generation, place.node_rank);
                if *ranks.entry(rank).or_insert(&place.incarnation) != &place.incarnation {
                    problems.push(format!("a second member of one rank: {seen:?}"));
                }
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use roundhouse_contract::Membership;
    use roundhouse_contract::membership::Master;

    use super::*;

    fn job(generation: u64, incidents: u32) -> ObjectVersion {
        ObjectVersion::Job {
            uid: "job".to_owned(),
            generation,
            incidents,
        }
    }

    fn pod(uid: &str, generation: u64, node_rank: u32, members: &str) -> ObjectVersion {
        let place = Membership {
            life: String::new(),
            nonce: String::new(),
            generation,
            action: Action::Join,
            node_rank,
            nodes: 2,
            procs_per_worker: 1,
            master: Master {
                address: "127.0.0.9".to_owned(),
                port: 1,
            },
            members: members.to_owned(),
            incarnation: Incarnation {
                pod_uid: uid.to_owned(),
                restarts: 0,
            },
            issued_at: String::new(),
            repeats: 0,
        };
        ObjectVersion::Pod {
            job: "job".to_owned(),
            name: uid.to_owned(),
            uid: uid.to_owned(),
            place: Some(Box::new(place)),
        }
    }

    #[test]
    fn each_violation_is_found_in_a_history() {
        let well = [
            job(1, 0),
            pod("a", 1, 0, "ab"),
            pod("b", 1, 1, "ab"),
            job(1, 1),
            job(2, 1),
            pod("b", 2, 0, "b"),
        ];
        assert_eq!(violations(well.iter(), 1, false), [""; 0]);
        let cases = [
            ("after (2, 1)", job(1, 1)),
            ("after (2, 1)", job(2, 0)),
            ("more than 1", job(2, 2)),
            ("after generation 2", pod("b", 1, 1, "ab")),
            ("not raised", pod("a", 3, 1, "ab")),
            ("second process group", pod("a", 2, 1, "ab")),
            ("second member", pod("a", 2, 0, "b")),
        ];
        for (words, last) in cases {
            let history = well.iter().chain([&last]);
            let problems = violations(history, 1, false);
            assert!(
                problems.len() == 1 && problems[0].contains(words),
                "{words}: {problems:?}"
            );
        }
        // After a restore the status of the job may lack the generation of a pod.
        let last = pod("a", 3, 1, "ab");
        let history = || well.iter().chain([&last]);
        assert_eq!(violations(history(), 1, true), [""; 0]);
    }
}
