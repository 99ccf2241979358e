//! An API server with the CRD, an operator that can be stopped after its n-th write, and a kubelet
//! made of status patches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use clap::Parser;
use futures::future::{BoxFuture, FutureExt};
use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::{Binding, Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config, ResourceExt};
use prometheus::Registry;
use roundhouse_api::{ConditionType, TrainingJob};
use roundhouse_contract::{Membership, Progress, TerminationMessage, labels, termination::Reason};
use roundhouse_operator::heard::Patience;
use roundhouse_operator::lead::Terms;
use roundhouse_operator::lost_nodes;
use roundhouse_operator::mended::Pauses;
use roundhouse_operator::run::{RunError, run_with};
use roundhouse_operator::settings::Settings;
use roundhouse_tests::apiserver::ApiServer;
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tower::{Layer, Service};

use crate::network::Network;

pub(crate) const NAMESPACE: &str = "ml";
/// The policy of an operator whose tests are about something else.
const LENIENT: &str = "allow: {hostPaths: [/*]}";
pub(crate) const SOON: Duration = Duration::from_mins(2);

pub(crate) struct Stage {
    pub(crate) server: ApiServer,
    pub(crate) client: Client,
    pub(crate) directory: TempDir,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let server = ApiServer::start(directory.path()).await.unwrap();
        let client = server.client("test").unwrap();
        let stage = Self {
            server,
            client,
            directory,
        };
        for name in [NAMESPACE, "other"] {
            let namespace = json!({"metadata": {"name": name}});
            let namespaces: Api<Namespace> = Api::all(stage.client.clone());
            let namespace = serde_json::from_value(namespace).unwrap();
            namespaces
                .create(&PostParams::default(), &namespace)
                .await
                .unwrap();
        }
        stage.install().await;
        stage
    }

    /// Makes the definition of the TrainingJob, and waits until it is served.
    pub(crate) async fn install(&self) {
        let text = std::fs::read_to_string(
            roundhouse_tests::manifests::repository().join("crds/trainingjobs.yaml"),
        );
        let crd: CustomResourceDefinition = serde_saphyr::from_str(&text.unwrap()).unwrap();
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        crds.create(&PostParams::default(), &crd).await.unwrap();
        until("the kind is served", SOON, || async {
            let jobs = self.jobs(NAMESPACE);
            Ok(jobs.list(&ListParams::default()).await.ok())
        })
        .await
        .unwrap();
    }

    pub(crate) fn jobs(&self, namespace: &str) -> Api<TrainingJob> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The pods that there are now.
    pub(crate) async fn all_pods(&self, namespace: &str) -> Vec<Pod> {
        let all = self.pods(namespace).list(&ListParams::default()).await;
        all.unwrap().items
    }

    /// Their UIDs.
    pub(crate) async fn uids(&self, namespace: &str) -> Vec<Option<String>> {
        let all = self.all_pods(namespace).await;
        all.iter().map(ResourceExt::uid).collect()
    }

    pub(crate) async fn apply(&self, namespace: &str, workers: u32) -> TrainingJob {
        self.create(namespace, job(workers)).await
    }

    pub(crate) async fn create(&self, namespace: &str, job: Value) -> TrainingJob {
        let job = serde_json::from_value(job).unwrap();
        self.jobs(namespace)
            .create(&PostParams::default(), &job)
            .await
            .unwrap()
    }

    pub(crate) async fn job(&self, namespace: &str) -> TrainingJob {
        self.jobs(namespace).get("digits").await.unwrap()
    }

    /// A user's merge patch of the job's spec.
    pub(crate) async fn edit(&self, spec: &Value) -> kube::Result<TrainingJob> {
        let patch = Patch::Merge(json!({"spec": spec}));
        let jobs = self.jobs(NAMESPACE);
        jobs.patch("digits", &PatchParams::default(), &patch).await
    }

    /// Waits until the job's state is this word.
    pub(crate) async fn reaches(&self, namespace: &str, reason: &str) -> TrainingJob {
        let found = until(reason, SOON, || async {
            let job = self.job(namespace).await;
            let status = job.status.as_ref();
            let is = status.and_then(|status| status.state.as_deref()) == Some(reason);
            Ok(is.then_some(job))
        });
        match found.await {
            Ok(job) => job,
            Err(error) => panic!("{error}: {:#?}", self.job(namespace).await.status),
        }
    }

    /// Lets the kubelet work until the job trains.
    pub(crate) async fn trains(&self, namespace: &str) {
        until("the job trains", SOON, || async {
            self.kubelet(namespace, None).await;
            let status = self.job(namespace).await.status.unwrap_or_default();
            Ok(status.is_true(ConditionType::Running).then_some(()))
        })
        .await
        .unwrap();
    }

    /// An operator; `writes`: it is cut off after so many.
    pub(crate) fn operator(&self, writes: Option<u32>) -> Operator {
        self.start(
            LENIENT,
            Network::default(),
            writes,
            Patience::default(),
            &[],
        )
    }

    /// One of several operators.
    pub(crate) fn candidate(&self, terms: Terms) -> Operator {
        self.candidate_through(self.server.config("operator").unwrap(), terms)
    }

    /// One of several operators, which reaches the API server in another way.
    pub(crate) fn candidate_through(&self, config: Config, terms: Terms) -> Operator {
        let lease = ["--lease=roundhouse", "--lease-namespace=ml"];
        self.start_with(
            config,
            LENIENT,
            Network::default(),
            None,
            &lease,
            |settings| {
                settings.lease_terms = terms;
            },
        )
    }

    /// An operator of one namespace that reaches the API server in another way.
    pub(crate) fn operator_through(&self, config: Config, namespace: &str) -> Operator {
        let namespace = format!("--namespace={namespace}");
        let network = Network::default();
        self.start_with(config, LENIENT, network, None, &[&namespace], |_| {})
    }

    /// An operator with other pauses between two mends of one object.
    pub(crate) fn operator_that_mends(&self, pauses: Pauses) -> Operator {
        let config = self.server.config("operator").unwrap();
        let network = Network::default();
        self.start_with(config, LENIENT, network, None, &[], |settings| {
            settings.pauses = pauses;
        })
    }

    /// An operator with other times for nodes that may be lost.
    pub(crate) fn operator_that_doubts(&self, terms: lost_nodes::Terms) -> Operator {
        let config = self.server.config("operator").unwrap();
        let network = Network::default();
        self.start_with(config, LENIENT, network, None, &[], |settings| {
            settings.lost_nodes = terms;
        })
    }

    /// An operator with more arguments.
    pub(crate) fn operator_of(&self, arguments: &[&str]) -> Operator {
        let (network, patience) = (Network::default(), Patience::default());
        self.start(LENIENT, network, None, patience, arguments)
    }

    /// An operator behind a network, with other times for its watches.
    pub(crate) fn operator_behind(&self, network: Network, patience: Patience) -> Operator {
        self.start(LENIENT, network, None, patience, &[])
    }

    /// An operator with an administrator's policy.
    pub(crate) fn operator_with(&self, policy: &str) -> Operator {
        self.start(policy, Network::default(), None, Patience::default(), &[])
    }

    fn start(
        &self,
        policy: &str,
        network: Network,
        writes: Option<u32>,
        patience: Patience,
        more: &[&str],
    ) -> Operator {
        let config = self.server.config("operator").unwrap();
        self.start_with(config, policy, network, writes, more, |settings| {
            settings.patience = patience;
        })
    }

    fn start_with(
        &self,
        config: Config,
        policy: &str,
        network: Network,
        writes: Option<u32>,
        more: &[&str],
        change: impl FnOnce(&mut Settings),
    ) -> Operator {
        // One for each: another operator may read its own in this moment.
        let file = NamedTempFile::new_in(self.directory.path()).unwrap();
        let (_, file) = file.keep().unwrap();
        std::fs::write(&file, policy).unwrap();
        let left = Arc::new(AtomicU32::new(writes.unwrap_or(u32::MAX)));
        let layer = CutOff {
            left: Arc::clone(&left),
        };
        let client = ClientBuilder::try_from(config)
            .unwrap()
            .with_layer(&layer)
            .with_layer(&network)
            .build();
        let file = format!("--policy-file={}", file.display());
        let address = "--http-address=127.0.0.1:0";
        let arguments = [&["roundhouse-operator", address, &file], more].concat();
        let mut settings = Settings::parse_from(arguments);
        change(&mut settings);
        let registry = Registry::new();
        let exposed = registry.clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let stopped = async move {
                let _ = stopped.await;
            };
            run_with(client, settings, exposed, stopped).await
        });
        Operator {
            left,
            network,
            registry,
            stop: Some(stop),
            task,
        }
    }

    /// What the scheduler does: a pod has its node from now on.
    pub(crate) async fn bind(&self, pod: &str, node: &str) {
        let target = json!({"apiVersion": "v1", "kind": "Node", "name": node});
        let binding = json!({"metadata": {"name": pod}, "target": target});
        let binding: Binding = serde_json::from_value(binding).unwrap();
        let body = serde_json::to_vec(&binding).unwrap();
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        let request = kube::core::Request::new(path);
        let request = request.create_subresource("binding", pod, &PostParams::default(), body);
        let bound: kube::Result<Value> = self.client.request(request.unwrap()).await;
        bound.unwrap();
    }

    /// The container of one pod ends.
    pub(crate) async fn ends(&self, name: &str, code: i32, reason: Reason) {
        let pods = self.pods(NAMESPACE);
        let pod = pods.get(name).await.unwrap();
        let patch = Patch::Merge(ended(&pod, code, reason));
        let told = pods
            .patch_status(name, &PatchParams::default(), &patch)
            .await;
        told.unwrap();
    }

    /// What a kubelet would do once: every pod that no gate holds and that has not ended runs and is ready; one that trains
    /// is given its `end`, if there is one.
    pub(crate) async fn kubelet(&self, namespace: &str, end: Option<(i32, Reason)>) {
        for pod in self.all_pods(namespace).await {
            let status = pod.status.clone().unwrap_or_default();
            let trains = pod.annotations().contains_key(labels::MEMBERSHIP);
            let phase = status.phase.as_deref().unwrap_or_default();
            let gates = pod
                .spec
                .as_ref()
                .and_then(|spec| spec.scheduling_gates.as_ref());
            let patch = match (phase, end) {
                _ if gates.is_some_and(|gates| !gates.is_empty()) => continue,
                ("Succeeded" | "Failed", _) => continue,
                (_, Some((code, reason))) if trains => ended(&pod, code, reason),
                ("Running", _) => continue,
                _ => running(&pod),
            };
            let (pods, name) = (self.pods(namespace), pod.name_any());
            let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
            // It may have been deleted in this moment.
            let _ = pods.patch_status(&name, &parameters, &patch).await;
        }
    }
}

