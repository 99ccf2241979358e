//! Scripts with PyTorch that tests run as jobs, in the local executor and on a cluster.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::local;
use crate::manifests::repository;

const WEIGHTS: &str = "weights.safetensors";

/// A script with its interpreter and its variables.
#[derive(Clone, Debug)]
pub struct Script {
    /// The Python interpreter of an environment with PyTorch.
    pub python: PathBuf,
    /// The file of the script.
    pub file: PathBuf,
    /// Environment variables of the script.
    pub variables: Vec<(&'static str, String)>,
    /// The command line arguments of the script.
    pub arguments: Vec<String>,
    /// The file in which the script saves its weights, in the directory of the job's checkpoints.
    pub weights: &'static str,
    /// The processes of a worker that hold one copy of the model. None: each process has its own.
    pub replica: Option<u32>,
}

impl Script {
    /// A small network on points, which each process has as a whole.
    ///
    /// # Errors
    /// `ROUNDHOUSE_PYTHON` is not set.
    pub fn whole(steps: u64) -> anyhow::Result<Self> {
        Ok(Self {
            python: interpreter("ROUNDHOUSE_PYTHON")?,
            file: file("tests/scripts/train.py")?,
            variables: vec![("SGD", "1".to_owned())],
            arguments: vec![steps.to_string(), WEIGHTS.to_owned()],
            weights: WEIGHTS,
            replica: None,
        })
    }

    /// A small GPT in 64 bits. Two processes of each worker share it with FSDP2.
    ///
    /// # Errors
    /// `ROUNDHOUSE_PYTHON` is not set.
    pub fn sharded(steps: u64) -> anyhow::Result<Self> {
        Ok(Self {
            file: file("tests/scripts/gpt.py")?,
            variables: Vec::new(),
            replica: Some(2),
            ..Self::whole(steps)?
        })
    }

    /// A GPT-2 in 64 bits, which the Trainer of transformers trains on sentences of different
    /// lengths.
    ///
    /// # Errors
    /// `ROUNDHOUSE_TRANSFORMERS` is not set.
    pub fn fine_tuning(steps: u64) -> anyhow::Result<Self> {
        Ok(Self {
            python: interpreter("ROUNDHOUSE_TRANSFORMERS")?,
            file: file("tests_hf/scripts/fine_tune.py")?,
            variables: vec![
                ("STEPS", steps.to_string()),
                ("RATE", "0.002".to_owned()),
                ("HF_HUB_OFFLINE", "1".to_owned()),
            ],
            // It writes nothing into the first one, the directory of its output.
            arguments: ["none", "result"].map(str::to_owned).into(),
            weights: "model/model.safetensors",
            replica: None,
        })
    }

    /// A job that runs the script in the local executor, with a checkpoint every 50 steps.
    #[must_use]
    pub fn job(&self, workers: u32) -> Value {
        let variables = self.variables.iter();
        let variables = variables.map(|(name, value)| format!("{name}={value}"));
        let mut command: Vec<String> = std::iter::once("env".to_owned()).chain(variables).collect();
        command.extend([&self.python, &self.file].map(|path| path.display().to_string()));
        command.extend_from_slice(&self.arguments);
        let template = json!({"spec": {"containers": [
            {"name": "trainer", "image": "none:1", "command": command},
        ]}});
        let mut job = self.job_of(workers, &template);
        job["spec"]["checkpoint"] =
            json!({"volume": {"hostPath": {"path": "/srv"}}, "everySteps": 50});
        job
    }

    /// A job of the script with this template of its pods.
    #[must_use]
    pub fn job_of(&self, workers: u32, template: &Value) -> Value {
        let mut job = local::job(workers, 1);
        job["spec"]["elastic"]["mode"] = "InProcess".into();
        job["spec"]["workers"]["template"] = template.clone();
        if let Some(processes) = self.replica {
            job["spec"]["workers"]["sharded"] = true.into();
            job["spec"]["workers"]["procsPerWorker"] = processes.into();
        }
        if let Some(spec) = job["spec"].as_object_mut() {
            spec.remove("trainer");
        }
        job
    }

    /// The weights of an undisturbed run in one process, without a job.
    ///
    /// # Errors
    /// The script fails.
    pub fn weights_alone(&self) -> anyhow::Result<Vec<u8>> {
        let directory = tempfile::tempdir()?;
        let run = Command::new(&self.python)
            .arg(&self.file)
            .args(&self.arguments)
            .current_dir(&directory)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .env("OMP_NUM_THREADS", "1")
            .output()?;
        ensure!(run.status.success(), "{run:?}");
        Ok(std::fs::read(directory.path().join(self.weights))?)
    }
}

fn interpreter(variable: &str) -> anyhow::Result<PathBuf> {
    let found = std::env::var_os(variable).map(PathBuf::from);
    found.with_context(|| format!("set {variable}, or run tests/run/python-local, which sets it"))
}

/// A file of the Python package.
fn file(path: &str) -> anyhow::Result<PathBuf> {
    let package = repository().canonicalize()?.join("trainer-image/python");
    Ok(package.join(path))
}
