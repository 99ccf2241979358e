//! Checks that must hold at the end of a job after every fault.

use std::ops::RangeInclusive;
use std::process::Command;

use kube::ResourceExt;
use kube::api::DeleteParams;
use roundhouse_api::ConditionType;
use roundhouse_tests::cluster::{DEADLINE, until};
use roundhouse_tests::{local, manifests, weights};

use super::drill::{Drill, JOB};

/// The allowed difference per hundred steps, as a fraction of the largest weight of a tensor.
const TOLERANCE: f32 = 1e-6;

impl Drill {
    /// Waits until the job succeeds, and checks incidents, restarts, ledger and weights. The pods
    /// `survivors` must not have restarted.
    pub(super) async fn succeeds(self, incidents: u32, survivors: &[String]) {
        self.ends_well(incidents, survivors).await;
        self.compare_with_undisturbed_run();
        self.delete().await;
    }

    /// [`Self::succeeds`] with a range of incidents, for faults whose number of incidents depends
    /// on the timing.
    pub(super) async fn succeeds_after(self, incidents: RangeInclusive<u32>, survivors: &[String]) {
        self.ends_well_after(incidents, survivors).await;
        self.compare_with_undisturbed_run();
        self.delete().await;
    }

    /// [`Self::succeeds`] without the comparison of weights. It does not delete the job.
    pub(super) async fn ends_well(&self, incidents: u32, survivors: &[String]) {
        self.ends_well_after(incidents..=incidents, survivors).await;
    }

    async fn ends_well_after(&self, incidents: RangeInclusive<u32>, survivors: &[String]) {
        self.train_at_full_speed();
        let job = self.space.ends(JOB, ConditionType::Succeeded).await;
        let status = job.unwrap().status.unwrap();
        let total = status.incidents.total;
        let last = &status.last_failure;
        assert!(
            incidents.contains(&total),
            "{total} incidents, not {incidents:?}; the last: {last:?}; {status:?}"
        );
        // Reads the status once more to check that the generation has not decreased.
        self.status().await.unwrap();
        self.check_cleanup().await;
        self.check_restarts(survivors).await;
        println!("{}: {}", self.space.name, self.audit());
    }

    /// Deletes the job and its namespace.
    pub(super) async fn delete(self) {
        let all = self.space.jobs();
        all.delete(JOB, &DeleteParams::default()).await.unwrap();
        self.space.delete().await.unwrap();
    }

    async fn check_cleanup(&self) {
        let completed = until("all pods are completed", DEADLINE, || async {
            let pods = self.pods().await?;
            let is_completed = |pod: &k8s_openapi::api::core::v1::Pod| {
                let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
                phase == Some("Succeeded")
            };
            Ok(pods.iter().all(is_completed).then_some(()))
        });
        self.or_dump(completed.await).await;
        let children = self.space.children(JOB).await.unwrap();
        let others = children.iter().filter(|child| !child.starts_with("Pod/"));
        assert_eq!(others.count(), 2, "{children:?}");
    }

    async fn check_restarts(&self, survivors: &[String]) {
        let pods = self.pods().await.unwrap();
        for name in survivors {
            let pod = pods.iter().find(|pod| pod.name_any() == *name);
            let status = pod.and_then(|pod| pod.status.as_ref());
            let containers = status.and_then(|status| status.container_statuses.as_ref());
            let restarts = containers.map(|all| all[0].restart_count);
            assert_eq!(restarts, Some(0), "{name}: {status:?}");
        }
    }

    /// Runs the auditor on the ledger, and returns its report.
    pub(super) fn audit(&self) -> String {
        let trainer = local::programs().unwrap().join("roundhouse-train");
        let audit = Command::new(trainer)
            .arg("audit")
            .arg(self.state())
            .output();
        let audit = audit.unwrap();
        let report = [audit.stdout, audit.stderr].concat();
        let report = String::from_utf8_lossy(&report).into_owned();
        assert!(audit.status.success(), "{report}");
        report
    }

    pub(super) fn compare_with_undisturbed_run(&self) {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("trainer.json");
        let undisturbed = directory.path().join("weights.safetensors");
        let mut trainer = self.spec["trainer"].clone();
        trainer["data"].as_object_mut().unwrap().remove("volume");
        // A single process has no optimizer to share.
        trainer.as_object_mut().unwrap().remove("parallel");
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

    /// Checks that the job's weights differ from those of an undisturbed run by rounding only.
    pub(super) fn differs_by_rounding(&self, expected: &[u8], own: &[u8], steps: f64) {
        let difference = weights::difference(expected, own).unwrap();
        println!("{}: weights differ by {difference:e}", self.space.name);
        assert!(f64::from(difference) <= f64::from(TOLERANCE) * steps / 100.0);
    }
}
