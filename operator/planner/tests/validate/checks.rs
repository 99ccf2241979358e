//! Invalid values are refused with the name of their field.

use roundhouse_api::{
    Best, Checkpoint, CheckpointClaim, CheckpointVolume, CopyMedium, LocalCopies, TrainingJob,
};
use roundhouse_contract::trainer::{DataFormat, Model, ModelName};
use roundhouse_contract::{BestMetric, Mode};
use roundhouse_planner::testing::raw_job;
use roundhouse_planner::{Observed, Rejection, gpu, plan_rejected, validate, validate_with};

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
        local: None,
    }
}

#[test]
fn best_checkpoint_and_tensorboard_are_accepted() {
    let mut job = raw_job(1);
    job.spec.checkpoint = Some(best_by(BestMetric::Top1));
    job.spec.trainer.as_mut().unwrap().tensorboard = true;
    validate(&job).unwrap();
}

#[test]
fn invalid_field_is_named_once() {
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
        let managed = validate_with(&job, &gpu::Listed::default(), &[]);
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

/// A job that keeps local copies. Its trainer container has this memory limit.
fn with_copies(
    size_limit: &str,
    every_steps: u64,
    medium: CopyMedium,
    memory: &str,
) -> TrainingJob {
    let mut job = raw_job(1);
    job.spec.checkpoint = Some(Checkpoint {
        local: Some(LocalCopies {
            every_steps,
            medium,
            peer_copies: None,
            size_limit: size_limit.to_owned(),
        }),
        best: None,
        ..best_by(BestMetric::Loss)
    });
    job.spec.workers.template = serde_json::from_value(serde_json::json!({"spec": {"containers": [
        {"name": "trainer", "resources": {"limits": {"memory": memory}}}]}}))
    .unwrap();
    job
}

#[test]
fn local_copies_must_fit_into_the_memory_limit() {
    let (memory, disk) = (CopyMedium::Memory, CopyMedium::Disk);
    let size = Some("spec.checkpoint.local.sizeLimit");
    let every = Some("spec.checkpoint.local.everySteps");
    for (size_limit, every_steps, medium, limit, field) in [
        ("1Gi", 10, memory, "2Gi", None),
        ("1Gi", 10, memory, "1073741825", None),
        ("1Gi", 10, memory, "1.1e9", None),
        ("1Gi", 10, memory, "2G", None),
        ("1Gi", 10, memory, "1Gi", size),
        ("1Gi", 10, memory, "1G", size),
        ("1Gi", 10, memory, "1024Mi", size),
        ("1Gi", 10, memory, "1073741824000m", size),
        ("1Gi", 10, disk, "1Mi", None),
        ("1.5Gi", 10, memory, "2Gi", size),
        ("0", 10, disk, "2Gi", size),
        ("1Gi", 0, disk, "2Gi", every),
    ] {
        let job = with_copies(size_limit, every_steps, medium, limit);
        let refused = validate(&job).err().map(|error| error.field);
        assert_eq!(refused.as_deref(), field, "{size_limit} {medium:?} {limit}");
    }
}

#[test]
fn at_most_one_other_pod_holds_copies() {
    let field = Some("spec.checkpoint.local.peerCopies");
    for (pods, spares, peer_copies, refused) in [
        (None, 0, 0, None),
        (None, 1, 1, None),
        (Some(1), 0, 1, field),
        (Some(1), 2, 1, None),
        (Some(1), 2, 2, field),
        (Some(2), 0, 0, None),
        (Some(2), 0, 1, None),
        (Some(2), 0, 2, field),
    ] {
        let mut job = with_copies("1Gi", 10, CopyMedium::Memory, "2Gi");
        job.spec.workers.pods_per_replica = pods;
        job.spec.workers.spares = spares;
        let trainer = job.spec.trainer.as_mut().unwrap();
        if pods > Some(1) {
            trainer.parallel =
                serde_json::from_value(serde_json::json!({"shard": "Zero1"})).unwrap();
        }
        let local = job
            .spec
            .checkpoint
            .as_mut()
            .unwrap()
            .local
            .as_mut()
            .unwrap();
        local.peer_copies = Some(peer_copies);
        let found = validate(&job).err().map(|error| error.field);
        assert_eq!(found.as_deref(), refused, "{pods:?} {spares} {peer_copies}");
    }
}

#[test]
fn script_that_restarts_cannot_have_local_copies() {
    let mut job = with_copies("1Gi", 10, CopyMedium::Memory, "2Gi");
    job.spec.trainer = None;
    job.spec.elastic.mode = Mode::Restart;
    let container = &mut job
        .spec
        .workers
        .template
        .as_mut()
        .unwrap()
        .spec
        .as_mut()
        .unwrap()
        .containers[0];
    container.image = Some("script".to_owned());
    container.command = Some(vec!["train".to_owned()]);
    assert_eq!(validate(&job).unwrap_err().field, "spec.checkpoint.local");
    job.spec.elastic.mode = Mode::InProcess;
    validate(&job).unwrap();
}

#[test]
fn script_cannot_have_a_best_checkpoint() {
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
