//! A real Prometheus in the box of the local cluster's first node: it scrapes what the
//! chart's scrape configuration says, and a recorded exposition that this process serves.

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

/// In the network of the box, where nothing else listens there.
const PORT: u16 = 19_090;

/// A running Prometheus. It ends with the value, and with the cluster.
#[derive(Debug)]
pub struct Prometheus {
    child: Child,
    url: String,
    since: SystemTime,
}

impl Prometheus {
    /// Starts one that scrapes the operator, all workers, and `recorded`, every second.
    ///
    /// # Errors
    /// There is no cluster, no program `prometheus`, or it refuses its configuration.
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
        ready.await.with_context(|| said(&directory))?;
        Ok(started)
    }

    /// Evaluates all queries of the dashboards and the alerts, and returns what was said of them. What the dashboards show
    /// is kept in the directory `record`.
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
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{said}");
        Ok(said)
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
        // It is a process of the box, and the child only waits for it.
        let told = self.curl(&["-X", "POST", "/-/quit"]);
        if !told.is_ok_and(|answer| answer.status.success()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// The chart's rules and its scrape configuration. Debian's Prometheus has no discovery of Kubernetes: `discovery` tells it of the pods,
/// with the labels that Prometheus' own would give. The recorded exposition is scraped as that of a DCGM exporter whose labels are not
/// honoured, and as that of an agent.
fn configuration(discovery: &Served) -> anyhow::Result<String> {
    let repository = repository().canonicalize()?;
    let rules = repository.join("charts/roundhouse/rules/alerts.yaml");
    let scrape = std::fs::read_to_string(repository.join("charts/roundhouse/rules/scrape.yaml"))?;
    let kubernetes = "  kubernetes_sd_configs:\n  - role: pod\n";
    ensure!(scrape.contains(kubernetes), "it finds no pods");
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

fn said(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("log")).unwrap_or_default()
}

mod served;
