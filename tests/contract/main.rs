//! What files of the repository promise each other.
#![allow(missing_docs, clippy::unwrap_used)]

use roundhouse_api::TrainingJob;
use roundhouse_planner::validate;
use roundhouse_tests::manifests;

/// Client-side `kubectl apply` keeps the object in an annotation of at most so many bytes.
const LAST_APPLIED_BYTES: usize = 262_144;

#[test]
fn every_job_of_the_examples_can_be_run() {
    let mut jobs = 0;
    for entry in std::fs::read_dir(manifests::repository().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
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
