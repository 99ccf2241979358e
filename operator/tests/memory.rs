//! Memory that jobs take in the operator. This is a program of its own, so no other test adds to
//! the peak.

#![allow(clippy::unwrap_used, reason = "tests and their helpers")]

use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::core::{ObjectList, WatchEvent};
use roundhouse_api::lenient::{LenientJob, MAX_SPEC_BYTES};
use roundhouse_operator::watch::projection::bounded::Bounded;

const MIB: u64 = 1024 * 1024;

/// Most memory that this process has had since [`begin`], in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    kib * 1024
}

/// Resets the peak to the memory that the process has now, and returns it.
fn begin() -> u64 {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    peak()
}

fn job(name: &str, template: &str) -> String {
    format!(
        r#"{{"apiVersion":"roundhouse.dev/v1alpha1","kind":"TrainingJob","metadata":{{"name":"{name}","namespace":"ml","uid":"{name}"}},"spec":{{"suspend":true,"workers":{{"replicas":1,"template":{{"spec":{template}}}}},"trainer":{{"model":{{"name":"mlp"}},"data":{{"format":"idx"}},"globalBatchSize":8,"epochs":1}}}}}}"#
    )
}

fn list(jobs: &[String]) -> String {
    format!(
        r#"{{"apiVersion":"roundhouse.dev/v1alpha1","kind":"TrainingJobList","metadata":{{"resourceVersion":"1"}},"items":[{}]}}"#,
        jobs.join(",")
    )
}

/// 470 volumes with 1,024 empty sources each: 1.4 MiB of JSON, and 230 MiB of Rust structs.
fn of_empty_sources() -> String {
    let sources = vec!["{}"; 1_024].join(",");
    let volume = |at| format!(r#"{{"name":"v{at}","projected":{{"sources":[{sources}]}}}}"#);
    let volumes: Vec<String> = (0..470).map(volume).collect();
    format!(r#"{{"containers":[],"volumes":[{}]}}"#, volumes.join(","))
}

/// A job with almost the largest spec that the operator manages: variables with short and with long
/// values.
fn of_variables() -> String {
    let variable = |at| format!(r#"{{"name":"VARIABLE_{at}","value":"{at}"}}"#);
    let mut variables: Vec<String> = (0..300).map(variable).collect();
    let rest = MAX_SPEC_BYTES - 1_024 - variables.iter().map(String::len).sum::<usize>() - 300;
    variables.push(format!(
        r#"{{"name":"LONG","value":"{}"}}"#,
        "x".repeat(rest)
    ));
    format!(
        r#"{{"containers":[{{"name":"trainer","image":"a","env":[{}]}}]}}"#,
        variables.join(",")
    )
}

/// A page of policies, each with 1.4 MiB of empty ports and labels. A user can create them with the
/// operator's labels.
fn page_of_policies() -> String {
    let labels: Vec<String> = (0..30_000)
        .map(|at| format!(r#""label-{at}":"""#))
        .collect();
    let ports = vec!["{}"; 250_000].join(",");
    let policy = format!(
        r#"{{"metadata":{{"name":"p","namespace":"ml","labels":{{{}}}}},"spec":{{"podSelector":{{}},"ingress":[{{"ports":[{ports}]}}]}}}}"#,
        labels.join(",")
    );
    assert!(policy.len() > 1_200_000 && policy.len() < 1_500_000);
    list(&vec![policy; 100])
}

/// This is one test, because the peak belongs to the whole process.
#[test]
fn the_memory_of_a_watched_object_is_bounded_by_its_json() {
    let page = page_of_policies();
    let before = begin();
    let read: ObjectList<Bounded<NetworkPolicy>> = serde_json::from_str(&page).unwrap();
    assert!(read.items.iter().all(|policy| policy.object.is_none()));
    let used = peak() - before;
    assert!(used < 32 * MIB, "100 policies took {} MiB", used / MIB);
    drop((read, page));

    let huge = job("huge", &of_empty_sources());
    assert!(huge.len() > 1_400_000 && huge.len() < 1_500_000);
    let text = list(std::slice::from_ref(&huge));
    let event = format!(r#"{{"type":"ADDED","object":{huge}}}"#);
    let before = begin();
    let listed: ObjectList<LenientJob> = serde_json::from_str(&text).unwrap();
    let watched: WatchEvent<LenientJob> = serde_json::from_str(&event).unwrap();
    let WatchEvent::Added(watched) = watched else {
        panic!("it is an addition")
    };
    for job in [&listed.items[0], &watched] {
        assert!(job.unreadable.is_some() && job.job.spec.suspend);
    }
    let used = peak() - before;
    assert!(used < 8 * MIB, "one job took {} KiB", used / 1024);

    let template = of_variables();
    let jobs: Vec<String> = (0..50)
        .map(|at| job(&format!("job-{at}"), &template))
        .collect();
    let page = list(&jobs);
    drop(jobs);
    let before = begin();
    let pages: Vec<ObjectList<LenientJob>> = (0..10)
        .map(|_| serde_json::from_str(&page).unwrap())
        .collect();
    let jobs: Vec<&LenientJob> = pages.iter().flat_map(|page| &page.items).collect();
    assert_eq!(jobs.len(), 500);
    for job in &jobs {
        assert_eq!(job.unreadable, None);
    }
    let used = peak() - before;
    let most = 500 * MAX_SPEC_BYTES as u64 * 5 / 4;
    assert!(used < most, "500 jobs took {} MiB", used / MIB);
    // One reconcile parses the whole job in addition.
    let whole = jobs[0].whole().unwrap();
    assert!(whole.spec.workers.template.is_some());
}