pub(crate) fn job(workers: u32) -> Value {
    json!({
        "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {"name": "digits"},
        "spec": {
            "workers": {"replicas": workers},
            "trainer": {
                "model": {"name": "mlp"}, "data": {"format": "idx"},
                "globalBatchSize": 8, "epochs": 1,
            },
        },
    })
}

pub(crate) fn running(pod: &Pod) -> Value {
    let now = jiff::Timestamp::now().to_string();
    json!({"status": {
        "phase": "Running", "podIP": "127.0.0.9",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [container(pod, &json!({"running": {"startedAt": now}}), true)],
    }})
}

pub(crate) fn ended(pod: &Pod, code: i32, reason: Reason) -> Value {
    let place = pod.annotations().get(labels::MEMBERSHIP);
    let place = place.and_then(|text| Membership::parse(text).ok().flatten());
    let progress = Progress {
        step: 9,
        total_steps: 9,
        ..Progress::default()
    };
    let message = TerminationMessage {
        reason,
        rank: place.as_ref().map(|place| place.rank(0)),
        generation: place.map_or(0, |place| place.generation),
        step: 9,
        message: "its words".to_owned(),
        progress: Some(progress),
    };
    let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap();
    let state = json!({"terminated": {
        "exitCode": code, "reason": "Error", "finishedAt": now.to_string(),
        "message": message.to_json().unwrap(),
    }});
    let phase = if code == 0 { "Succeeded" } else { "Running" };
    json!({"status": {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [container(pod, &state, false)],
    }})
}

