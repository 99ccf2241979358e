//! `submit`: checks a file, then applies it as `kubectl apply --server-side` does.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use kube::core::DynamicObject;
use roundhouse_api::{TrainingJob, TrainingJobStatus};

use super::Outcome;
use crate::cluster::{Cluster, DryRun};
use crate::gpus::GpuNames;
use crate::out::{self, Format, plain};
use crate::strict::{self, Kind};
use crate::watch;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The file with the job and other objects that it needs, such as a ConfigMap with data; `-`
    /// reads standard input.
    #[arg(short, long = "filename", value_name = "FILE")]
    file: PathBuf,
    /// Follow the job until it ends; Ctrl-C stops following, and the job keeps running. Exit codes
    /// are those of `watch`.
    #[arg(short, long, conflicts_with_all = ["is_on", "output"])]
    watch: bool,
    /// Stop following after this many seconds.
    #[arg(long, default_value_t = watch::DEFAULT_SECONDS, requires = "watch")]
    timeout: u64,
    #[command(flatten)]
    dry_run: DryRun,
    #[command(flatten)]
    gpus: GpuNames,
    /// Overwrite fields that another tool has set to another value, for example the number of
    /// workers set by an autoscaler.
    #[arg(long)]
    force_conflicts: bool,
    /// Print the applied objects as documents.
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

pub(crate) async fn run(cluster: &Cluster, options: &Options) -> Outcome {
    let text = read(&options.file)?;
    let shown = options.file.display();
    let documents = check(&text, &options.gpus).with_context(|| format!("in {shown}"))?;
    let mut applied = Vec::new();
    for document in documents {
        let object = cluster
            .apply(document, options.dry_run, options.force_conflicts)
            .await?;
        if options.output.is_none() {
            let kind = object
                .types
                .as_ref()
                .map_or("", |types| types.kind.as_str());
            let name = object.metadata.name.clone().unwrap_or_default();
            let suffix = options.dry_run.suffix();
            out::write(&format!(
                "{} {} is applied.{suffix}",
                plain(kind),
                plain(&name)
            ))?;
        }
        applied.push(object);
    }
    if options.output.is_some() {
        out::print(&applied, options.output, |_| String::new())?;
    }
    let jobs = applied
        .iter()
        .filter(|it| it.types.as_ref().is_some_and(|it| it.kind == "TrainingJob"));
    let named = jobs.filter_map(|it| {
        Some((
            it.metadata.name.as_deref()?,
            it.metadata.namespace.as_deref()?,
        ))
    });
    let named: Vec<(&str, &str)> = named.collect();
    match named[..] {
        [(name, namespace)] if options.watch => {
            let timeout = Duration::from_secs(options.timeout);
            let cluster = cluster.in_namespace(namespace);
            return Box::pin(watch::watch(&cluster, name, timeout, None)).await;
        }
        _ if options.watch => bail!(
            "the file has {} jobs: follow each with `kubectl roundhouse watch NAME`",
            named.len()
        ),
        [(name, _)] if options.output.is_none() && !options.dry_run.is_on => {
            let ended = applied.iter().any(has_ended);
            out::aside(&next_step(name, ended));
        }
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the object is a job that existed before and has ended.
fn has_ended(object: &DynamicObject) -> bool {
    let status = object.data.get("status").cloned();
    let status = status.and_then(|it| serde_json::from_value::<TrainingJobStatus>(it).ok());
    status.is_some_and(|status| status.is_terminal())
}

fn next_step(name: &str, ended: bool) -> String {
    if ended {
        format!(
            "{name} has ended, and applying it does not run it again. To run it again, use `kubectl roundhouse stop {name}`, then submit it."
        )
    } else {
        format!("Follow it with `kubectl roundhouse watch {name}`.")
    }
}

pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The objects of a text. Jobs pass the operator's validation before anything is applied.
fn check(text: &str, gpus: &GpuNames) -> anyhow::Result<Vec<DynamicObject>> {
    let mut objects = Vec::new();
    for document in strict::documents(text)? {
        if strict::kind(&document)? == Kind::TrainingJob {
            let mut job: TrainingJob =
                strict::parse(document.clone()).context("the TrainingJob")?;
            job.metadata
                .namespace
                .get_or_insert_with(|| "default".to_owned());
            gpus.validate(&job).context("the TrainingJob")?;
        }
        let object: DynamicObject = strict_object(document)?;
        objects.push(object);
    }
    ensure!(!objects.is_empty(), "there is no object");
    Ok(objects)
}

fn strict_object(document: serde_json::Value) -> anyhow::Result<DynamicObject> {
    let object: DynamicObject =
        serde_json::from_value(document).context("an object has no metadata")?;
    let kind = object
        .types
        .as_ref()
        .map_or("", |types| types.kind.as_str());
    ensure!(!kind.is_empty(), "an object has no apiVersion and kind");
    ensure!(
        object.metadata.name.is_some(),
        "a {kind} has no metadata.name"
    );
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "apiVersion: roundhouse.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: a}\nspec:\n  \
        workers: {replicas: 2}\n  trainer: {model: {name: mlp}, data: {format: idx}, globalBatchSize: 8, epochs: 1}\n";

    #[test]
    fn ended_job_gets_advice_to_stop_it_first() {
        let mut object: DynamicObject = serde_json::from_value(serde_json::json!({
            "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "a"},
        }))
        .unwrap();
        assert!(!has_ended(&object));
        let condition = serde_json::json!({
            "type": "Succeeded", "status": "True", "reason": "Completed", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        object.data["status"] = serde_json::json!({"conditions": [condition]});
        assert!(has_ended(&object));
        assert!(next_step("a", true).contains("stop a"));
    }

    #[test]
    fn objects_of_a_file_keep_their_order() {
        let text = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: data}}\n---\n{JOB}");
        let objects = check(&text, &GpuNames::default()).unwrap();
        let names: Vec<_> = objects
            .iter()
            .map(|it| it.metadata.name.clone().unwrap())
            .collect();
        assert_eq!(names, ["data", "a"]);
    }

    #[test]
    fn invalid_field_is_named_before_anything_is_applied() {
        for (from, to, field) in [
            ("epochs: 1", "epoch: 1", "spec.trainer.epoch"),
            (
                "globalBatchSize: 8",
                "globalBatchSize: 0",
                "globalBatchSize",
            ),
            ("{name: a}", "{}", "metadata.name"),
            ("kind: TrainingJob", "kind: TrainJob", "TrainingJob"),
        ] {
            let text = JOB.replace(from, to);
            let error = format!("{:#}", check(&text, &GpuNames::default()).unwrap_err());
            assert!(error.contains(field), "{error}");
        }
        assert!(
            check("---\n", &GpuNames::default())
                .unwrap_err()
                .to_string()
                .contains("no object")
        );
    }
}
