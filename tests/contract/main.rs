//! What files of the repository promise each other.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod docs;
mod metrics;

use roundhouse_api::TrainingJob;
use roundhouse_planner::validate;
use roundhouse_tests::manifests;

/// Client-side `kubectl apply` keeps the object in an annotation of at most so many bytes.
const LAST_APPLIED_BYTES: usize = 262_144;

#[test]
fn every_job_of_the_examples_can_be_run() {
    let mut jobs = 0;
    let in_directory = |directory: &str| -> Vec<String> {
        let entries = std::fs::read_dir(manifests::repository().join("examples").join(directory));
        let paths = entries.unwrap().map(|entry| entry.unwrap().path());
        let manifests = paths.filter(|path| path.extension().is_some_and(|it| it == "yaml"));
        let names = manifests.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned());
        names.map(|name| format!("{directory}{name}")).collect()
    };
    for name in [in_directory(""), in_directory("own-model/")].concat() {
        for document in manifests::read(&format!("examples/{name}")).unwrap() {
            if document["kind"] == "TrainingJob" {
                let mut job: TrainingJob = serde_json::from_value(document).unwrap();
                job.metadata.namespace = Some("default".to_owned());
                assert!(validate(&job).is_ok(), "{name}: {:?}", validate(&job));
                jobs += 1;
            }
        }
    }
    assert!(jobs > 0);
}

#[test]
fn the_crd_fits_in_the_annotation_of_kubectl_apply() {
    let crd = &manifests::read("crds/trainingjobs.yaml").unwrap()[0];
    let size = serde_json::to_string(crd).unwrap().len();
    assert!(size < LAST_APPLIED_BYTES, "{size} bytes");
}

/// The text of all Rust sources below a directory.
fn read_all(directory: &std::path::Path, text: &mut String) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *text += &std::fs::read_to_string(path).unwrap();
        }
    }
}
