//! Fixtures that read like sentences: `world(2).lobby().issued()`. The job of a fixture passes
//! through the real validation, and its world answers a plan as a cluster would.

use jiff::Timestamp;
use roundhouse_api::{Gang, TrainingJob};
use roundhouse_contract::{BuiltFrom, Mode, names};

use crate::group::{ObservedGroup, PodGroup};
use crate::observed::{Observed, Pod, Presence};
use crate::plan::{Action, Plan};
use crate::rejection::{Rejection, RejectionReason};
use crate::status;
use crate::validate::{ValidatedJob, validate};
use crate::{plan, plan_rejected};

mod checkpoints;
mod pods;

/// A raw job with this number of workers.
#[must_use]
pub fn raw_job(workers: u32) -> TrainingJob {
    let job = serde_json::json!({
        "apiVersion": "roundhouse.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "digits", "namespace": "ml", "uid": "job-uid", "generation": 1},
        "spec": {
            "workers": {"replicas": workers},
            "trainer": {
                "model": {"name": "mlp"}, "data": {"format": "idx"},
                "globalBatchSize": 8, "epochs": 1,
            },
        },
    });
    match serde_json::from_value(job) {
        Ok(job) => job,
        Err(error) => unreachable!("the fixture is a job: {error}"),
    }
}

/// A raw job with this number of workers that run their own command.
#[must_use]
pub fn raw_script_job(workers: u32) -> TrainingJob {
    let job = serde_json::json!({
        "apiVersion": "roundhouse.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "gpt", "namespace": "ml", "uid": "job-uid", "generation": 1},
        "spec": {
            "elastic": {"mode": "Restart"},
            "workers": {"replicas": workers, "template": {"spec": {"containers": [
                {"name": "trainer", "image": "pytorch:2", "command": ["python"], "args": ["train.py"]},
            ]}}},
        },
    });
    match serde_json::from_value(job) {
        Ok(job) => job,
        Err(error) => unreachable!("the fixture is a job: {error}"),
    }
}

/// A raw job with this number of workers that run a script which joins.
#[must_use]
pub fn raw_joining_job(workers: u32) -> TrainingJob {
    let mut job = raw_script_job(workers);
    job.spec.elastic.mode = Mode::InProcess;
    job
}

/// A raw job with this number of workers and a gang scheduler.
#[must_use]
pub fn raw_gang_job(workers: u32, gang: Gang) -> TrainingJob {
    let mut job = raw_job(workers);
    job.spec.scheduling.gang = gang;
    job
}

/// The operator's trainer image in a new [`World`].
pub const TRAINER_IMAGE: &str = "trainer:1";

/// A cluster with one job, as a plan sees it.
#[derive(Clone, Debug)]
pub struct World {
    pub job: ValidatedJob,
    /// The observed state of the job.
    pub observed: Observed,
    pub now: Timestamp,
    /// Why the job is not accepted, if it is not.
    pub rejection: Option<Rejection>,
    /// Whether deleted pods stay in termination, as on a lost node.
    pub lingering: bool,
    /// The operator's trainer image.
    pub trainer_image: String,
    /// Counter for UIDs and resource versions.
    counter: u32,
}

/// A new job with this number of workers, without objects.
#[must_use]
pub fn world(workers: u32) -> World {
    world_of(&raw_job(workers))
}

/// A new job of a script with this number of workers, without objects.
#[must_use]
pub fn script_world(workers: u32) -> World {
    world_of(&raw_script_job(workers))
}

/// A new job as it was applied, without objects.
///
/// # Panics
/// The function panics if the job is invalid.
#[must_use]
pub fn world_of(raw: &TrainingJob) -> World {
    let job = match validate(raw) {
        Ok(job) => job,
        Err(error) => unreachable!("the fixture is valid: {error}"),
    };
    World {
        job,
        observed: Observed {
            fresh: true,
            nonce: "0".repeat(32),
            ..Observed::default()
        },
        now: Timestamp::UNIX_EPOCH,
        rejection: None,
        lingering: false,
        trainer_image: TRAINER_IMAGE.to_owned(),
        counter: 0,
    }
}

impl World {
    /// The plan for now.
    #[must_use]
    pub fn plan(&self) -> Plan {
        match &self.rejection {
            None => plan(&self.job, &self.observed, self.now),
            Some(rejection) => plan_rejected(&self.job, rejection, &self.observed, self.now),
        }
    }

