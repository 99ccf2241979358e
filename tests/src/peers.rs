//! Runs controllers of other projects against a test's API server. Their kinds, webhooks and
//! configuration come from their own manifests. `tests/cluster/cluster build peers` compiles them.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::core::discovery::ApiResource;
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::apiserver::{ApiServer, free_port};
use crate::cluster::until;
use crate::manifests;

const SOON: Duration = Duration::from_mins(1);

/// A controller of another project.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The program's file name in `ROUNDHOUSE_BIN`. Its manifests are in the directory
    /// `PROGRAM-definitions` there.
    pub program: &'static str,
    /// Its configuration as its project ships it, except for certificates, leader election and
    /// ports, which the test provides.
    configuration: fn(webhook: Value) -> Value,
    /// Arguments for settings that the configuration file lacks.
    arguments: &'static [&'static str],
    /// The directory below /etc from which it reads a certificate, if no setting changes it.
    certificates: Option<&'static str>,
}

/// Kueue, which queues plain pods.
pub const KUEUE: Peer = Peer {
    program: "kueue",
    configuration: |webhook| {
        json!({
            "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
            "health": {"healthProbeBindAddress": "0"}, "metrics": {"bindAddress": "0"},
            "webhook": webhook,
            "leaderElection": {"leaderElect": false},
            "internalCertManagement": {"enable": false},
            "clientConnection": {"qps": 50, "burst": 100},
            "integrations": {"frameworks": ["pod"]},
        })
    },
    // Turns off Kueue's own API server, which serves the lengths of the queues.
    arguments: &["--feature-gates=VisibilityOnDemand=false"],
    certificates: Some("kueue/metrics/certs"),
};

/// `JobSet`, which creates Jobs.
pub const JOBSET: Peer = Peer {
    program: "jobset",
    configuration: |webhook| {
        json!({
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration",
            "health": {"healthProbeBindAddress": "0"}, "metrics": {"bindAddress": "0"},
            "webhook": webhook,
            "leaderElection": {"leaderElect": false},
            "internalCertManagement": {"enable": false},
        })
    },
    arguments: &[],
    certificates: None,
};

/// Kubeflow Trainer, which creates `JobSets`.
pub const TRAINER: Peer = Peer {
    program: "trainer-controller-manager",
    configuration: |webhook| {
        json!({
            "apiVersion": "config.trainer.kubeflow.org/v1alpha1", "kind": "Configuration",
            "health": {"healthProbeBindAddress": "0"}, "metrics": {"bindAddress": "0"},
            "webhook": {"host": webhook["host"], "port": webhook["port"]},
            "leaderElection": {"leaderElect": false},
            "certManagement": {"enable": false},
            "controller": {"groupKindConcurrency": {
                "TrainJob.trainer.kubeflow.org": 5,
                "TrainingRuntime.trainer.kubeflow.org": 1,
                "ClusterTrainingRuntime.trainer.kubeflow.org": 1,
            }},
            "clientConnection": {"qps": 50, "burst": 100},
        })
    },
    arguments: &[],
    certificates: None,
};

impl Peer {
    /// Installs the kinds and webhooks of the controller and starts it as the user `operator`,
    /// whose requests the audit log records. Returns its process id.
    ///
    /// # Errors
    /// The manifests are missing, or the controller does not serve its webhooks within a minute.
    pub async fn install(&self, server: &ApiServer, client: &Client) -> anyhow::Result<u32> {
        let directory = server.directory().join(self.program);
        // Kubeflow Trainer always reads its certificates below the directory for temporary files.
        let certificates = directory.join("k8s-webhook-server/serving-certs");
        std::fs::create_dir_all(&certificates)?;
        let authority = certify(&certificates)?;
        let port = free_port()?;

        let definitions = definitions(self.program)?;
        for definition in read(&definitions, |name| name != "webhooks.yaml")? {
            let name = definition["metadata"]["name"].as_str().unwrap_or_default();
            let api: Api<CustomResourceDefinition> = Api::all(client.clone());
            api.patch(name, &applied(), &Patch::Apply(&definition))
                .await?;
            timeout(SOON, await_condition(api, name, is_crd_established())).await??;
        }
        let config = directory.join("config.yaml");
        let webhook = json!({"host": "127.0.0.1", "port": port, "certDir": certificates});
        std::fs::write(&config, (self.configuration)(webhook).to_string())?;
        let kubeconfig = server.kubeconfig("operator")?;
        let config = format!("--config={}", config.display());
        let arguments = [&[config.as_str()], self.arguments].concat();
        let environment = [("KUBECONFIG", kubeconfig.as_path()), ("TMPDIR", &directory)];
        let program = self.program_in(&directory, &certificates)?;
        let process = server.run_with(&program.to_string_lossy(), &arguments, &environment)?;

        until(self.program, SOON, || async {
            let connected = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
            Ok(connected.ok().map(drop))
        })
        .await
        .with_context(|| {
            format!(
                "its log, newest line first:\n{}",
                server.last_lines(self.program)
            )
        })?;
        for webhooks in read(&definitions, |name| name == "webhooks.yaml")? {
            self.register_webhooks(client, webhooks, port, &authority)
                .await?;
        }
        Ok(process)
    }

