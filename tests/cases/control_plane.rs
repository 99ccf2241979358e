//! An API server with an operator, shared by all cases that need them. Each case has its own
//! namespace.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Parser;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use prometheus::Registry;
use roundhouse_api::TrainingJob;
use roundhouse_operator::run::run_with;
use roundhouse_operator::settings::Settings;
use roundhouse_tests::apiserver::ApiServer;
use roundhouse_tests::cluster::{TestNamespace, until};
use roundhouse_tests::manifests;
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::case::Step;
use crate::steps::StepRunner;

const SOON: Duration = Duration::from_mins(2);

/// The shared API server with its operator. The first case that needs them starts them.
#[derive(Default)]
pub(crate) struct ControlPlane(Mutex<Option<Arc<Running>>>);

struct Running {
    // Rust drops fields in this order: the operator ends with its runtime, then the API server.
    runtime: Runtime,
    server: ApiServer,
    client: Client,
    _directory: TempDir,
}

impl ControlPlane {
    /// Runs the steps of a case in a new namespace `case-NAME`.
    pub(crate) fn run_steps(
        &self,
        folder: &Path,
        name: &str,
        steps: &[Step],
    ) -> anyhow::Result<()> {
        let running = self.running()?;
        running.runtime.block_on(async {
            let namespace = running.namespace(name).await?;
            let kubeconfig = running.server.kubeconfig("test")?;
            let mut runner = StepRunner::new(namespace, folder, kubeconfig);
            for (number, step) in (1..).zip(steps) {
                let result = runner.run(step).await;
                result.with_context(|| format!("step {number}: {step:?}"))?;
            }
            Ok(())
        })
    }

    fn running(&self) -> anyhow::Result<Arc<Running>> {
        // Other cases wait here while one case starts the servers. After a failed start, the next
        // case tries again and reports the error, too.
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = &*running {
            return Ok(Arc::clone(running));
        }
        let started = Arc::new(Running::start()?);
        *running = Some(Arc::clone(&started));
        Ok(started)
    }
}

impl Running {
    fn start() -> anyhow::Result<Self> {
        let runtime = Runtime::new()?;
        let directory = TempDir::new()?;
        let (server, client) = runtime.block_on(async {
            let server = ApiServer::start(directory.path()).await?;
            let client = server.client("test")?;
            install(&client).await?;
            let arguments = ["roundhouse-operator", "--http-address=127.0.0.1:0"];
            let settings = Settings::try_parse_from(arguments)?;
            let of_operator = server.client("operator")?;
            let operator = run_with(
                of_operator,
                settings,
                Registry::new(),
                std::future::pending(),
            );
            // If the operator fails, a case reports which step it waited for.
            tokio::spawn(operator);
            anyhow::Ok((server, client))
        })?;
        Ok(Self {
            runtime,
            server,
            client,
            _directory: directory,
        })
    }

    async fn namespace(&self, name: &str) -> anyhow::Result<TestNamespace> {
        let name = format!("case-{name}");
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        namespaces
            .create(&PostParams::default(), &namespace)
            .await?;
        Ok(TestNamespace {
            client: self.client.clone(),
            name,
        })
    }
}

/// Installs the CRD of the TrainingJob, and waits until the API server serves it.
async fn install(client: &Client) -> anyhow::Result<()> {
    let crd = manifests::read("crds/trainingjobs.yaml")?.pop();
    let crd: CustomResourceDefinition = serde_json::from_value(crd.ok_or(anyhow!("no CRD"))?)?;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.create(&PostParams::default(), &crd).await?;
    let jobs: Api<TrainingJob> = Api::all(client.clone());
    until("the API server serves TrainingJobs", SOON, || async {
        Ok(jobs.list(&ListParams::default()).await.ok())
    })
    .await?;
    Ok(())
}
