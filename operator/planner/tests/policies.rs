//! What the operator decides, case by case.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use roundhouse_api::{
    Best, Checkpoint, CheckpointClaim, CheckpointVolume, ConditionType, NetworkPolicyMode,
};
use roundhouse_contract::trainer::{DataFormat, Model, ModelName};
use roundhouse_contract::{BestMetric, Mode};
use roundhouse_planner::testing::{World, raw_job, world};
use roundhouse_planner::{
    Action, DeleteReason, Observed, PlanReason, Pod, PodPhase, Presence, Rejection, Repair,
    WriteBlocked, examine, gpu, plan_refused, plan_rejected, validate,
};

fn creates(actions: &[Action]) -> Vec<(u32, u32)> {
    let created = |action: &Action| match action {
        Action::CreateWorker { index, attempt, .. } => Some((*index, *attempt)),
        _ => None,
    };
    actions.iter().filter_map(created).collect()
}

fn deletes(actions: &[Action]) -> Vec<(&str, DeleteReason)> {
    let deleted = |action| match action {
        &Action::DeletePod {
            ref pod, reason, ..
        } => Some((pod.as_str(), reason)),
        _ => None,
    };
    actions.iter().filter_map(deleted).collect()
}

#[test]
fn a_new_job_gets_its_service_policy_and_all_workers_at_once() {
    let plan = world(2).plan();
    assert_eq!(
        plan.actions[..2],
        [Action::CreateService, Action::CreateNetworkPolicy]
    );
    assert_eq!(creates(&plan.actions), [(0, 0), (1, 0)]);
    assert_eq!(plan.status.front().unwrap().reason, "WaitingForWorkers");
    assert!(plan.status.is_true(ConditionType::Accepted));
}

#[test]
fn generation_1_waits_for_the_last_worker() {
    let mut world = world(2);
    world.settle();
    world.prepared(0);
    world.settle();
    assert_eq!(world.generations(), [0, 0]);
    assert_eq!(
        world.observed.status.front().unwrap().message,
        "1 of 2 workers ready"
    );
    world.prepared(1);
    world.settle();
    assert_eq!(world.generations(), [1, 1]);
    assert_eq!(world.state(), "Training");
}

#[test]
fn a_generation_is_stored_before_any_pod_hears_of_it() {
    let mut world = world(2).lobby();
    let plan = world.plan();
    assert_eq!(plan.reason, PlanReason::RaisingGeneration);
    assert!(plan.actions.is_empty());
    world.carry_out(&plan, usize::MAX);
    assert_eq!(world.plan().reason, PlanReason::IssuingMembership);
}

