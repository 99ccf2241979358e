//! `report`: writes a zip file with everything that explains a job.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use futures::StreamExt;
use roundhouse_contract::ports;
use serde_json::Value;
use zip::write::{SimpleFileOptions, ZipWriter};

use super::{Outcome, status};
use crate::cluster::Cluster;
use crate::facts::Facts;
use crate::logs::{Part, Source, Target};
use crate::out;
use crate::redact::Redactor;
use crate::view::JobView;
use crate::why::diagnose;

/// Most lines of each log, the last ones.
const MAX_LINES: i64 = 5_000;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Name of the job.
    name: String,
    /// The file to write. It must not exist yet. Default: `NAME-TIME.zip` in the current directory.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Files of the report: name and text.
type Texts = Vec<(String, String)>;

pub(crate) async fn run(cluster: &Cluster, options: &Options) -> Outcome {
    let Options { name, file } = options;
    let facts = cluster.facts(name).await?;
    let mut texts = metrics(cluster, &facts).await;
    texts.extend(ledger(cluster, &facts).await);
    texts.extend(logs(cluster, name).await?);
    texts.push(("versions.txt".to_owned(), versions(cluster).await));
    let files = files(&facts, texts)?;
    let path = file.clone().unwrap_or_else(|| {
        let time = facts.now.strftime("%Y%m%d-%H%M%S");
        PathBuf::from(format!("{name}-{time}.zip"))
    });
    write(&path, &files)?;
    out::write(&format!(
        "{} has {} files about {name}. Check it for secrets before you share it.",
        path.display(),
        files.len()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The files of a report, without secrets. Pure.
fn files(facts: &Facts, texts: Texts) -> anyhow::Result<Texts> {
    let job = serde_json::to_value(&facts.job)?;
    let pods = serde_json::to_value(&facts.pods)?;
    let events = serde_json::to_value(&facts.events)?;
    let redactor = Redactor::of(&[job.clone(), pods.clone()])?;
    let document = |mut object: Value| {
        redactor.object(&mut object);
        serde_saphyr::to_string(&object)
    };
    let mut diagnosis = serde_json::to_value(diagnose(facts))?;
    redactor.object(&mut diagnosis);
    let view = JobView::of(facts);
    let status = anstream::adapter::strip_str(&status::text(&view, facts.now)).to_string();
    let mut files = vec![
        ("README.txt".to_owned(), readme(facts)),
        ("job.yaml".to_owned(), document(job)?),
        ("pods.yaml".to_owned(), document(pods)?),
        ("events.yaml".to_owned(), document(events)?),
        ("status.txt".to_owned(), redactor.text(&status)),
        ("why.yaml".to_owned(), serde_saphyr::to_string(&diagnosis)?),
    ];
    let texts = texts.into_iter();
    files.extend(texts.map(|(name, text)| (name, redactor.text(&text))));
    Ok(files)
}

fn readme(facts: &Facts) -> String {
    format!(
        "TrainingJob {} in namespace {}, read at {}.\n\n\
         job.yaml, pods.yaml, events.yaml  objects of the API server; values of variables are left out\n\
         status.txt, why.yaml              what `kubectl roundhouse status` and `why` say\n\
         metrics/                          metrics of each agent\n\
         logs/                             the last {MAX_LINES} lines of each container; .previous: before its last restart\n\
         ledger.jsonl                      the last lines of the ledger, if a running worker has one\n\n\
         No Secret was read. Text that looks like a password, key or token is replaced.\n\
         The whole ledger is on the checkpoint volume, which only workers mount; there, `roundhouse-train audit` checks it.\n",
        facts.name(),
        facts.job.metadata.namespace.as_deref().unwrap_or_default(),
        facts.now
    )
}

async fn metrics(cluster: &Cluster, facts: &Facts) -> Texts {
    let mut texts = Vec::new();
    for pod in facts.reports.keys() {
        if let Some(text) = cluster.ask(pod, ports::METRICS_PATH, "").await {
            texts.push((format!("metrics/{pod}.prom"), text));
        }
    }
    texts
}

/// The last lines of the ledger, from the first worker that has one: all workers mount the same
/// volume.
async fn ledger(cluster: &Cluster, facts: &Facts) -> Option<(String, String)> {
    let workers = facts.workers();
    let answering = workers
        .iter()
        .filter(|it| facts.reports.contains_key(&it.pod));
    for worker in answering {
        let lines = cluster.ask(&worker.pod, ports::LEDGER_PATH, worker.nonce());
        if let Some(lines) = lines.await {
            return Some(("ledger.jsonl".to_owned(), lines));
        }
    }
    None
}

async fn logs(cluster: &Cluster, name: &str) -> anyhow::Result<Texts> {
    let source = cluster.logs(name).await?;
    let mut texts = Vec::new();
    for target in source
        .list()
        .await?
        .targets
        .iter()
        .filter(|it| it.has_started)
    {
        let Target { pod, restarts, .. } = target;
        if *restarts > 0 {
            texts.push((
                format!("logs/{pod}.previous.log"),
                log(&source, pod, true).await,
            ));
        }
        texts.push((format!("logs/{pod}.log"), log(&source, pod, false).await));
    }
    Ok(texts)
}

/// The last lines of a log, or the error.
async fn log(source: &impl Source, pod: &str, previous: bool) -> String {
    let part = Part {
        previous,
        tail: Some(MAX_LINES),
        ..Part::default()
    };
    match source.open(pod, part).await {
        Ok(lines) => {
            lines
                .filter_map(|line| async { line.ok() })
                .map(|line| line + "\n")
                .collect()
                .await
        }
        Err(error) => format!("cannot read this log: {error:#}\n"),
    }
}

async fn versions(cluster: &Cluster) -> String {
    let kubernetes = cluster.kubernetes_version().await;
    format!(
        "kubectl-roundhouse {}\noperators {}\nTrainingJob API {}\nKubernetes {}\n",
        env!("CARGO_PKG_VERSION"),
        cluster.operator_images().await.join(", "),
        cluster.api_versions().await.join(", "),
        kubernetes.unwrap_or_else(|error| format!("unknown: {error:#}")),
    )
}

fn write(path: &Path, files: &Texts) -> anyhow::Result<()> {
    let place = || format!("cannot write {}: give another --file", path.display());
    let file = File::create_new(path).with_context(place)?;
    let mut zip = ZipWriter::new(file);
    for (name, text) in files {
        zip.start_file(name.as_str(), SimpleFileOptions::default())
            .with_context(place)?;
        zip.write_all(text.as_bytes()).with_context(place)?;
    }
    zip.finish().with_context(place)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use roundhouse_contract::labels;
    use serde_json::json;

    use super::*;
    use crate::testing::job;

    const SECRETS: [&str; 8] = [
        "literal-value-of-env",
        "from-a-secret-0123",
        "abcdef-bearer-token",
        "eyJhbGciOiJSUzI1NiJ9",
        "hunter2hunter2",
        "arg-secret-9",
        // The nonces of the status and of a pod that is one generation behind. They have only
        // letters, so the check for random words does not find them.
        "feedfacefeedfacefeedfacefeedface",
        "deadbeefdeadbeefdeadbeefdeadbeef",
    ];

    fn facts() -> Facts {
        let env = json!([
            {"name": "HUB_TOKEN", "value": SECRETS[0]},
            {"name": "API_KEY_OF_US", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}},
        ]);
        let spec = json!({"containers": [{
            "name": "trainer", "image": "i", "env": env, "args": ["--api-key", SECRETS[5]]}]});
        let mut case = job()
            .trains(2)
            .last_failure("Crashed", 1, &format!("password={}", SECRETS[4]))
            .with("spec/workers/template", json!({"spec": spec.clone()}));
        case.pods[0]["spec"] = spec;
        case.job["status"]["membership"]["nonce"] = json!(SECRETS[6]);
        let place = &mut case.pods[0]["metadata"]["annotations"][labels::MEMBERSHIP];
        let text = place.as_str().unwrap().to_owned();
        *place = json!(text.replacen('{', &format!(r#"{{"nonce":"{}","#, SECRETS[7]), 1));
        case.events.push(json!({
            "metadata": {}, "involvedObject": {"kind": "Pod"}, "reason": "Failed",
            "message": format!("Authorization: Bearer {}", SECRETS[2]),
        }));
        case.facts()
    }

    fn texts() -> Texts {
        let log = format!(
            "2026-01-01T00:00:00Z [rank 0] API_KEY_OF_US={} HUB_TOKEN is {}\n2026-01-01T00:00:01Z [rank 0] {}.eyJpc3MiOiJr.c2ln\n\
             2026-01-01T00:00:02Z [rank 0] store: gen3-{}, gen2-{}\n",
            SECRETS[1], SECRETS[0], SECRETS[3], SECRETS[6], SECRETS[7]
        );
        vec![
            ("logs/digits-worker-0-0.log".to_owned(), log),
            (
                "metrics/digits-worker-0-0.prom".to_owned(),
                "roundhouse_train_step{rank=\"0\"} 480\n".to_owned(),
            ),
        ]
    }

    #[test]
    fn report_contains_no_secret() {
        let files = files(&facts(), texts()).unwrap();
        for (name, text) in &files {
            for secret in SECRETS {
                assert!(!text.contains(secret), "{secret} is in {name}:\n{text}");
            }
        }
        let all: String = files.iter().map(|(_, text)| text.as_str()).collect();
        assert!(!all.contains("kind: Secret"));
        // The report still explains the job.
        for kept in [
            "secretKeyRef",
            "API_KEY_OF_US",
            "generation 3",
            "roundhouse_train_step",
            "situation: ",
        ] {
            assert!(all.contains(kept), "{kept}");
        }
    }

    #[test]
    fn report_reads_back_and_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.zip");
        let files = files(&facts(), texts()).unwrap();
        write(&path, &files).unwrap();
        let mut zip = zip::ZipArchive::new(File::open(&path).unwrap()).unwrap();
        assert_eq!(zip.len(), files.len());
        let mut text = String::new();
        zip.by_name("status.txt")
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert!(text.starts_with("digits in namespace ml"), "{text}");
        assert!(
            write(&path, &files)
                .unwrap_err()
                .to_string()
                .contains("--file")
        );
    }
}
