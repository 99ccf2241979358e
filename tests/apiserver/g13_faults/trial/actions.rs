//! The actions of users, workers, kubelets and the garbage collector in a trial.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use roundhouse_contract::termination::Reason;
use serde_json::{Value, json};

use super::Trial;
use crate::environment::{ended, job_of_large_replicas, restarted};
use crate::g13_faults::scenario::Action;
use crate::g13_faults::steady_state::ClusterState;
use crate::pod_groups::coscheduling;

impl Trial<'_> {
    pub(super) async fn act(&mut self, action: Action) {
        let now = DeleteParams::default().grace_period(0);
        match action {
            Action::Create => drop(self.env.apply(&self.namespace, 2).await),
            Action::CreateGang => drop(
                self.env
                    .create(&self.namespace, coscheduling().job(2))
                    .await,
            ),
            Action::CreateLargeReplicas => {
                let job = job_of_large_replicas(2);
                drop(self.env.create(&self.namespace, job).await);
            }
            Action::Crash => {
                let (fewest, most) = self.incidents.clone().into_inner();
                self.incidents = fewest + u32::from(!self.is_restored)..=most + 1;
                self.crash("digits-worker-0-0").await;
            }
            Action::Lose => {
                let pods = self.env.pods(&self.namespace);
                pods.delete("digits-worker-1-0", &now).await.unwrap();
            }
            Action::Resize(workers) => self.edit(&json!({"workers": {"replicas": workers}})).await,
            Action::Suspend(suspend) => self.edit(&json!({"suspend": suspend})).await,
            Action::Complete => self.is_ending = true,
            Action::DeleteAndCreate => {
                let jobs = self.env.jobs(&self.namespace);
                jobs.delete("digits", &now).await.unwrap();
                self.env.apply(&self.namespace, 2).await;
            }
            Action::Expire => self.edit(&json!({"ttlSecondsAfterFinished": 0})).await,
        }
    }

    async fn edit(&self, spec: &Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        let jobs = self.env.jobs(&self.namespace);
        jobs.patch("digits", &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    async fn crash(&self, name: &str) {
        let pods = self.env.pods(&self.namespace);
        let pod = pods.get(name).await.unwrap();
        self.set_status(&pod, &ended(&pod, 1, Reason::Crashed))
            .await;
    }

    async fn set_status(&self, pod: &Pod, status: &Value) {
        let pods = self.env.pods(&self.namespace);
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(status));
        // Ignored: the operator may have deleted the pod at the same time.
        let _ = pods
            .patch_status(&pod.name_any(), &parameters, &patch)
            .await;
    }

    /// One pass of the kubelets and the garbage collector.
    pub(super) async fn run_others(&self, cluster: &ClusterState) {
        cluster.collect_garbage(self.env, &self.namespace).await;
        for pod in &cluster.pods {
            if let Some(status) = restarted(pod) {
                self.set_status(pod, &status).await;
            }
        }
        let status = cluster.job.status.as_ref();
        let trains = status.is_some_and(|status| status.state() == "Training");
        let end = (self.is_ending && trains).then_some((0, Reason::Completed));
        self.env.run_kubelet(&self.namespace, end).await;
    }
}
