//! The first promise on real pods: N workers train exactly what one would.

use roundhouse_api::ConditionType;
use roundhouse_tests::cluster::TestNamespace;
use roundhouse_tests::weights::difference;
use roundhouse_tests::{manifests, nodes};
use serde_json::json;

const STEPS: u32 = 100;
/// Of the largest weight of each tensor.
const TOLERANCE: f32 = 1e-6;

/// Trains in so many workers and returns the weights that rank 0 wrote.
async fn weights(workers: u32, procs: u32) -> Vec<u8> {
    let name = format!("e2e-parity-{workers}x{procs}");
    let space = TestNamespace::create(&name, true).await.unwrap();
    let shared = nodes::shared_directory(&name).unwrap();
    for mut object in manifests::read("examples/digits.yaml").unwrap() {
        if object["kind"] == "TrainingJob" {
            let spec = &mut object["spec"];
            spec["trainer"]["steps"] = json!(STEPS);
            spec["trainer"].as_object_mut().unwrap().remove("epochs");
            spec["workers"] = json!({
                "replicas": workers,
                "procsPerWorker": procs,
                "template": {"spec": {
                    "volumes": [{"name": "out", "hostPath": {"path": shared}}],
                    "containers": [{
                        "name": "trainer",
                        "env": [{"name": "ROUNDHOUSE_SAVE_WEIGHTS", "value": "/out/weights.safetensors"}],
                        "volumeMounts": [{"name": "out", "mountPath": "/out"}],
                    }],
                }},
            });
        }
        space.create_object(&object).await.unwrap();
    }
    space
        .ends("digits", ConditionType::Succeeded)
        .await
        .unwrap();
    space.delete().await.unwrap();
    std::fs::read(shared.join("weights.safetensors")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn three_workers_train_the_weights_of_one() {
    let (one, three) = (weights(1, 1).await, weights(3, 1).await);
    let apart = difference(&one, &three).unwrap();
    println!("the weights differ by {apart:e}");
    assert!(apart <= TOLERANCE, "{apart:e}");
}
