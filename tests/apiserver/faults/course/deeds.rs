//! What users, workers, kubelets and the garbage collector do in a course.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use roundhouse_contract::termination::Reason;
use serde_json::{Value, json};

use super::Course;
use crate::faults::rest::World;
use crate::faults::scenario::Deed;
use crate::gang::coscheduling;
use crate::stage::{ended, restarted};

impl Course<'_> {
    pub(super) async fn deed(&mut self, deed: Deed) {
        let now = DeleteParams::default().grace_period(0);
        match deed {
            Deed::Create => drop(self.stage.apply(&self.namespace, 2).await),
            Deed::CreateGang => drop(
                self.stage
                    .create(&self.namespace, coscheduling().job(2))
                    .await,
            ),
            Deed::Crash => {
                let (fewest, most) = self.incidents.clone().into_inner();
                self.incidents = fewest + u32::from(!self.is_restored)..=most + 1;
                self.crash("digits-worker-0-0").await;
            }
            Deed::Lose => {
                let pods = self.stage.pods(&self.namespace);
                pods.delete("digits-worker-1-0", &now).await.unwrap();
            }
            Deed::Resize(workers) => self.edit(&json!({"workers": {"replicas": workers}})).await,
            Deed::Suspend(suspend) => self.edit(&json!({"suspend": suspend})).await,
            Deed::Complete => self.is_ending = true,
            Deed::DeleteAndCreate => {
                let jobs = self.stage.jobs(&self.namespace);
                jobs.delete("digits", &now).await.unwrap();
                self.stage.apply(&self.namespace, 2).await;
            }
            Deed::Expire => self.edit(&json!({"ttlSecondsAfterFinished": 0})).await,
        }
    }

    async fn edit(&self, spec: &Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        let jobs = self.stage.jobs(&self.namespace);
        jobs.patch("digits", &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    async fn crash(&self, name: &str) {
        let pods = self.stage.pods(&self.namespace);
        let pod = pods.get(name).await.unwrap();
        self.tell(&pod, &ended(&pod, 1, Reason::Crashed)).await;
    }

    async fn tell(&self, pod: &Pod, status: &Value) {
        let pods = self.stage.pods(&self.namespace);
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(status));
        // It may have been deleted in this moment.
        let _ = pods
            .patch_status(&pod.name_any(), &parameters, &patch)
            .await;
    }

    /// What kubelets and the garbage collector do once.
    pub(super) async fn others_work(&self, world: &World) {
        world.collect_garbage(self.stage, &self.namespace).await;
        for pod in &world.pods {
            if let Some(status) = restarted(pod) {
                self.tell(pod, &status).await;
            }
        }
        let status = world.job.status.as_ref();
        let trains = status.is_some_and(|status| status.state() == "Training");
        let end = (self.is_ending && trains).then_some((0, Reason::Completed));
        self.stage.kubelet(&self.namespace, end).await;
    }
}
