//! Documents of the job's file as strictly as `kubectl apply` reads them: a kind that is not known here, or a
//! field that its type does not have, would otherwise be a wish that nobody hears. Pure.

use anyhow::{bail, ensure};
use kube::Resource;
use roundhouse_api::TrainingJob;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// How much two words are alike, from 0 to 1, if one is a slip of the other.
const LIKE: f64 = 0.8;

/// What a document is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    TrainingJob,
    ConfigMap,
    /// Something for a cluster, such as a claim.
    Other,
}

/// The documents of a text, in order.
///
/// # Errors
/// It is not YAML; the place is told in one line.
pub(crate) fn documents(text: &str) -> anyhow::Result<Vec<Value>> {
    let options = serde_saphyr::options! { with_snippet: false };
    let all: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options)?;
    Ok(all.into_iter().filter(|it| !it.is_null()).collect())
}

/// What a document says that it is.
///
/// # Errors
/// It is meant for Roundhouse and says so wrongly.
pub(crate) fn kind(document: &Value) -> anyhow::Result<Kind> {
    let word = |field: &str| document[field].as_str().unwrap_or_default();
    let (version, kind) = (word("apiVersion"), word("kind"));
    let (our_group, our_version) = (TrainingJob::group(&()), TrainingJob::api_version(&()));
    let our_kind = TrainingJob::kind(&());
    if kind == our_kind {
        ensure!(
            version == our_version,
            "apiVersion: is {version:?}; of a {our_kind} it is {our_version:?}"
        );
        return Ok(Kind::TrainingJob);
    }
    if version.split('/').next() == Some(&*our_group) {
        bail!("kind: is {kind:?}; with apiVersion {version:?} it is {our_kind:?}");
    }
    match (version, kind) {
        ("v1", "ConfigMap") => Ok(Kind::ConfigMap),
        (_, "ConfigMap") => bail!("apiVersion: is {version:?}; of a ConfigMap it is \"v1\""),
        _ => Ok(Kind::Other),
    }
}

/// A document as its type.
///
/// # Errors
/// A field is unknown or has a wrong value; its path is told.
pub(crate) fn parse<T: DeserializeOwned>(document: Value) -> anyhow::Result<T> {
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(document, &mut track);
    let mut unknown = Vec::new();
    let parsed = serde_ignored::deserialize(tracked, |path| unknown.push(words(&path.to_string())));
    // Not every type reads what `kind` has looked at.
    unknown.retain(|path| !matches!(path.as_str(), "apiVersion" | "kind"));
    let named = unknown.iter().map(|path| format!("unknown field {path:?}"));
    let named = named.collect::<Vec<String>>().join(", ");
    match parsed {
        Err(error) => {
            // A field that is missing may be one that is misspelt.
            let beside = if named.is_empty() { "" } else { "; " };
            let wrong = in_words(&error.to_string());
            bail!("{}: {wrong}{beside}{named}", track.path())
        }
        Ok(_) if !named.is_empty() => bail!("{named}: correct or remove it"),
        Ok(parsed) => Ok(parsed),
    }
}

/// An error of serde's without the names of Rust's types, and with the field that was meant.
fn in_words(error: &str) -> String {
    let error = match meant(error) {
        Some(field) => format!("{error}; did you mean `{field}`?"),
        None => error.to_owned(),
    };
    ["u64", "u32"].iter().fold(error, |text, name| {
        text.replace(
            &format!("expected {name}"),
            "expected a whole number, not below 0",
        )
    })
}

/// The known field or word that is most like an unknown one, by serde's words: the first in backquotes is unknown.
fn meant(error: &str) -> Option<&str> {
    let mut quoted = error.split('`').skip(1).step_by(2);
    let unknown = quoted.next().filter(|_| error.starts_with("unknown "))?;
    let likeness =
        |known: &&str| strsim::jaro_winkler(&unknown.to_lowercase(), &known.to_lowercase());
    let best = quoted.max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(&best) > LIKE).then_some(best)
}