#[test]
fn a_half_issued_generation_is_issued_to_the_rest() {
    let mut world = world(3).lobby();
    let raise = world.plan();
    world.carry_out(&raise, usize::MAX);
    let issue = world.plan();
    world.carry_out(&issue, 1);
    assert_eq!(world.generations(), [1, 0, 0]);
    world.settle();
    assert_eq!(world.generations(), [1, 1, 1]);
    let places: Vec<_> = world
        .observed
        .pods
        .iter()
        .map(|pod| pod.membership.clone().unwrap())
        .collect();
    assert_eq!(
        places
            .iter()
            .map(|place| place.node_rank)
            .collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert!(
        places
            .iter()
            .all(|place| place.master.address == "10.0.0.0")
    );
}

#[test]
fn a_worker_that_dies_before_it_is_issued_makes_the_number_grow() {
    let mut world = world(2).lobby();
    let raise = world.plan();
    world.carry_out(&raise, usize::MAX);
    world.ends(1, 1, 0);
    world.restarts(1);
    world.prepared(1);
    world.settle();
    assert_eq!(world.generations(), [2, 2]);
    assert_eq!(world.observed.status.incidents.total, 0);
}

#[test]
fn a_failed_pod_is_replaced_by_the_next_attempt() {
    let mut world = world(2).training();
    world.observed.pods[1].phase = PodPhase::Failed;
    let plan = world.plan();
    assert_eq!(creates(&plan.actions), [(1, 1)]);
    assert_eq!(
        deletes(&plan.actions),
        [("digits-worker-1-0", DeleteReason::Replaced)]
    );
}

#[test]
fn a_pod_on_its_way_out_is_replaced_and_not_deleted_again() {
    let mut world = world(2).training();
    world.observed.pods[1].deleting = true;
    let plan = world.plan();
    assert_eq!(creates(&plan.actions), [(1, 1)]);
    assert!(deletes(&plan.actions).is_empty());
}

#[test]
fn of_two_pods_of_one_worker_the_later_attempt_stays() {
    let mut world = world(1).training();
    let later = Pod {
        name: "digits-worker-0-3".into(),
        uid: "x".into(),
        attempt: 3,
        ..world.observed.pods[0].clone()
    };
    world.observed.pods.push(later);
    let plan = world.plan();
    assert_eq!(
        deletes(&plan.actions),
        [("digits-worker-0-0", DeleteReason::Surplus)]
    );
}

#[test]
fn a_strangers_object_of_our_name_is_named_and_nothing_is_touched() {
    let mut world = world(2);
    world.observed.service = Presence::Foreign;
    let plan = world.plan();
    assert_eq!(plan.reason, PlanReason::NameTaken);
    assert!(plan.actions.is_empty());
    assert!(
        plan.status
            .front()
            .unwrap()
            .message
            .contains("Service digits")
    );
    world.settle();
    assert!(world.plan().events.is_empty(), "told once");
}

const fn drifted(repair: Repair) -> Presence {
    Presence::Drifted { version: 7, repair }
}

#[test]
fn what_somebody_changed_of_the_jobs_own_is_mended_and_workers_stay() {
    let mut world = world(2).training();
    let version = 7;
    world.observed.service = drifted(Repair::Now);
    world.observed.network_policy = drifted(Repair::Now);
    let plan = world.plan();
    let repaired = [
        Action::RepairService { version },
        Action::RepairNetworkPolicy { version },
    ];
    assert_eq!(plan.actions, repaired);
    assert_eq!(plan.reason, PlanReason::Training);
    world.job.network_policy = NetworkPolicyMode::None;
    assert_eq!(
        world.plan().actions,
        repaired[..1],
        "that policy is not ours to keep"
    );
    world.settle();
    assert_eq!(world.observed.service, Presence::Ours);
}

#[test]
fn what_somebody_changes_back_is_mended_again_after_a_pause_and_told() {
    let mut world = world(2).training();
    let pause = Duration::from_secs(3);
    world.observed.service = drifted(Repair::Later(pause));
    let plan = world.plan();
    assert_eq!((plan.actions, plan.events), (vec![], vec![]));
    assert_eq!(plan.requeue_after, Some(pause));
    world.observed.service = drifted(Repair::Again);
    let plan = world.plan();
    assert_eq!(plan.actions, [Action::RepairService { version: 7 }]);
    let [told] = plan.events.as_slice() else {
        panic!("{:?}", plan.events);
    };
    assert!(told.message.contains("Service digits"), "{told:?}");
}

#[test]
fn what_somebody_deletes_each_time_is_made_anew_after_a_pause_and_told() {
    let mut world = world(2).training();
    let pause = Duration::from_secs(3);
    let repair = Repair::Later(pause);
    world.observed.network_policy = Presence::Deleted { repair };
    let plan = world.plan();
    assert_eq!((plan.actions, plan.events), (vec![], vec![]));
    assert_eq!(plan.requeue_after, Some(pause));
    let repair = Repair::Again;
    world.observed.network_policy = Presence::Deleted { repair };
    let plan = world.plan();
    assert_eq!(plan.actions, [Action::CreateNetworkPolicy]);
    let [told] = plan.events.as_slice() else {
        panic!("{:?}", plan.events);
    };
    let words = "NetworkPolicy digits was deleted again";
    assert!(told.message.starts_with(words), "{told:?}");
}

#[test]
fn what_the_api_server_refuses_is_told_once() {
    let mut world = world(1);
    let no = WriteBlocked::Refused("no".to_owned());
    let refused =
        |world: &World| plan_refused(&world.plan(), &world.observed.status, &no, world.now);
    let first = refused(&world);
    assert_eq!(first.status.front().unwrap().reason, "Refused");
    let about =
        |plan: &roundhouse_planner::Plan| plan.events.iter().any(|event| event.reason == "Refused");
    assert!(about(&first));
    world.observed.status = first.status;
    let second = refused(&world);
    assert!(!about(&second));
    assert_eq!(second.status, world.observed.status);
}

#[test]
fn a_job_that_is_being_deleted_is_left_to_the_garbage_collector() {
    let mut world = world(2).training();
    world.job.deleting = true;
    world.vanishes(0);
    let plan = world.plan();
    assert!(plan.actions.is_empty() && plan.events.is_empty());
    world.carry_out(&plan, usize::MAX);
    assert_eq!(world.plan().status, world.observed.status, "said once");
}

#[test]
fn a_deleted_job_that_a_finalizer_holds_says_so() {
    for (finalizers, words) in [
        (&["foregroundDeletion"][..], "its pods first"),
        (
            &["example.com/audit", "foregroundDeletion"],
            "example.com/audit",
        ),
    ] {
        let mut world = world(2).training();
        world.job.deleting = true;
        world.job.finalizers = finalizers.iter().map(|it| (*it).to_owned()).collect();
        world.settle();
        let front = world.observed.status.front().unwrap();
        assert_eq!((world.state(), &*front.status), ("Deleting", "True"));
        assert!(front.message.contains(words), "{}", front.message);
    }
    let mut world = world(1);
    world.job.deleting = true;
    world.settle();
    assert_eq!(world.observed.status.front().unwrap().status, "False");
}

fn best_by(metric: BestMetric) -> Checkpoint {
    Checkpoint {
        volume: CheckpointVolume {
            persistent_volume_claim: Some(CheckpointClaim {
                claim_name: "state".into(),
            }),
            ..CheckpointVolume::default()
        },
        every_steps: None,
        every_seconds: None,
        keep: 2,
        best: Some(Best { metric }),
    }
}

#[test]
fn what_an_evaluation_finds_and_a_volume_takes_is_kept() {
    let mut job = raw_job(1);
    job.spec.checkpoint = Some(best_by(BestMetric::Top1));
    job.spec.trainer.as_mut().unwrap().tensorboard = true;
    validate(&job).unwrap();
}

#[test]
fn what_cannot_be_run_is_said_in_one_sentence() {
    type Change = fn(&mut roundhouse_api::TrainingJob);
    let cases: [(&str, Change); 9] = [
        ("metadata.name", |job| {
            job.metadata.name = Some("a.b".into())
        }),
        ("spec.workers.replicas", |job| job.spec.workers.replicas = 0),
        ("spec.trainer.epochs", |job| {
            job.spec.trainer.as_mut().unwrap().epochs = None
        }),
        ("spec.workers.template.spec.hostNetwork", |job| {
            job.spec
                .workers
                .template
                .get_or_insert_default()
                .spec
                .get_or_insert_default()
                .host_network = Some(true);
        }),
        ("spec.workers.template.spec.restartPolicy", |job| {
            job.spec
                .workers
                .template
                .get_or_insert_default()
                .spec
                .get_or_insert_default()
                .restart_policy = Some("Always".into());
        }),
        ("spec.workers.procsPerWorker", |job| {
            job.spec.workers.procs_per_worker = Some(65)
        }),
        ("spec.checkpoint.best.metric", |job| {
            job.spec.checkpoint = Some(best_by(BestMetric::Perplexity));
        }),
        ("spec.checkpoint.best.metric", |job| {
            job.spec.checkpoint = Some(best_by(BestMetric::Top5));
            let trainer = job.spec.trainer.as_mut().unwrap();
            trainer.model = Model::new(ModelName::Gpt2);
            trainer.data.format = DataFormat::Parquet;
        }),
        ("spec.trainer.tensorboard", |job| {
            job.spec.trainer.as_mut().unwrap().tensorboard = true
        }),
    ];
    for (field, change) in cases {
        let mut job = raw_job(1);
        change(&mut job);
        let error = validate(&job).unwrap_err();
        assert_eq!(error.field, field);
        let managed = examine(&job, &gpu::Listed::default(), &[]);
        assert_eq!(managed.refusal.as_ref(), Some(&error));
        let rejection = Rejection::from(error);
        let (mut observed, now) = (Observed::default(), jiff::Timestamp::UNIX_EPOCH);
        let plan = plan_rejected(&managed.job, &rejection, &observed, now);
        assert_eq!(plan.status.front().unwrap().reason, "InvalidSpec");
        assert_eq!((plan.actions.len(), plan.events.len()), (0, 1));
        observed.status = plan.status;
        let again = plan_rejected(&managed.job, &rejection, &observed, now);
        assert_eq!((again.events.len(), again.status), (0, observed.status));
    }
}

#[test]
fn a_script_of_ones_own_chooses_its_best_checkpoint_itself() {
    let mut job = raw_job(1);
    job.spec.trainer = None;
    job.spec.elastic.mode = Mode::Restart;
    job.spec.workers.template = serde_json::from_value(serde_json::json!({"spec": {"containers": [
        {"name": "trainer", "image": "script", "command": ["train"]}]}}))
    .unwrap();
    validate(&job).unwrap();
    job.spec.checkpoint = Some(best_by(BestMetric::Loss));
    assert_eq!(validate(&job).unwrap_err().field, "spec.checkpoint.best");
}

#[test]
fn processes_are_as_many_as_gpus() {
    let mut job = raw_job(1);
    job.spec.workers.template = serde_json::from_value(serde_json::json!({"spec": {"containers": [
        {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 8}}}]}}))
    .unwrap();
    assert_eq!(validate(&job).unwrap().procs_per_worker, 8);
}
