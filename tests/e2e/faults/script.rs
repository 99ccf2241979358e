//! PyTorch scripts that join, in real pods. Their container mounts Python, PyTorch and the package
//! from this machine, because an image with them would have gigabytes.

use std::path::{Path, PathBuf};

use roundhouse_contract::labels;
use roundhouse_tests::pytorch::Script;
use roundhouse_tests::weights::difference;
use serde_json::{Value, json};

use super::drill::{Drill, PACE};
use super::fault::Fault;

/// A step takes 50 ms until both faults are over. A process imports PyTorch for seconds.
const STEPS: u64 = 3_000;
/// Six processes compute a step of the sharded script, which takes longer without a pause, too.
const STEPS_OF_SHARDED: u64 = 500;
const PAUSE_OF_SHARDED: u64 = 200;
/// The largest allowed difference in 64 bits, as a fraction of the largest weight of a tensor.
const ROUNDING: f32 = 1e-12;

/// The package on this machine.
fn package() -> PathBuf {
    PathBuf::from(std::env::var_os("PYTHONPATH").unwrap())
}

/// The directories of this machine that the container mounts at the same paths.
fn directories(script: &Script) -> Vec<PathBuf> {
    let (package, real) = (package(), script.python.canonicalize().unwrap());
    // Distributions keep the dynamic loader and the targets of links in these directories.
    let mut all: Vec<PathBuf> = ["/usr", "/lib", "/lib64"].map(PathBuf::from).into();
    for directory in [
        parent(parent(&script.python)),
        parent(parent(&real)),
        &package,
        parent(&script.file),
    ] {
        if !all.iter().any(|known| directory.starts_with(known)) {
            all.push(directory.to_owned());
        }
    }
    all
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap()
}

/// The job with three workers.
fn job(script: &Script) -> Value {
    let directories = directories(script);
    let names: Vec<String> = (0..directories.len())
        .map(|at| format!("python-{at}"))
        .collect();
    let places = || names.iter().zip(&directories);
    let volumes = places().map(|(name, path)| json!({"name": name, "hostPath": {"path": path}}));
    let mounts =
        places().map(|(name, path)| json!({"name": name, "mountPath": path, "readOnly": true}));
    let mut variables = vec![
        json!({"name": "ROUNDHOUSE_FAULT_STEP_FILE", "value": PACE}),
        json!({"name": "PYTHONPATH", "value": package()}),
        json!({"name": "HOME", "value": "/tmp"}),
    ];
    let own = script.variables.iter();
    variables.extend(own.map(|(name, value)| json!({"name": name, "value": value})));
    let mut command = [&script.python, &script.file]
        .map(|path| json!(path))
        .to_vec();
    command.extend(script.arguments.iter().map(|argument| json!(argument)));
    let template = json!({"spec": {
        "volumes": volumes.collect::<Vec<_>>(),
        "containers": [{
            "name": labels::TRAINER_CONTAINER,
            "image": "localhost/roundhouse-trainer:dev",
            "command": command,
            "env": variables,
            "volumeMounts": mounts.collect::<Vec<_>>(),
        }],
    }});
    script.job_of(3, &template)
}

#[tokio::test(flavor = "multi_thread")]
async fn script_survives_a_killed_process_and_a_deleted_pod() {
    let script = Script::whole(STEPS).unwrap();
    let drill = Drill::start_job("e2e-python", job(&script)).await;
    let first = drill.trains(3, 0).await;
    let (killed, survivors) = Fault::KillRankZero.victim(&drill.members(first).await);
    Fault::KillRankZero.inject(&drill, &killed).await;
    let second = drill.trains(3, first).await;
    let deleted = survivors[0].clone();
    Fault::Delete.inject(&drill, &deleted).await;
    drill.trains(3, second).await;
    drill.ends_well(1, &survivors[1..]).await;
    let own = std::fs::read(drill.state().join(script.weights)).unwrap();
    drill.differs_by_rounding(&script.weights_alone().unwrap(), &own, STEPS as f64);
    drill.delete().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sharded_script_survives_a_killed_process_and_a_deleted_pod() {
    let script = Script::sharded(STEPS_OF_SHARDED).unwrap();
    let drill = Drill::start_job("e2e-sharded", job(&script)).await;
    drill.pace(PAUSE_OF_SHARDED);
    drill.loses_a_process_and_a_pod().await;
    let own = std::fs::read(drill.state().join(script.weights)).unwrap();
    let apart = difference(&script.weights_alone().unwrap(), &own).unwrap();
    println!("{}: weights differ by {apart:e}", drill.space.name);
    assert!(apart <= ROUNDING, "{apart:e}");
    drill.delete().await;
}
