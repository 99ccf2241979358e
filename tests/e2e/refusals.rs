//! Invalid jobs that the API server refuses by the CRD's rules, with a message that names the
//! field.

use roundhouse_tests::cluster::TestNamespace;
use roundhouse_tests::manifests;
use serde_json::{Value, json};

type Change = fn(&mut Value);

#[tokio::test(flavor = "multi_thread")]
async fn invalid_spec_is_refused_with_field_and_advice() {
    let space = TestNamespace::create("e2e-refused", false).await.unwrap();
    let good = manifests::read("examples/digits.yaml").unwrap().remove(0);
    let cases: [(&str, Change); 10] = [
        ("at most 44 characters", |job| {
            job["metadata"]["name"] = json!("9.digits")
        }),
        ("spec.workers.replicas", |job| {
            job["spec"]["workers"]["replicas"] = json!(0)
        }),
        ("spec.workers.replicas", |job| {
            job["spec"]["workers"]["replicas"] = json!("two")
        }),
        ("exactly one of trainer.epochs", |job| {
            job["spec"]["trainer"]["steps"] = json!(5)
        }),
        ("model.hidden is for an mlp", |job| {
            job["spec"]["trainer"]["model"]["hidden"] = json!([5])
        }),
        ("spec.trainer.model.name", |job| {
            job["spec"]["trainer"]["model"]["name"] = json!("vgg")
        }),
        ("spec.trainer.globalBatchSize", |job| {
            job["spec"]["trainer"]["globalBatchSize"] = json!(-1)
        }),
        ("learningRate must be above 0", |job| {
            job["spec"]["trainer"]["optimizer"]["learningRate"] = json!(0);
        }),
        ("must not contain '..'", |job| {
            job["spec"]["trainer"]["data"]["path"] = json!("../etc")
        }),
        ("exactly one of data.volume", |job| {
            job["spec"]["trainer"]["data"]["volume"] = json!({})
        }),
    ];
    for (expected, change) in cases {
        let mut job = good.clone();
        change(&mut job);
        let error = space.create_object(&job).await.unwrap_err();
        let kube::Error::Api(status) = &error else {
            panic!("{expected}: {error}")
        };
        assert_eq!(status.code, 422, "{expected}: {error}");
        assert!(
            status.message.contains(expected),
            "{expected}: {}",
            status.message
        );
    }
    space.delete().await.unwrap();
}