/// A path as Kubernetes writes it: `containers[0].image`. What is optional is not a step of its own.
fn words(path: &str) -> String {
    let steps = path.split('.').filter(|step| *step != "?");
    let written = steps.map(|step| match step.parse::<usize>() {
        Ok(index) => format!("[{index}]"),
        Err(_) => format!(".{step}"),
    });
    let text: String = written.collect();
    text.trim_start_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(change: impl FnOnce(&mut Value)) -> Value {
        let mut job = json!({
            "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": "digits"},
            "spec": {
                "workers": {"replicas": 2, "template": {"spec": {"containers": [{"name": "trainer"}]}}},
                "failurePolicy": {"rules": [{"action": "Count", "onReasons": ["Killed"]}]},
                "checkpoint": {"volume": {"hostPath": {"path": "/srv"}}},
                "trainer": {"model": {"name": "mlp"}, "data": {"format": "idx"}, "globalBatchSize": 8, "epochs": 1},
            },
        });
        change(&mut job);
        job
    }

    #[test]
    fn a_field_that_is_unknown_or_wrong_is_named_with_its_path() {
        assert!(parse::<TrainingJob>(job(|_| {})).is_ok());
        for (pointer, field) in [
            ("", "specs"),
            ("/metadata", "metadata.lables"),
            ("/spec", "spec.foo"),
            ("/spec/workers", "spec.workers.replica"),
            (
                "/spec/workers/template/spec/containers/0",
                "spec.workers.template.spec.containers[0].imag",
            ),
            ("/spec/failurePolicy", "spec.failurePolicy.backofLimit"),
            (
                "/spec/failurePolicy/rules/0",
                "spec.failurePolicy.rules[0].onReason",
            ),
            (
                "/spec/checkpoint/volume/hostPath",
                "spec.checkpoint.volume.hostPath.dir",
            ),
            ("/spec/trainer", "spec.trainer.epoch"),
            ("/spec/trainer/model", "spec.trainer.model.depth"),
        ] {
            let name = field.rsplit('.').next().unwrap();
            let wrong = job(|job| job.pointer_mut(pointer).unwrap()[name] = json!(1));
            let told = parse::<TrainingJob>(wrong).unwrap_err().to_string();
            assert!(
                told.contains(field) && told.contains("unknown field"),
                "{told}"
            );
        }
        let wrong = job(|job| job["spec"]["workers"]["replicas"] = json!("two"));
        let told = parse::<TrainingJob>(wrong).unwrap_err().to_string();
        assert!(told.starts_with("spec.workers.replicas: "), "{told}");
    }

    #[test]
    fn a_slip_is_told_with_what_was_meant() {
        let slip = job(|job| {
            let trainer = job["spec"]["trainer"].as_object_mut().unwrap();
            let size = trainer.remove("globalBatchSize").unwrap();
            trainer.insert("globalBatchsize".to_owned(), size);
        });
        let told = parse::<TrainingJob>(slip).unwrap_err().to_string();
        assert!(told.ends_with("did you mean `globalBatchSize`?"), "{told}");
        let missing = job(|job| {
            let workers = job["spec"]["workers"].as_object_mut().unwrap();
            let number = workers.remove("replicas").unwrap();
            workers.insert("replicsa".to_owned(), number);
        });
        let told = parse::<TrainingJob>(missing).unwrap_err().to_string();
        for words in [
            "missing field `replicas`",
            "unknown field \"spec.workers.replicsa\"",
        ] {
            assert!(told.contains(words), "{told}");
        }
        let other = job(|job| job["spec"]["trainer"]["colour"] = json!("green"));
        let told = parse::<TrainingJob>(other).unwrap_err().to_string();
        assert!(!told.contains("did you mean"), "{told}");
    }

    #[test]
    fn what_is_nearly_a_job_is_not_passed_over() {
        let of =
            |version: &str, kind: &str| super::kind(&json!({"apiVersion": version, "kind": kind}));
        let ours = "roundhouse.dev/v1alpha1";
        assert_eq!(of(ours, "TrainingJob").unwrap(), Kind::TrainingJob);
        assert_eq!(of("v1", "ConfigMap").unwrap(), Kind::ConfigMap);
        assert_eq!(of("v1", "PersistentVolumeClaim").unwrap(), Kind::Other);
        for (version, kind, field) in [
            ("roundhouse.dev/v1", "TrainingJob", "apiVersion: "),
            ("", "TrainingJob", "apiVersion: "),
            (ours, "trainingjob", "kind: "),
            ("v2", "ConfigMap", "apiVersion: "),
        ] {
            let told = of(version, kind).unwrap_err().to_string();
            assert!(told.starts_with(field), "{told}");
        }
    }
}
