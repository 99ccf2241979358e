//! Checks that files of the repository agree with each other.
#![allow(clippy::unwrap_used, clippy::panic)]

mod docs;
mod local_cluster;
mod metrics;
mod packages;

use roundhouse_api::TrainingJob;
use roundhouse_planner::tenancy::Limits;
use roundhouse_planner::validate;
use roundhouse_tests::manifests;

/// Client-side `kubectl apply` stores the object in an annotation. All annotations of an object
/// have at most this many bytes.
const LAST_APPLIED_BYTES: usize = 262_144;

/// The TrainingJobs of the examples, each with its file below examples/.
fn examples() -> Vec<(String, TrainingJob)> {
    let in_directory = |directory: &str| -> Vec<String> {
        let entries = std::fs::read_dir(manifests::repository().join("examples").join(directory));
        let paths = entries.unwrap().map(|entry| entry.unwrap().path());
        let manifests = paths.filter(|path| path.extension().is_some_and(|it| it == "yaml"));
        let names = manifests.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned());
        names.map(|name| format!("{directory}{name}")).collect()
    };
    let mut jobs = Vec::new();
    let directories = ["", "own-model/", "pytorch/"];
    for name in directories.map(in_directory).concat() {
        for document in manifests::read(&format!("examples/{name}")).unwrap() {
            if document["kind"] == "TrainingJob" {
                let mut job: TrainingJob = serde_json::from_value(document).unwrap();
                job.metadata.namespace = Some("default".to_owned());
                jobs.push((name.clone(), job));
            }
        }
    }
    assert!(!jobs.is_empty());
    jobs
}

#[test]
fn every_example_job_is_valid() {
    for (name, job) in examples() {
        assert!(validate(&job).is_ok(), "{name}: {:?}", validate(&job));
    }
}

#[test]
fn examples_name_the_policy_that_they_need() {
    for (name, job) in examples() {
        let Some(refused) = Limits::default().refuse(&validate(&job).unwrap()) else {
            continue;
        };
        let path = manifests::repository().join("examples").join(&name);
        let text = std::fs::read_to_string(path).unwrap();
        let mut keys = refused.message.split("policy.").skip(1);
        let is_key = |c: char| c.is_ascii_alphanumeric() || c == '.';
        let is_named = |after: &str| {
            let end = after.find(|c| !is_key(c)).unwrap_or(after.len());
            text.contains(&format!("policy.{}", after[..end].trim_end_matches('.')))
        };
        assert!(keys.all(is_named), "{name}: {}", refused.message);
    }
}

#[test]
fn crd_fits_in_the_last_applied_annotation() {
    let crd = &manifests::read("crds/trainingjobs.yaml").unwrap()[0];
    let size = serde_json::to_string(crd).unwrap().len();
    assert!(size < LAST_APPLIED_BYTES, "{size} bytes");
}

/// Appends the text of all files below a directory whose extension is `language`.
fn read_all(directory: &std::path::Path, language: &str, text: &mut String) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, language, text);
        } else if path
            .extension()
            .is_some_and(|extension| extension == language)
        {
            *text += &std::fs::read_to_string(path).unwrap();
        }
    }
}