/// What a kubelet tells once it has started a container again that failed.
pub(crate) fn restarted(pod: &Pod) -> Option<Value> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    let ended = status.state.as_ref()?.terminated.as_ref()?;
    if ended.exit_code == 0 {
        return None;
    }
    let now = jiff::Timestamp::now().to_string();
    Some(json!({"status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": status.name, "image": "i", "imageID": "i", "ready": true,
            "restartCount": status.restart_count + 1, "state": {"running": {"startedAt": now}},
            "lastState": {"terminated": ended}}],
    }}))
}

fn container(pod: &Pod, state: &Value, ready: bool) -> Value {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref());
    let restarts = statuses
        .and_then(|all| all.first())
        .map_or(0, |first| first.restart_count);
    json!({"name": "trainer", "image": "i", "imageID": "i", "ready": ready,
        "restartCount": restarts, "state": state})
}

/// A running operator.
pub(crate) struct Operator {
    left: Arc<AtomicU32>,
    /// Between it and the API server.
    pub(crate) network: Network,
    /// Where its metrics are.
    pub(crate) registry: Registry,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), RunError>>,
}

/// The value of a series as it is exposed, labels in the order of their names; `None` if there is none.
pub(crate) fn metric(registry: &Registry, series: &str) -> Option<f64> {
    roundhouse_operator::metrics::testing::value(registry, series)
}

