//! The first guarantee on real pods: the weights do not depend on the number of workers.

use roundhouse_api::ConditionType;
use roundhouse_tests::cluster::TestNamespace;
use roundhouse_tests::weights::difference;
use roundhouse_tests::{manifests, nodes};
use serde_json::json;

/// After a few steps the weights differ by rounding only. Later the differences grow by an amount
/// that depends on the processor: a value near 0 before a ReLU can round to the other side.
const FEW: u32 = 10;
/// The largest allowed difference, as a fraction of the largest weight of a tensor.
const TOLERANCE: f32 = 1e-5;
/// With slices the weights are equal bit for bit after any number of steps.
const MANY: u32 = 100;

/// Trains with this number of workers and steps, and returns the weights that rank 0 wrote.
async fn weights(workers: u32, steps: u32, slices: Option<u32>) -> Vec<u8> {
    let name = format!("e2e-parity-{workers}x{steps}");
    let space = TestNamespace::create(&name, true).await.unwrap();
    let shared = nodes::shared_directory(&name).unwrap();
    for mut object in manifests::read("examples/digits.yaml").unwrap() {
        if object["kind"] == "TrainingJob" {
            let spec = &mut object["spec"];
            spec["trainer"]["steps"] = json!(steps);
            if let Some(slices) = slices {
                spec["trainer"]["slices"] = json!(slices);
            }
            spec["trainer"].as_object_mut().unwrap().remove("epochs");
            spec["workers"] = json!({
                "replicas": workers,
                "procsPerWorker": 1,
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
async fn three_workers_train_the_same_weights_as_one() {
    let (one, three) = (weights(1, FEW, None).await, weights(3, FEW, None).await);
    let apart = difference(&one, &three).unwrap();
    println!("the weights differ by {apart:e}");
    assert!(apart <= TOLERANCE, "{apart:e}");
    let slices = Some(4);
    let (one, three) = (
        weights(1, MANY, slices).await,
        weights(3, MANY, slices).await,
    );
    assert!(
        one == three,
        "with slices the weights differ by {:e}",
        difference(&one, &three).unwrap()
    );
}
