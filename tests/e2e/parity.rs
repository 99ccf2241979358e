//! The first promise on real pods: N workers train exactly what one would.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use roundhouse_api::ConditionType;
use roundhouse_tests::cluster::TestNamespace;
use roundhouse_tests::manifests;
use safetensors::SafeTensors;
use serde_json::json;

const STEPS: u32 = 100;
/// Of the largest weight of each tensor.
const TOLERANCE: f32 = 1e-6;

/// Trains in so many workers and returns the weights that rank 0 wrote.
async fn weights(workers: u32, procs: u32) -> Vec<u8> {
    let name = format!("e2e-parity-{workers}x{procs}");
    let space = TestNamespace::create(&name, true).await.unwrap();
    // All nodes of the local cluster see this machine's directories.
    let shared = manifests::repository()
        .canonicalize()
        .unwrap()
        .join("target/cluster/state/volumes")
        .join(&name);
    std::fs::create_dir_all(&shared).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o777)).unwrap();
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
    read(&shared.join("weights.safetensors"))
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

fn floats(data: &[u8]) -> Vec<f32> {
    data.as_chunks::<4>()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn three_workers_train_the_weights_of_one() {
    let (one, three) = (weights(1, 1).await, weights(3, 1).await);
    let one = SafeTensors::deserialize(&one).unwrap();
    let three = SafeTensors::deserialize(&three).unwrap();
    assert!(!one.names().is_empty());
    for (name, tensor) in one.tensors() {
        let (a, b) = (
            floats(tensor.data()),
            floats(three.tensor(&name).unwrap().data()),
        );
        assert_eq!(a.len(), b.len());
        let scale = a
            .iter()
            .fold(0_f32, |largest, value| largest.max(value.abs()));
        let difference = a
            .iter()
            .zip(&b)
            .fold(0_f32, |most, (a, b)| most.max((a - b).abs()));
        println!("{name}: {:e} of the largest weight", difference / scale);
        assert!(
            difference <= TOLERANCE * scale,
            "{name}: {difference:e} of {scale:e}"
        );
    }
}
