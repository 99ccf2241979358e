//! What must be true of a drill's end, whatever has happened.

use std::ops::RangeInclusive;
use std::process::Command;

use kube::ResourceExt;
use kube::api::DeleteParams;
use roundhouse_api::ConditionType;
use roundhouse_tests::cluster::{DEADLINE, until};
use roundhouse_tests::{local, manifests, weights};

use super::drill::{Drill, JOB};

/// Of the largest weight of a tensor, for every hundred steps.
const TOLERANCE: f32 = 1e-6;

impl Drill {
    /// Waits for the end and proves what must be true of it; the survivors are pods that never restarted.
    pub(super) async fn succeeds(self, incidents: u32, survivors: &[String]) {
        self.ends_well(incidents, survivors).await;
        self.has_the_weights_of_an_undisturbed_training();
        self.vanishes().await;
    }

    /// The same, with one of so many incidents: how often peers give up before a cause is known depends on the machine.
    pub(super) async fn succeeds_after(self, incidents: RangeInclusive<u32>, survivors: &[String]) {
        self.ends_well_after(incidents, survivors).await;
        self.has_the_weights_of_an_undisturbed_training();
        self.vanishes().await;
    }

    /// The same but for the weights.
    pub(super) async fn ends_well(&self, incidents: u32, survivors: &[String]) {
        self.ends_well_after(incidents..=incidents, survivors).await;
    }

    async fn ends_well_after(&self, incidents: RangeInclusive<u32>, survivors: &[String]) {
        self.hurry();
        let job = self.space.ends(JOB, ConditionType::Succeeded).await;
        let status = job.unwrap().status.unwrap();
        let total = status.incidents.total;
        assert!(incidents.contains(&total), "{incidents:?}: {status:?}");
        // Generations only grow: looked at once more.
        self.status().await.unwrap();
        self.leaves_nothing_behind().await;
        self.did_not_restart(survivors).await;
        println!("{}: {}", self.space.name, self.audit());
    }

    /// Its job and its namespace are deleted.
    pub(super) async fn vanishes(self) {
        let all = self.space.jobs();
        all.delete(JOB, &DeleteParams::default()).await.unwrap();
        self.space.delete().await.unwrap();
    }

    async fn leaves_nothing_behind(&self) {
        let nothing = until("nothing but completed pods is left", DEADLINE, || async {
            let pods = self.pods().await?;
            let completed = |pod: &k8s_openapi::api::core::v1::Pod| {
                let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
                phase == Some("Succeeded")
            };
            Ok(pods.iter().all(completed).then_some(()))
        });
        self.or_dump(nothing.await).await;
        let children = self.space.children(JOB).await.unwrap();
        let others = children.iter().filter(|child| !child.starts_with("Pod/"));
        assert_eq!(others.count(), 2, "{children:?}");
    }

    async fn did_not_restart(&self, survivors: &[String]) {
        let pods = self.pods().await.unwrap();
        for name in survivors {
            let pod = pods.iter().find(|pod| pod.name_any() == *name);
            let status = pod.and_then(|pod| pod.status.as_ref());
            let containers = status.and_then(|status| status.container_statuses.as_ref());
            let restarts = containers.map(|all| all[0].restart_count);
            assert_eq!(restarts, Some(0), "{name}: {status:?}");
        }
    }

    /// The auditor's words on the ledger.
    fn audit(&self) -> String {
        let trainer = local::programs().unwrap().join("roundhouse-train");
        let audit = Command::new(trainer)
            .arg("audit")
            .arg(self.state())
            .output();
        let audit = audit.unwrap();
        let said = [audit.stdout, audit.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(audit.status.success(), "{said}");
        said
    }

    fn has_the_weights_of_an_undisturbed_training(&self) {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("trainer.json");
        let undisturbed = directory.path().join("weights.safetensors");
        let mut trainer = self.spec["trainer"].clone();
        trainer["data"].as_object_mut().unwrap().remove("volume");
        std::fs::write(&config, trainer.to_string()).unwrap();
        let run = Command::new(local::programs().unwrap().join("roundhouse-train"))
            .arg("--config")
            .arg(config)
            .arg("--data-dir")
            .arg(manifests::repository().join("examples/data/digits"))
            .arg("--save-weights")
            .arg(&undisturbed)
            .output()
            .unwrap();
        assert!(run.status.success(), "{run:?}");
        let expected = std::fs::read(undisturbed).unwrap();
        let steps = self.spec["trainer"]["steps"].as_f64().unwrap();
        self.differs_by_rounding(&expected, &self.weights().unwrap(), steps);
    }

    /// The weights of an undisturbed training of so many steps, and its own.
    pub(super) fn differs_by_rounding(&self, expected: &[u8], own: &[u8], steps: f64) {
        let difference = weights::difference(expected, own).unwrap();
        println!("{}: weights differ by {difference:e}", self.space.name);
        assert!(f64::from(difference) <= f64::from(TOLERANCE) * steps / 100.0);
    }
}
