use roundhouse_api::TrainingJob;

use super::{convert, usable_name};
use crate::strict;

fn fixture(name: &str) -> (String, std::path::PathBuf) {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/convert");
    let text = std::fs::read_to_string(directory.join(format!("{name}.yaml"))).unwrap();
    (text, directory.join(format!("{name}.golden.yaml")))
}

/// To update the golden files, set `ROUNDHOUSE_WRITE_GOLDEN`, and review their difference.
#[test]
fn converted_jobs_equal_the_golden_files() {
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
fn converted_jobs_are_valid() {
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
fn fields_without_counterpart_are_noted() {
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
fn text_without_a_job_is_refused() {
    let error = |text: &str| convert(text).unwrap_err().to_string();
    assert!(error("kind: ConfigMap\nmetadata: {name: a}\n").contains("ConfigMap a"));
    assert!(error("").contains("nothing"));
    assert!(error("text\n").contains("there is no PyTorchJob"));
    assert!(error("kind: TrainingJob\nmetadata: {name: a}\n").contains("already"));
}

#[test]
fn name_with_line_break_stays_in_its_comment() {
    let (text, _) = fixture("pytorchjob");
    let job = text.replace(
        "  name: mnist\n",
        "  name: \"a\\n---\\nkind: Pod\\u2028b\"\n",
    );
    assert_ne!(job, text);
    let converted = convert(&job).unwrap();
    let documents = strict::documents(&converted).unwrap();
    assert_eq!(documents.len(), 1, "{converted}");
    assert!(!converted.lines().any(|line| line == "---"), "{converted}");
}

#[test]
fn list_is_converted_item_by_item() {
    let list = "kind: List\nitems:\n- kind: PyTorchJob\n  metadata: {name: a}\n  spec: {pytorchReplicaSpecs: {Worker: \
        {template: {spec: {containers: [{name: pytorch, image: i, command: [python, a.py]}]}}}}}\n- kind: ConfigMap\n  \
        metadata: {name: c}\n";
    let converted = convert(list).unwrap();
    assert!(
        converted.contains("Converted from PyTorchJob a"),
        "{converted}"
    );
    assert!(
        converted.contains("# ConfigMap c is not a training job"),
        "{converted}"
    );
}

#[test]
fn unread_field_is_noted() {
    let job = |extra: &str| {
        format!(
            "kind: PyTorchJob\nmetadata: {{generateName: c5-}}\nspec:\n  {extra}\n  pytorchReplicaSpecs: {{Worker: {{template: \
             {{spec: {{containers: [{{name: pytorch, image: i, command: [python, a.py], \
             env: [{{name: A, value: x}}, {{name: A, value: z}}]}}]}}}}}}}}\n"
        )
    };
    let converted = convert(&job("cleanPodPolicy: None")).unwrap();
    for words in [
        "# - spec.cleanPodPolicy: a TrainingJob has no such field",
        "c5- became c5:",
        "variable A is set more than once",
    ] {
        assert!(converted.contains(words), "{words}: {converted}");
    }
    assert_eq!(converted.matches("name: A").count(), 1, "{converted}");
    let converted = convert(&job("nprocPerNode: auto")).unwrap();
    assert!(!converted.contains("no such field"), "{converted}");
}

#[test]
fn converted_name_is_valid_for_a_job() {
    assert_eq!(usable_name("Llama.Tune"), "llama-tune");
    assert_eq!(usable_name("7b"), "job-7b");
    assert_eq!(usable_name(&"a-".repeat(40)).len(), 43);
}