impl Operator {
    /// The value of one of its series.
    pub(crate) fn metric(&self, series: &str) -> Option<f64> {
        metric(&self.registry, series)
    }

    /// Whether it has made all the writes it was allowed.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }

    /// From now on no write of it arrives, and it gets no answer.
    pub(crate) fn cut_off(&self) {
        self.cut_off_after(0);
    }

    /// So many more writes of it arrive.
    pub(crate) fn cut_off_after(&self, writes: u32) {
        self.left.store(writes, Ordering::SeqCst);
    }

    /// Waits until it ends by itself.
    pub(crate) async fn ends(mut self) -> Result<(), RunError> {
        (&mut self.task).await.unwrap()
    }

    /// As a kill -9: nothing is finished.
    pub(crate) async fn kill(&mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    pub(crate) async fn stop(mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        (&mut self.task).await.unwrap().unwrap();
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let panicked = self.metric("roundhouse_operator_reconciles_total{result=\"Panicked\"}");
        // Whatever the API server does, no reconcile panics.
        if !std::thread::panicking() {
            assert_eq!(panicked, None);
        }
    }
}

/// Lets so many writes through and then none: to the server it looks as if the operator had died.
#[derive(Clone)]
struct CutOff {
    left: Arc<AtomicU32>,
}

impl<S> Layer<S> for CutOff {
    type Service = CutOffService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CutOffService {
            inner,
            left: Arc::clone(&self.left),
        }
    }
}

#[derive(Clone)]
struct CutOffService<S> {
    inner: S,
    left: Arc<AtomicU32>,
}

impl<S, B> Service<Request<Body>> for CutOffService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<B>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_event = request.uri().path().ends_with("/events");
        if *request.method() != Method::GET && !is_event {
            let take = |left: u32| left.checked_sub(1);
            if self
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
                .is_err()
            {
                return std::future::pending().boxed();
            }
        }
        self.inner.call(request).boxed()
    }
}
