//! An API server with an operator, which all cases that need one share: each has a namespace of its own.

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
use crate::steps::Play;

const SOON: Duration = Duration::from_mins(2);

/// It is started by the first case that needs it.
#[derive(Default)]
pub(crate) struct ControlPlane(Mutex<Option<Arc<Running>>>);

struct Running {
    // Dropped in this order: the operator ends with its runtime, then the API server.
    runtime: Runtime,
    server: ApiServer,
    client: Client,
    _directory: TempDir,
}

impl ControlPlane {
    /// Plays a case in a namespace of this name.
    pub(crate) fn play(&self, folder: &Path, name: &str, steps: &[Step]) -> anyhow::Result<()> {
        let running = self.running()?;
        running.runtime.block_on(async {
            let namespace = running.namespace(name).await?;
            let kubeconfig = running.server.kubeconfig("test")?;
            let mut play = Play::new(namespace, folder, kubeconfig);
            for (number, step) in (1..).zip(steps) {
                let played = play.step(step).await;
                played.with_context(|| format!("step {number}: {step:?}"))?;
            }
            Ok(())
        })
    }

    fn running(&self) -> anyhow::Result<Arc<Running>> {
        // Cases that come while it is being started wait. After a failed start, the next case shows the error, too.
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
            // A case that waits for it in vain says what it has waited for.
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

/// Makes the definition of the TrainingJob, and waits until it is served.
async fn install(client: &Client) -> anyhow::Result<()> {
    let crd = manifests::read("crds/trainingjobs.yaml")?.pop();
    let crd: CustomResourceDefinition = serde_json::from_value(crd.ok_or(anyhow!("no CRD"))?)?;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.create(&PostParams::default(), &crd).await?;
    let jobs: Api<TrainingJob> = Api::all(client.clone());
    until("the kind is served", SOON, || async {
        Ok(jobs.list(&ListParams::default()).await.ok())
    })
    .await?;
    Ok(())
}