    /// The path of the program, or of a script that runs it with an /etc of its own if it needs
    /// one.
    fn program_in(&self, directory: &Path, certificates: &Path) -> anyhow::Result<PathBuf> {
        let program = Path::new(&std::env::var("ROUNDHOUSE_BIN")?).join(self.program);
        let Some(below_etc) = self.certificates else {
            return Ok(program);
        };
        let etc = directory.join("etc");
        std::fs::create_dir_all(etc.join(below_etc))?;
        for file in ["tls.crt", "tls.key"] {
            std::fs::copy(certificates.join(file), etc.join(below_etc).join(file))?;
        }
        let script = directory.join(self.program);
        let text = format!(
            "#!/bin/sh\nexec unshare --mount --map-root-user sh -c 'mount --bind \"{}\" /etc && exec \"{}\" \"$@\"' sh \"$@\"\n",
            etc.display(),
            program.display(),
        );
        std::fs::write(&script, text)?;
        std::fs::set_permissions(&script, Permissions::from_mode(0o755))?;
        Ok(script)
    }

    /// Registers the controller's webhooks at their loopback address instead of a Service.
    async fn register_webhooks(
        &self,
        client: &Client,
        mut webhooks: Value,
        port: u16,
        authority: &ByteString,
    ) -> anyhow::Result<()> {
        for webhook in webhooks["webhooks"].as_array_mut().context("no webhooks")? {
            let path = webhook["clientConfig"]["service"]["path"].as_str();
            let url = format!("https://127.0.0.1:{port}{}", path.unwrap_or_default());
            webhook["clientConfig"] = json!({"url": url, "caBundle": authority});
        }
        let kind = webhooks["kind"].as_str().unwrap_or_default();
        let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
        let name = format!("{}-webhooks", self.program);
        webhooks["metadata"]["name"] = json!(name);
        api.patch(&name, &applied(), &Patch::Apply(&webhooks))
            .await?;
        Ok(())
    }
}

fn applied() -> PatchParams {
    PatchParams::apply("test").force()
}

fn definitions(program: &str) -> anyhow::Result<PathBuf> {
    let bin = std::env::var("ROUNDHOUSE_BIN").context("ROUNDHOUSE_BIN is not set")?;
    let path = Path::new(&bin).join(format!("{program}-definitions"));
    ensure!(
        path.is_dir(),
        "{} is missing: run `tests/cluster/cluster build peers`",
        path.display()
    );
    Ok(path)
}

fn read(directory: &Path, which: impl Fn(&str) -> bool) -> anyhow::Result<Vec<Value>> {
    let mut documents = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if which(&name) {
            documents.extend(manifests::documents(&path)?);
        }
    }
    Ok(documents)
}

/// Creates a self-signed certificate for 127.0.0.1 and returns it.
fn certify(directory: &Path) -> anyhow::Result<ByteString> {
    let (key, certificate) = (directory.join("tls.key"), directory.join("tls.crt"));
    let created = Command::new("openssl")
        .args([
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
        ])
        .args([
            "-subj",
            "/CN=127.0.0.1",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ])
        .arg("-keyout")
        .arg(key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .context("openssl is not installed")?;
    ensure!(created.status.success(), "openssl: {created:?}");
    Ok(ByteString(std::fs::read(certificate)?))
}
