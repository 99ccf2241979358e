//! Parses the documents of a job's file as strictly as `kubectl apply`. A wrong kind or an unknown
//! field would otherwise be ignored silently. Pure.

use anyhow::{bail, ensure};
use kube::Resource;
use roundhouse_api::TrainingJob;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Similarity of two words, from 0 to 1, above which one counts as a typing error of the other.
const LIKE: f64 = 0.8;

/// The kind of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    TrainingJob,
    ConfigMap,
    /// An object that only a cluster uses, such as a claim.
    Other,
}

/// The documents of a text, in order.
///
/// # Errors
/// The text is not YAML; the error names line and column.
pub(crate) fn documents(text: &str) -> anyhow::Result<Vec<Value>> {
    let options = serde_saphyr::options! { with_snippet: false };
    let all: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options)?;
    Ok(all.into_iter().filter(|it| !it.is_null()).collect())
}

/// The kind of a document.
///
/// # Errors
/// The document is almost a TrainingJob or a ConfigMap, but its `apiVersion` or `kind` is wrong.
pub(crate) fn kind(document: &Value) -> anyhow::Result<Kind> {
    let word = |field: &str| document[field].as_str().unwrap_or_default();
    let (version, kind) = (word("apiVersion"), word("kind"));
    let (our_group, our_version) = (TrainingJob::group(&()), TrainingJob::api_version(&()));
    let our_kind = TrainingJob::kind(&());
    if kind == our_kind {
        ensure!(
            version == our_version,
            "apiVersion: {version:?} is wrong for a {our_kind}: use {our_version:?}"
        );
        return Ok(Kind::TrainingJob);
    }
    if version.split('/').next() == Some(&*our_group) {
        bail!("kind: {kind:?} is wrong for apiVersion {version:?}: use {our_kind:?}");
    }
    match (version, kind) {
        ("v1", "ConfigMap") => Ok(Kind::ConfigMap),
        (_, "ConfigMap") => bail!("apiVersion: {version:?} is wrong for a ConfigMap: use \"v1\""),
        _ => Ok(Kind::Other),
    }
}

/// Parses a document as its type.
///
/// # Errors
/// A field is unknown or has a wrong value; the error names its path.
pub(crate) fn parse<T: DeserializeOwned>(document: Value) -> anyhow::Result<T> {
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(document, &mut track);
    let mut unknown = Vec::new();
    let parsed = serde_ignored::deserialize(tracked, |path| unknown.push(words(&path.to_string())));
    // Some types do not have these fields; `kind` has checked them.
    unknown.retain(|path| !matches!(path.as_str(), "apiVersion" | "kind"));
    let named = unknown.iter().map(|path| format!("unknown field {path:?}"));
    let named = named.collect::<Vec<String>>().join(", ");
    match parsed {
        Err(error) => {
            // The cause of a missing field may be a misspelt one, so name unknown fields, too.
            let beside = if named.is_empty() { "" } else { "; " };
            let wrong = in_words(&error.to_string());
            bail!("{}: {wrong}{beside}{named}", track.path())
        }
        Ok(_) if !named.is_empty() => bail!("{named}: correct or remove it"),
        Ok(parsed) => Ok(parsed),
    }
}

/// Rewrites an error of serde: without the names of Rust's types, and with the field that was
/// meant.
fn in_words(error: &str) -> String {
    let error = match meant(error) {
        Some(field) => format!("{error}; did you mean `{field}`?"),
        None => error.to_owned(),
    };
    ["u64", "u32"].iter().fold(error, |text, name| {
        text.replace(
            &format!("expected {name}"),
            "expected a whole number of at least 0",
        )
    })
}

/// The known word that is most similar to the unknown one. In serde's error, the first word in
/// backquotes is the unknown one.
fn meant(error: &str) -> Option<&str> {
    let mut quoted = error.split('`').skip(1).step_by(2);
    let unknown = quoted.next().filter(|_| error.starts_with("unknown "))?;
    let likeness =
        |known: &&str| strsim::jaro_winkler(&unknown.to_lowercase(), &known.to_lowercase());
    let best = quoted.max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(&best) > LIKE).then_some(best)
}

/// A path in the style of Kubernetes: `containers[0].image`. Serde adds a step `?` for each
/// optional field, which is dropped.
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
    fn unknown_or_wrong_field_is_named_with_its_path() {
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
            let error = parse::<TrainingJob>(wrong).unwrap_err().to_string();
            assert!(
                error.contains(field) && error.contains("unknown field"),
                "{error}"
            );
        }
        let wrong = job(|job| job["spec"]["workers"]["replicas"] = json!("two"));
        let error = parse::<TrainingJob>(wrong).unwrap_err().to_string();
        assert!(error.starts_with("spec.workers.replicas: "), "{error}");
    }

    #[test]
    fn typo_suggests_the_correct_field() {
        let slip = job(|job| {
            let trainer = job["spec"]["trainer"].as_object_mut().unwrap();
            let size = trainer.remove("globalBatchSize").unwrap();
            trainer.insert("globalBatchsize".to_owned(), size);
        });
        let error = parse::<TrainingJob>(slip).unwrap_err().to_string();
        assert!(
            error.ends_with("did you mean `globalBatchSize`?"),
            "{error}"
        );
        let missing = job(|job| {
            let workers = job["spec"]["workers"].as_object_mut().unwrap();
            let number = workers.remove("replicas").unwrap();
            workers.insert("replicsa".to_owned(), number);
        });
        let error = parse::<TrainingJob>(missing).unwrap_err().to_string();
        for words in [
            "missing field `replicas`",
            "unknown field \"spec.workers.replicsa\"",
        ] {
            assert!(error.contains(words), "{error}");
        }
        let other = job(|job| job["spec"]["trainer"]["colour"] = json!("green"));
        let error = parse::<TrainingJob>(other).unwrap_err().to_string();
        assert!(!error.contains("did you mean"), "{error}");
    }

    #[test]
    fn almost_a_job_is_refused() {
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
            let error = of(version, kind).unwrap_err().to_string();
            assert!(error.starts_with(field), "{error}");
        }
    }
}
