use roundhouse_api::TrainingJob;

use super::{convert, usable_name};
use crate::strict;

fn fixture(name: &str) -> (String, std::path::PathBuf) {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/convert");
    let text = std::fs::read_to_string(directory.join(format!("{name}.yaml"))).unwrap();
    (text, directory.join(format!("{name}.golden.yaml")))
}

/// Set `ROUNDHOUSE_WRITE_GOLDEN` to write the files anew; then read their difference.
#[test]
fn jobs_of_other_operators_become_the_jobs_that_were_reviewed() {
    for name in ["pytorchjob", "trainjob", "rayjob"] {
        let (text, golden) = fixture(name);
        let converted = convert(&text).unwrap();
        if std::env::var_os("ROUNDHOUSE_WRITE_GOLDEN").is_some() {
            std::fs::write(&golden, &converted).unwrap();
        }
        assert_eq!(
            converted,
            std::fs::read_to_string(golden).unwrap(),
            "{name}"
        );
    }
}

#[test]
fn what_comes_out_is_a_job_that_can_be_run() {
    for name in ["pytorchjob", "trainjob", "rayjob"] {
        let converted = convert(&fixture(name).0).unwrap();
        for document in strict::documents(&converted).unwrap() {
            let mut job: TrainingJob = strict::parse(document).unwrap();
            job.metadata.namespace = Some("default".to_owned());
            roundhouse_planner::validate(&job).unwrap();
        }
    }
}

#[test]
fn what_has_no_counterpart_is_named() {
    for (name, words) in [
        (
            "pytorchjob",
            &[
                "schedulingPolicy",
                "hostNetwork",
                "--rdzv-id",
                "ExitCode",
                "maxRestarts",
                "Master.template differs",
            ][..],
        ),
        (
            "trainjob",
            &[
                "torch-distributed",
                "initializer",
                "podTemplateOverrides",
                "shell starts torchrun",
                "Llama.Tune",
            ],
        ),
        (
            "rayjob",
            &[
                "must not use Ray",
                "headGroupSpec",
                "runtimeEnvYAML",
                "ConfigMap code",
            ],
        ),
    ] {
        let converted = convert(&fixture(name).0).unwrap();
        let comments: String = converted
            .lines()
            .filter(|line| line.starts_with('#'))
            .collect();
        for word in words {
            assert!(comments.contains(word), "{word:?} is not in {comments}");
        }
    }
}

#[test]
fn text_without_a_job_is_refused_with_what_it_has() {
    let told = |text: &str| convert(text).unwrap_err().to_string();
    assert!(told("kind: ConfigMap\nmetadata: {name: a}\n").contains("ConfigMap a"));
    assert!(told("").contains("nothing"));
    assert!(told("kind: TrainingJob\nmetadata: {name: a}\n").contains("already"));
}

#[test]
fn a_name_becomes_one_that_a_job_may_have() {
    assert_eq!(usable_name("Llama.Tune"), "llama-tune");
    assert_eq!(usable_name("7b"), "job-7b");
    assert_eq!(usable_name(&"a-".repeat(40)).len(), 43);
}