    /// Refuses the spec from now on.
    pub fn is_rejected(&mut self, message: &str) {
        self.rejection = Some(Rejection {
            reason: RejectionReason::InvalidSpec,
            message: message.to_owned(),
        });
    }

    /// Carries out the first `actions` actions of the plan, and stores the status if all of
    /// them were carried out.
    pub fn carry_out(&mut self, plan: &Plan, actions: usize) {
        for action in plan.actions.iter().take(actions) {
            self.act(action);
        }
        if actions >= plan.actions.len() {
            self.observed.status = plan.status.clone();
        }
    }

    /// Plans and carries out until nothing changes; returns the last plan.
    ///
    /// # Panics
    /// The method panics if 20 plans in a row change the world.
    pub fn settle(&mut self) -> Plan {
        for _ in 0..20 {
            let plan = self.plan();
            if plan.actions.is_empty() && plan.status == self.observed.status {
                return plan;
            }
            self.carry_out(&plan, usize::MAX);
        }
        unreachable!("the plans never settle: {:?}", self.plan());
    }

    /// Applies one write as the API server would. Returns false, and changes nothing, if a
    /// precondition of the write fails.
    pub fn act(&mut self, action: &Action) -> bool {
        match action {
            Action::CreateService | Action::RepairService { .. } => {
                self.observed.service = Presence::Ours;
            }
            Action::CreateNetworkPolicy | Action::RepairNetworkPolicy { .. } => {
                self.observed.network_policy = Presence::Ours;
            }
            Action::ApplyPodGroup {
                gang: _,
                number,
                group,
                uid,
            } => {
                return self.apply_group(*number, group, uid.as_deref());
            }
            Action::DeletePodGroup {
                gang: _,
                number,
                uid,
            } => {
                if !self.has_group(*number, Some(uid)) {
                    return false;
                }
                *self.group_mut(*number) = ObservedGroup::Missing;
            }
            Action::CreateWorker {
                index,
                attempt,
                replica,
                gang,
                avoid: _,
                lost: _,
                built_like,
            } => {
                let place = (*replica, *gang);
                return self.create(*index, *attempt, place, built_like.as_ref());
            }
            Action::IssueMembership {
                pod,
                resource_version,
                membership,
                earlier,
            } => {
                let place = Some(membership.clone());
                return self.patch(pod, resource_version, |pod| {
                    pod.membership = place;
                    pod.earlier.clone_from(earlier);
                });
            }
            Action::PlaceInReplica {
                pod,
                resource_version,
                place,
            } => {
                let place = Some(place.clone());
                return self.patch(pod, resource_version, |pod| pod.replica = place);
            }
            Action::PairCopies {
                pod,
                resource_version,
                pair,
            } => {
                return self.patch(pod, resource_version, |pod| pod.copies.clone_from(pair));
            }
            Action::EndGroup {
                pod,
                resource_version,
            } => return self.patch(pod, resource_version, |pod| pod.ends_group = true),
            Action::LeaveDomain {
                pod,
                resource_version,
            } => return self.patch(pod, resource_version, |pod| pod.left_domain = true),
            Action::LabelReplica {
                pod,
                resource_version,
                replica,
            } => {
                return self.patch(pod, resource_version, |pod| pod.replica_label = *replica);
            }
            Action::DeletePod {
                pod,
                uid,
                resource_version,
                reason: _,
            } => return self.delete(pod, uid, resource_version.as_deref()),
            Action::DeleteJob {
                uid,
                resource_version,
            } => {
                let is_it = *uid == self.job.identity.uid;
                if !is_it || *resource_version != self.observed.resource_version {
                    return false;
                }
                self.job.deleting = true;
            }
        }
        true
    }

    /// Changes the pod of this name, if it is still at this version.
    fn patch(&mut self, name: &str, version: &str, change: impl FnOnce(&mut Pod)) -> bool {
        let fresh = self.next();
        let mut pods = self.observed.pods.iter_mut();
        let found = pods.find(|pod| pod.name == name && pod.resource_version == version);
        let Some(found) = found else { return false };
        change(found);
        found.resource_version = fresh;
        true
    }

    fn delete(&mut self, name: &str, uid: &str, version: Option<&str>) -> bool {
        let gone_by = Timestamp::from_second(self.now.as_second() + 30).ok();
        let is_it = |pod: &Pod| {
            let is_version = version.is_none_or(|version| pod.resource_version == version);
            pod.name == name && pod.uid == uid && is_version
        };
        if !self.observed.pods.iter().any(is_it) {
            return false;
        }
        if !self.lingering {
            self.observed.pods.retain(|pod| !is_it(pod));
        }
        for pod in self.observed.pods.iter_mut().filter(|pod| is_it(pod)) {
            (pod.deleting, pod.gone_by) = (true, gone_by);
        }
        true
    }

