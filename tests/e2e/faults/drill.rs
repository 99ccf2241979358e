//! An elastic job of three workers for a test of one fault. Its steps are slowed down, so that it
//! still trains after the fault.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use roundhouse_api::TrainingJobStatus;
use roundhouse_contract::{Action, Membership, labels};
use roundhouse_elastic::ledger;
use roundhouse_tests::cluster::{DEADLINE, TestNamespace, until};
use roundhouse_tests::{local, manifests, nodes};
use serde_json::{Value, json};

pub(super) const JOB: &str = "digits";
/// The file in pods with the milliseconds that are added to each step.
pub(super) const PACE: &str = "/checkpoints/pace";
/// Milliseconds added to each step until the test waits for the job's end.
const PAUSE: u64 = 50;
/// A generation counts as training after this number of committed steps.
const MIN_STEPS: usize = 5;

/// A running job with its namespace and its shared directory.
pub(super) struct Drill {
    pub(super) space: TestNamespace,
    pub(super) spec: Value,
    shared: PathBuf,
    newest: AtomicU64,
}

impl Drill {
    /// Applies the job. With `spread`, each of its workers runs on another node.
    pub(super) async fn start(name: &str, steps: u64, spread: bool) -> Self {
        Self::start_job(name, Self::digits(steps, spread)).await
    }

    /// The job of [`Self::start`].
    pub(super) fn digits(steps: u64, spread: bool) -> Value {
        let mut job = local::job(3, steps);
        let spec = &mut job["spec"];
        spec["trainer"]["data"]["volume"] = json!({"configMap": {"name": "digits-data"}});
        spec["workers"]["template"] = template(spread);
        job
    }

    /// Applies a job. Its checkpoints and the pace of its steps are on a volume that all nodes
    /// mount.
    pub(super) async fn start_job(name: &str, mut job: Value) -> Self {
        let space = TestNamespace::create(name, true).await.unwrap();
        let shared = nodes::shared_directory(name).unwrap();
        set_pace(&shared, PAUSE);
        job["metadata"]["name"] = json!(JOB);
        let spec = &mut job["spec"];
        spec["elastic"]["joinWindowSeconds"] = json!(5);
        let local = spec["checkpoint"]["local"].take();
        spec["checkpoint"] = json!({"volume": {"hostPath": {"path": shared}}, "everySteps": 50});
        if !local.is_null() {
            spec["checkpoint"]["local"] = local;
        }
        let spec = spec.clone();
        for object in manifests::read("examples/digits.yaml").unwrap() {
            if object["kind"] == "ConfigMap" {
                space.create_object(&object).await.unwrap();
            }
        }
        space.create_object(&job).await.unwrap();
        Self {
            space,
            spec,
            shared,
            newest: AtomicU64::new(0),
        }
    }

    /// Adds this time to each step until the test waits for the job's end.
    pub(super) fn pace(&self, milliseconds: u64) {
        set_pace(&self.shared, milliseconds);
    }

    /// The job's status. Fails if the generation is lower than one that was read before.
    pub(super) async fn status(&self) -> anyhow::Result<TrainingJobStatus> {
        let job = self.space.jobs().get(JOB).await?;
        let status = job.status.unwrap_or_default();
        let now = status.membership.as_ref().map_or(0, |it| it.generation);
        let before = self.newest.fetch_max(now, Ordering::Relaxed);
        ensure!(before <= now, "generation {before} became {now}");
        Ok(status)
    }

    /// Waits until a generation after `after` with this number of workers commits steps, and
    /// returns it.
    pub(super) async fn trains(&self, workers: u32, after: u64) -> u64 {
        let trains = until("the workers train", DEADLINE, || async {
            let status = self.status().await?;
            ensure!(!status.is_terminal(), "the job ended before");
            let membership = status
                .membership
                .filter(|it| it.generation > after && it.nodes == workers);
            let generation = membership.map(|it| it.generation);
            Ok(generation.filter(|it| self.num_committed(*it) >= MIN_STEPS))
        });
        self.or_dump(trains.await).await
    }

