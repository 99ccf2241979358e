//! A cluster for one measurement: an API server, a scheduler, and nodes that KWOK simulates.

use std::time::Duration;

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use roundhouse_api::TrainingJob;
use roundhouse_tests::apiserver::ApiServer;
use roundhouse_tests::cluster::until;
use roundhouse_tests::manifests;
use serde_json::json;
use tempfile::TempDir;

pub(crate) const NAMESPACE: &str = "ml";
const PODS_PER_NODE: u32 = 100;
const SOON: Duration = Duration::from_secs(60);

/// The KWOK stage of pods whose image cannot be pulled.
const NO_IMAGE: &str = concat!(
    "--config=",
    env!("CARGO_MANIFEST_DIR"),
    "/bench/operator/pod-no-image.yaml"
);

pub(crate) struct Cluster {
    pub(crate) server: ApiServer,
    pub(crate) client: Client,
    /// The kubeconfig of the user `operator`, whose requests the audit log records.
    pub(crate) kubeconfig: std::path::PathBuf,
    _directory: TempDir,
}

impl Cluster {
    /// Starts a cluster with room for at least `pods` pods.
    pub(crate) async fn start(pods: u32) -> anyhow::Result<Self> {
        let directory = TempDir::new()?;
        let bin = std::env::var("ROUNDHOUSE_BIN")?;
        let server = ApiServer::start(directory.path()).await?;
        let client = server.client("test")?;
        let own = server.kubeconfig("test")?.display().to_string();
        server.run(
            "kube-scheduler",
            &[
                &format!("--kubeconfig={own}"),
                "--leader-elect=false",
                "--kube-api-qps=500",
                "--kube-api-burst=1000",
                "--secure-port=0",
            ],
        )?;
        let stage = |name| format!("--config={bin}/kwok-definitions/pod-{name}.yaml");
        server.run(
            "kwok",
            &[
                &format!("--kubeconfig={own}"),
                "--manage-all-nodes=true",
                // Pods have loopback addresses, so the benchmark's agents can answer.
                "--cidr=127.16.0.1/12",
                &stage("ready"),
                NO_IMAGE,
                &stage("delete"),
            ],
        )?;
        let kubeconfig = server.kubeconfig("operator")?;
        let cluster = Self {
            server,
            client,
            kubeconfig,
            _directory: directory,
        };
        cluster.install_crd().await?;
        let namespace = json!({"metadata": {"name": NAMESPACE}});
        cluster.create::<Namespace>(&[namespace]).await?;
        let nodes = (0..pods.div_ceil(PODS_PER_NODE) * 2).map(|number| {
            let room = json!({"cpu": "1000", "memory": "4Ti", "pods": PODS_PER_NODE.to_string()});
            json!({"metadata": {"name": format!("node-{number}")},
                "status": {"capacity": room, "allocatable": room}})
        });
        cluster.create::<Node>(&nodes.collect::<Vec<_>>()).await?;
        cluster.remove_taints().await?;
        Ok(cluster)
    }

    /// Admission taints new nodes as not ready. The node controller, which usually removes the
    /// taint, does not run here.
    async fn remove_taints(&self) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let untainted = Patch::Merge(json!({"spec": {"taints": null}}));
        for node in nodes.list(&ListParams::default()).await? {
            let parameters = PatchParams::default();
            nodes
                .patch(&node.name_any(), &parameters, &untainted)
                .await?;
        }
        Ok(())
    }

    async fn install_crd(&self) -> anyhow::Result<()> {
        let kind = manifests::read("crds/trainingjobs.yaml")?.remove(0);
        self.create::<CustomResourceDefinition>(&[kind]).await?;
        let jobs: Api<TrainingJob> = Api::namespaced(self.client.clone(), NAMESPACE);
        until("the API server serves TrainingJobs", SOON, || async {
            Ok(jobs.list(&ListParams::default()).await.ok().map(drop))
        })
        .await
    }

    pub(crate) async fn create<K>(&self, objects: &[serde_json::Value]) -> anyhow::Result<()>
    where
        K: kube::Resource<DynamicType = ()>
            + Clone
            + serde::Serialize
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let created = objects.iter().map(|object| {
            let api = api.clone();
            async move {
                let object = serde_json::from_value(object.clone())?;
                api.create(&PostParams::default(), &object).await?;
                anyhow::Ok(())
            }
        });
        try_join_all(created).await?;
        Ok(())
    }
}