    /// The PodGroup of one of the job's gangs.
    pub fn group_mut(&mut self, gang: u32) -> &mut ObservedGroup {
        if gang == 0 {
            return &mut self.observed.group;
        }
        let others = &mut self.observed.other_groups;
        &mut others.entry(gang).or_default().observed
    }

    /// Whether the PodGroup of a gang has this UID, or is missing for `None`.
    fn has_group(&mut self, gang: u32, expected: Option<&str>) -> bool {
        match self.group_mut(gang) {
            ObservedGroup::Missing => expected.is_none(),
            ObservedGroup::Ours { uid, .. } => expected == Some(uid.as_str()),
            ObservedGroup::Impossible(_)
            | ObservedGroup::Foreign
            | ObservedGroup::ForeignLeaving => false,
        }
    }

    fn apply_group(&mut self, gang: u32, group: &PodGroup, expected: Option<&str>) -> bool {
        if !self.has_group(gang, expected) {
            return false;
        }
        let uid = expected.map_or_else(|| self.next(), str::to_owned);
        *self.group_mut(gang) = ObservedGroup::Ours {
            uid,
            group: group.clone(),
            deleting: false,
        };
        true
    }

    fn create(
        &mut self,
        index: u32,
        attempt: u32,
        (replica, gang): (Option<u32>, u32),
        built_like: Option<&BuiltFrom>,
    ) -> bool {
        let name = names::worker_pod(&self.job.identity.name, index, attempt);
        if self.observed.pods.iter().any(|pod| pod.name == name) {
            return false;
        }
        let (uid, resource_version) = (self.next(), self.next());
        let index = Some(index);
        let pod = Pod {
            name,
            uid,
            resource_version,
            ours: true,
            index,
            attempt,
            replica_label: replica,
            gang,
            created_at: Some(self.now),
            built_from: Some(BuiltFrom {
                job_generation: self.job.generation,
                spec: self.job.built_from.clone(),
                spec_version: BuiltFrom::SPEC_VERSION,
                trainer_image: built_like
                    .map_or(&self.trainer_image, |record| &record.trainer_image)
                    .clone(),
                procs_per_worker: Some(self.job.procs_per_worker),
                expected_device: Some(
                    self.job
                        .expected_device
                        .map_or_else(String::new, |device| device.to_string()),
                ),
                trainer_architecture: None,
                fixed_users: None,
                named_nodes: Vec::new(),
            }),
            ..Pod::default()
        };
        self.observed.pods.push(pod);
        true
    }

    fn next(&mut self) -> String {
        self.counter += 1;
        self.counter.to_string()
    }

    fn change(&mut self, at: usize, change: impl FnOnce(&mut Pod)) {
        let version = self.next();
        if let Some(pod) = self.observed.pods.get_mut(at) {
            change(pod);
            pod.resource_version = version;
        }
    }

    /// Moves the clock forward by some seconds.
    pub fn seconds_pass(&mut self, seconds: i64) {
        let later = self.now.as_second() + seconds;
        self.now = Timestamp::from_second(later).unwrap_or(self.now);
    }

    /// All pods are created and prepared, but no generation is planned yet.
    #[must_use]
    pub fn lobby(mut self) -> Self {
        self.settle();
        for at in 0..self.observed.pods.len() {
            self.prepared(at);
        }
        self
    }

    #[must_use]
    pub fn training(self) -> Self {
        let mut world = self.lobby();
        world.settle();
        world
    }

    /// Number of the newest generation; 0 before the first.
    #[must_use]
    pub fn generation(&self) -> u64 {
        let newest = self.observed.status.membership.as_ref();
        newest.map_or(0, |newest| newest.generation)
    }

    /// Generations of the documents that pods hold.
    #[must_use]
    pub fn generations(&self) -> Vec<u64> {
        let pods = self.observed.pods.iter();
        pods.map(|pod| pod.membership.as_ref().map_or(0, |m| m.generation))
            .collect()
    }

    /// The `state` of the stored status.
    #[must_use]
    pub fn state(&self) -> &str {
        self.observed.status.state.as_deref().unwrap_or_default()
    }

    /// The clock as the status writes it.
    #[must_use]
    pub fn time(&self) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Time {
        status::time(self.now)
    }
}