    /// The number of steps that a generation has committed so far.
    pub(super) fn num_committed(&self, generation: u64) -> usize {
        let file = self
            .state()
            .join("ledger")
            .join(ledger::file_name(generation));
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().count().saturating_sub(1)
    }

    /// The directory of the job's checkpoints and its ledger.
    pub(super) fn state(&self) -> PathBuf {
        self.shared.join(&self.space.name).join(JOB)
    }

    /// The weights that the trainer wrote when the job completed.
    pub(super) fn weights(&self) -> anyhow::Result<Vec<u8>> {
        std::fs::read(self.shared.join("weights.safetensors")).context("weights.safetensors")
    }

    /// Removes the pause from each later step.
    pub(super) fn train_at_full_speed(&self) {
        set_pace(&self.shared, 0);
    }

    /// All pods with the job's label.
    pub(super) async fn pods(&self) -> anyhow::Result<Vec<Pod>> {
        let selector = ListParams::default().labels(&format!("{}={JOB}", labels::JOB_NAME));
        Ok(self.space.pods().list(&selector).await?.items)
    }

    /// The pods of a generation's members, in the order of their node ranks.
    pub(super) async fn members(&self, generation: u64) -> Vec<Pod> {
        let mut members: Vec<(u32, Pod)> = Vec::new();
        for pod in self.pods().await.unwrap() {
            let document = pod.annotations().get(labels::MEMBERSHIP);
            let document: Option<Membership> =
                document.and_then(|text| serde_json::from_str(text).ok());
            if let Some(document) = document
                && document.generation == generation
                && document.action == Action::Join
            {
                members.push((document.node_rank, pod));
            }
        }
        members.sort_by_key(|(node_rank, _)| *node_rank);
        members.into_iter().map(|(_, pod)| pod).collect()
    }

    /// Waits until a pod is deleted. A new pod may have the same name.
    pub(super) async fn wait_until_gone(&self, pod: &Pod) {
        let name = pod.name_any();
        let what = format!("{name} is gone");
        let gone = until(&what, DEADLINE, || async {
            let found = self.space.pods().get_opt(&name).await?;
            let is_it = found.is_some_and(|found| found.uid() == pod.uid());
            Ok((!is_it).then_some(()))
        });
        self.or_dump(gone.await).await;
    }

    /// Unwraps the result of a wait. On an error it prints the state of the namespace first.
    pub(super) async fn or_dump<T>(&self, awaited: anyhow::Result<T>) -> T {
        if awaited.is_err() {
            println!("{}", self.space.dump().await);
        }
        awaited.unwrap()
    }
}

fn set_pace(shared: &Path, milliseconds: u64) {
    std::fs::write(shared.join("pace"), milliseconds.to_string()).unwrap();
}

/// A pod template that replaces the image's trainer by a build with fault injection, which can slow
/// steps down.
fn template(spread: bool) -> Value {
    let trainer = local::programs().unwrap().join("roundhouse-train");
    let mut template = json!({"spec": {
        "volumes": [{"name": "slow", "hostPath": {"path": trainer, "type": "File"}}],
        "containers": [{
            "name": labels::TRAINER_CONTAINER,
            "env": [
                {"name": "ROUNDHOUSE_FAULT_STEP_FILE", "value": PACE},
                {"name": "ROUNDHOUSE_SAVE_WEIGHTS", "value": "/checkpoints/weights.safetensors"},
            ],
            "volumeMounts": [{
                "name": "slow", "mountPath": "/usr/local/bin/roundhouse-train", "readOnly": true,
            }],
        }],
    }});
    if spread {
        template["spec"]["topologySpreadConstraints"] = json!([{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "nodeTaintsPolicy": "Honor",
            "labelSelector": {"matchLabels": {labels::JOB_NAME: JOB}},
        }]);
    }
    template
}
