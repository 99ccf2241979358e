//! A PyTorch script that joins, in real pods. Its container mounts Python, PyTorch and the package
//! from this machine, because an image with them would have gigabytes.

use std::path::{Path, PathBuf};
use std::process::Command;

use roundhouse_contract::labels;
use roundhouse_tests::{local, manifests};
use serde_json::{Value, json};

use super::drill::{Drill, PACE};
use super::fault::Fault;

/// A step takes 50 ms until both faults are over. A process imports PyTorch for seconds.
const STEPS: u64 = 3_000;
const WEIGHTS: &str = "weights.safetensors";

/// The paths of the interpreter, the package and the script on this machine.
struct Script {
    python: PathBuf,
    package: PathBuf,
    file: PathBuf,
}

impl Script {
    fn find() -> Self {
        let variable = |name: &str| PathBuf::from(std::env::var_os(name).unwrap());
        let repository = manifests::repository().canonicalize().unwrap();
        Self {
            python: variable("ROUNDHOUSE_PYTHON"),
            package: variable("PYTHONPATH"),
            file: repository.join("trainer-image/python/tests/scripts/train.py"),
        }
    }

    /// The directories of this machine that the container mounts at the same paths.
    fn directories(&self) -> Vec<PathBuf> {
        let environment = parent(parent(&self.python));
        let real = self.python.canonicalize().unwrap();
        // Distributions keep the dynamic loader and the targets of links in these directories.
        let mut all: Vec<PathBuf> = ["/usr", "/lib", "/lib64"].map(PathBuf::from).into();
        for directory in [
            environment,
            parent(parent(&real)),
            &self.package,
            parent(&self.file),
        ] {
            if !all.iter().any(|known| directory.starts_with(known)) {
                all.push(directory.to_owned());
            }
        }
        all
    }

    fn job(&self) -> Value {
        let mut job = local::job(3, STEPS);
        let spec = job["spec"].as_object_mut().unwrap();
        spec.remove("trainer");
        spec["elastic"]["mode"] = json!("InProcess");
        let directories: Vec<PathBuf> = self.directories();
        let names: Vec<String> = (0..directories.len())
            .map(|at| format!("python-{at}"))
            .collect();
        let places = || names.iter().zip(&directories);
        let volumes =
            places().map(|(name, path)| json!({"name": name, "hostPath": {"path": path}}));
        let mounts =
            places().map(|(name, path)| json!({"name": name, "mountPath": path, "readOnly": true}));
        spec["workers"]["template"] = json!({"spec": {
            "volumes": volumes.collect::<Vec<_>>(),
            "containers": [{
                "name": labels::TRAINER_CONTAINER,
                "image": "localhost/roundhouse-trainer:dev",
                "command": [self.python, self.file, STEPS.to_string(), WEIGHTS],
                "env": [
                    {"name": "ROUNDHOUSE_FAULT_STEP_FILE", "value": PACE},
                    {"name": "PYTHONPATH", "value": self.package},
                    {"name": "SGD", "value": "1"},
                    {"name": "HOME", "value": "/tmp"},
                ],
                "volumeMounts": mounts.collect::<Vec<_>>(),
            }],
        }});
        job
    }

    /// The weights of an undisturbed run in one process.
    fn weights_alone(&self) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let weights = directory.path().join(WEIGHTS);
        let run = Command::new(&self.python)
            .arg(&self.file)
            .arg(STEPS.to_string())
            .arg(&weights)
            .env("SGD", "1")
            .env("OMP_NUM_THREADS", "1")
            .output()
            .unwrap();
        assert!(run.status.success(), "{run:?}");
        std::fs::read(weights).unwrap()
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn script_survives_a_killed_process_and_a_deleted_pod() {
    let script = Script::find();
    let drill = Drill::start_job("e2e-python", script.job()).await;
    let first = drill.trains(3, 0).await;
    let (killed, survivors) = Fault::KillRankZero.victim(&drill.members(first).await);
    Fault::KillRankZero.inject(&drill, &killed).await;
    let second = drill.trains(3, first).await;
    let deleted = survivors[0].clone();
    Fault::Delete.inject(&drill, &deleted).await;
    drill.trains(3, second).await;
    drill.ends_well(1, &survivors[1..]).await;
    let own = std::fs::read(drill.state().join(WEIGHTS)).unwrap();
    drill.differs_by_rounding(&script.weights_alone(), &own, STEPS as f64);
    drill.delete().await;
}
