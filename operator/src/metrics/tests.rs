use std::collections::BTreeSet;
use std::path::Path;

use super::testing::{ManualClock, touch, value};
use super::*;

/// Words of the planner that look like a state and are none: reasons of events, of failures, and what Kubernetes says.
const NO_STATES: [&str; 28] = [
    "Accepted",
    "CheckpointFailed",
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "Error",
    "Evicted",
    "False",
    "GenerationIssued",
    "ImagePullBackOff",
    "InvalidImageName",
    "NodeAffinity",
    "NodeLost",
    "NodeShutdown",
    "OOMKilled",
    "OnFailure",
    "PeersLost",
    "Preempted",
    "Preempting",
    "RunContainerError",
    "Running",
    "Shutdown",
    "Succeeded",
    "Terminated",
    "True",
    "UnexpectedAdmissionError",
    "Waiting",
];

#[test]
fn a_second_operator_in_one_registry_is_refused() {
    let (registry, clock) = (Registry::new(), ManualClock::new());
    Metrics::new(&registry, clock.clock()).unwrap();
    assert!(Metrics::new(&registry, clock.clock()).is_err());
}

#[test]
fn a_job_that_starts_fails_and_recovers_touches_each_histogram_of_jobs() {
    let (registry, clock) = (Registry::new(), ManualClock::new());
    touch(&Metrics::new(&registry, clock.clock()).unwrap());
    for what in ["lobby", "start", "recover"] {
        let series = format!("roundhouse_job_{what}_seconds_count");
        assert_eq!(value(&registry, &series), Some(1.0), "{what}");
    }
}

#[test]
fn every_word_that_the_planner_can_show_as_a_state_is_a_label() {
    let mut words = BTreeSet::new();
    let planner = Path::new(env!("CARGO_MANIFEST_DIR")).join("planner/src");
    collect_words(&planner, &mut words);
    assert!(words.contains("WaitingForWorkers"), "{words:?}");
    let is_unknown = |word: &&String| {
        labels::state(word) == labels::OTHER && !NO_STATES.contains(&word.as_str())
    };
    let unknown: Vec<&String> = words.iter().filter(is_unknown).collect();
    assert!(
        unknown.is_empty(),
        "add them to STATES in metrics/labels.rs, or here: {unknown:?}"
    );
    assert_eq!(labels::state("of somebody else"), labels::OTHER);
}

/// Words in `CamelCase` that stand alone between quotes.
fn collect_words(directory: &Path, words: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with("test") {
            continue;
        }
        if path.is_dir() {
            collect_words(&path, words);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        // Every second part is between quotes.
        let quoted = text.split('"').skip(1).step_by(2);
        let is_word = |part: &&str| {
            part.starts_with(|first: char| first.is_ascii_uppercase())
                && part.len() > 2
                && part.chars().all(|each| each.is_ascii_alphanumeric())
        };
        words.extend(quoted.filter(is_word).map(str::to_owned));
    }
}
