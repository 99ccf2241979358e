//! Finished jobs that are deleted after their TTL.

use kube::api::{GetParams, Patch, PatchParams};
use kube::core::request::Request;
use kube::{Resource, ResourceExt};
use roundhouse_api::TrainingJob;
use roundhouse_contract::termination::Reason;
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::environment::{Environment, NAMESPACE, TIMEOUT, job};

async fn completes(env: &Environment, namespace: &str) -> TrainingJob {
    env.run_until_training(namespace).await;
    env.run_kubelet(namespace, Some((0, Reason::Completed)))
        .await;
    env.until_state(namespace, "Completed").await
}

/// Waits until the job has a deletion timestamp. No garbage collector runs here, so the object
/// remains.
async fn until_deleted(env: &Environment, namespace: &str) -> TrainingJob {
    let deleted = until("the job is deleted", TIMEOUT, || async {
        let job = env.job(namespace).await;
        Ok(job.metadata.deletion_timestamp.is_some().then_some(job))
    });
    deleted.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn edited_ttl_deletes_a_finished_job() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 2).await;
    let before = completes(&env, NAMESPACE).await;
    let hour = env.edit(&json!({"ttlSecondsAfterFinished": 3600})).await;
    let generation = hour.unwrap().metadata.generation;
    assert!(generation > before.metadata.generation);
    let kept = until("the edit is observed", TIMEOUT, || async {
        let job = env.job(NAMESPACE).await;
        let observed = job.status.as_ref().and_then(|it| it.observed_generation);
        Ok((observed == generation).then_some(job))
    });
    let kept = kept.await.unwrap();
    assert_eq!(kept.metadata.deletion_timestamp, None);
    let now = env.edit(&json!({"ttlSecondsAfterFinished": 0})).await;
    now.unwrap();
    let deleted = until_deleted(&env, NAMESPACE).await;
    assert_eq!(deleted.finalizers(), ["foregroundDeletion"]);
    operator.stop().await;
}

/// The API server accepts a time that the client library cannot parse. Before the operator deletes
/// a job, it reads the job's metadata.
#[tokio::test(flavor = "multi_thread")]
async fn unparsable_managed_fields_do_not_stop_deletion() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 1).await;
    completes(&env, NAMESPACE).await;
    let jobs = Request::new(TrainingJob::url_path(&(), Some(NAMESPACE)));
    let change = async |patch: Value| -> Value {
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
        let request = jobs.patch("digits", &parameters, &patch).unwrap();
        env.client.request(request).await.unwrap()
    };
    let field = json!({
        "manager": "m", "operation": "Update", "apiVersion": "roundhouse.dev/v1alpha1",
        "time": "9999-12-31T23:59:59Z", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:backoffLimit": {}}},
    });
    change(json!({"metadata": {"managedFields": [field]}})).await;
    let job = change(json!({"spec": {"ttlSecondsAfterFinished": 0}})).await;
    let managed = job["metadata"]["managedFields"].to_string();
    assert!(managed.contains("9999-12-31"), "{managed}");
    until("the job is deleted", TIMEOUT, || async {
        let get = jobs.get("digits", &GetParams::default())?;
        let job: Value = env.client.request(get).await?;
        let deleted = job["metadata"]["deletionTimestamp"].as_str();
        Ok(deleted.is_some().then_some(()))
    })
    .await
    .unwrap();
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_job_of_another_manager_is_kept() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let mut theirs = job(1);
    theirs["spec"]["managedBy"] = json!("kueue.x-k8s.io/multikueue");
    theirs["spec"]["ttlSecondsAfterFinished"] = json!(0);
    env.create(NAMESPACE, theirs).await;
    let long_ago = "2026-01-01T00:00:00Z";
    let succeeded = json!({"type": "Succeeded", "status": "True", "reason": "Completed", "message": "",
        "lastTransitionTime": long_ago});
    let status = json!({"completionTime": long_ago, "conditions": [succeeded]});
    let status = Patch::Merge(json!({"status": status}));
    let (jobs, parameters) = (env.jobs(NAMESPACE), PatchParams::default());
    let written = jobs.patch_status("digits", &parameters, &status).await;
    assert!(written.unwrap().status.unwrap().is_terminal());
    // After the operator has deleted a later job, it has also reconciled the first one.
    let mut ours = job(1);
    ours["spec"]["ttlSecondsAfterFinished"] = json!(0);
    env.create("other", ours).await;
    env.run_until_training("other").await;
    env.run_kubelet("other", Some((0, Reason::Completed))).await;
    until_deleted(&env, "other").await;
    let theirs = env.job(NAMESPACE).await;
    assert_eq!(theirs.metadata.deletion_timestamp, None);
    operator.stop().await;
}

/// Edits an annotation, so that the operator reconciles the job.
async fn touch(env: &Environment) {
    let now = jiff::Timestamp::now().to_string();
    let touched = Patch::Merge(json!({"metadata": {"annotations": {"touched": now}}}));
    let (jobs, parameters) = (env.jobs(NAMESPACE), PatchParams::default());
    let patched = jobs.patch("digits", &parameters, &touched).await;
    patched.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_clock_expires_no_job() {
    const AHEAD: &str = "roundhouse_operator_clock_ahead_seconds";
    const READS: &str =
        "roundhouse_operator_api_calls_total{code=\"200\",resource=\"trainingjobs\",verb=\"get\"}";
    for behind in [90_i32, -90] {
        let env = Environment::new().await;
        let operator = env.operator(None);
        operator.network.set_clock_behind(behind.into());
        let mut short = job(1);
        short["spec"]["ttlSecondsAfterFinished"] = json!(0);
        env.create(NAMESPACE, short).await;
        completes(&env, NAMESPACE).await;
        // The operator compares the clocks when it reads the job. At the second read, all writes of
        // the first reconcile are finished.
        for times in [1.0, 2.0] {
            touch(&env).await;
            until("the operator reads the job", TIMEOUT, || async {
                Ok(operator.metric(READS).filter(|reads| *reads >= times))
            })
            .await
            .unwrap();
        }
        let ahead = operator.metric(AHEAD).unwrap();
        assert!((ahead - f64::from(behind)).abs() < 10.0, "{ahead}");
        let kept = env.job(NAMESPACE).await;
        assert_eq!(kept.metadata.deletion_timestamp, None);

        operator.network.set_clock_behind(0);
        touch(&env).await;
        until_deleted(&env, NAMESPACE).await;
        operator.stop().await;
    }
}
