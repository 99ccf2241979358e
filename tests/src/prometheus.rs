//! A real Prometheus in the network namespace of the local cluster's first node. It scrapes the
//! targets of the chart's scrape configuration, and a recorded exposition that this process serves.

use std::fs::File;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};

use self::served::Served;
use crate::cluster::{DEADLINE, until};
use crate::manifests::repository;
use crate::nodes;

/// The port of Prometheus. No other process of the local cluster listens on it.
const PORT: u16 = 19_090;

/// A running Prometheus. It ends when the value is dropped, and when the cluster is removed.
#[derive(Debug)]
pub struct Prometheus {
    child: Child,
    url: String,
    since: SystemTime,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes the operator, all workers and `recorded` every second.
    ///
    /// # Errors
    /// No cluster runs, the program `prometheus` is missing, or Prometheus rejects its
    /// configuration.
    pub async fn start(recorded: String) -> anyhow::Result<Self> {
        let api = kube::Config::infer().await?.cluster_url;
        let node: IpAddr = api.host().context("the API server has no host")?.parse()?;
        let served = Served::start(node, recorded).await?;
        let directory = nodes::shared_directory("prometheus")?.canonicalize()?;
        let file = directory.join("prometheus.yml");
        std::fs::write(&file, configuration(&served)?)?;
        let log = File::create(directory.join("log"))?;
        let child = Command::new(repository().join("tests/cluster/cluster"))
            .args([
                "exec",
                "prometheus",
                "--log.level=warn",
                "--web.enable-lifecycle",
            ])
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                directory.join("data").display()
            ))
            .arg(format!("--web.listen-address=0.0.0.0:{PORT}"))
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let started = Self {
            child,
            url: format!("http://{node}:{PORT}"),
            since: SystemTime::now(),
        };
        let ready = until("Prometheus is ready", DEADLINE, || async {
            let answer = started.curl(&["/-/ready"])?;
            Ok(answer.status.success().then_some(()))
        });
        ready.await.with_context(|| log_of(&directory))?;
        // A rate has no value for what the operator has counted before the first scrape.
        let scraped = until("Prometheus scrapes the operator", DEADLINE, || async {
            let query = "/api/v1/query?query=roundhouse_job_start_seconds_count";
            let answer = started.curl(&[query])?.stdout;
            Ok(String::from_utf8_lossy(&answer)
                .contains("\"value\"")
                .then_some(()))
        });
        scraped.await.with_context(|| log_of(&directory))?;
        Ok(started)
    }

    /// Evaluates all queries of the dashboards and the alerts, and returns the report. The data of
    /// the dashboards are saved in the directory `record`.
    ///
    /// # Errors
    /// A query has no data after `patience`.
    pub fn evaluate(
        &self,
        namespace: &str,
        jobs: &[&str],
        patience: Duration,
        record: Option<&Path>,
    ) -> anyhow::Result<String> {
        let since = self.since.duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        let mut command = Command::new("python3");
        command
            .arg(repository().join("tests/monitoring/evaluate.py"))
            .args(["--url", &self.url, "--namespace", namespace])
            .args(["--since", &since.to_string()])
            .args(["--wait", &patience.as_secs().to_string()]);
        for job in jobs {
            command.args(["--job", job]);
        }
        if let Some(directory) = record {
            command.arg("--record").arg(directory);
        }
        let output = command.output()?;
        let report = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{report}");
        Ok(report)
    }

    fn curl(&self, arguments: &[&str]) -> std::io::Result<Output> {
        let (path, options) = arguments.split_last().unwrap_or((&"/", &[]));
        Command::new("curl")
            .args(["-sf", "-m", "5"])
            .args(options)
            .arg(format!("{}{path}", self.url))
            .output()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // Prometheus is a process of the node. The child process here only waits for it, so killing
        // the child is the last resort.
        let quit = self.curl(&["-X", "POST", "/-/quit"]);
        if !quit.is_ok_and(|answer| answer.status.success()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// The configuration of Prometheus: the chart's rules and its scrape configuration. Debian's
/// Prometheus lacks the discovery of Kubernetes, so `discovery` lists the pods over HTTP with the
/// same labels. The recorded exposition is scraped twice: as that of a DCGM exporter without
/// `honor_labels`, and as that of an agent with it.
fn configuration(discovery: &Served) -> anyhow::Result<String> {
    let repository = repository().canonicalize()?;
    let rules = repository.join("charts/roundhouse/rules/alerts.yaml");
    let scrape = std::fs::read_to_string(repository.join("charts/roundhouse/rules/scrape.yaml"))?;
    let kubernetes = "  kubernetes_sd_configs:\n  - role: pod\n";
    ensure!(
        scrape.contains(kubernetes),
        "rules/scrape.yaml does not discover pods"
    );
    let Served { address } = discovery;
    let pods =
        format!("  http_sd_configs: [{{url: 'http://{address}/pods', refresh_interval: 1s}}]\n");
    let global = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 5s}}\nrule_files: [{}]\n",
        rules.display()
    );
    let recorded = |name: &str, honour: bool, keep: &str| {
        format!(
            "- job_name: recorded-{name}\n  honor_labels: {honour}\n  static_configs: [{{targets: ['{address}'], labels: \
             {{namespace: gpu-operator, pod: recorded}}}}]\n  metric_relabel_configs: [{{source_labels: [__name__], \
             regex: '{keep}', action: keep}}]\n"
        )
    };
    Ok(global
        + &scrape.replace(kubernetes, &pods)
        + &recorded("dcgm-exporter", false, "DCGM_.*")
        + &recorded("agent", true, "roundhouse_.*"))
}

fn log_of(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("log")).unwrap_or_default()
}

mod served;
