//! The trainer program and the job of a local run.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

use crate::manifests::repository;

/// The folder of the compiled programs, which `ROUNDHOUSE_PROGRAMS` names.
///
/// # Errors
/// `ROUNDHOUSE_PROGRAMS` is not set.
pub fn programs() -> anyhow::Result<PathBuf> {
    let dir = std::env::var_os("ROUNDHOUSE_PROGRAMS");
    dir.map(PathBuf::from).context(
        "ROUNDHOUSE_PROGRAMS is not set: run this test with tests/run/local, which sets it",
    )
}

/// A trainer and the data that it trains on.
#[derive(Clone, Debug)]
pub struct Program {
    /// The path of the trainer program.
    pub trainer: PathBuf,
    /// The directory of the data set.
    pub data: PathBuf,
}

impl Program {
    /// The built-in trainer with the digits of examples/data.
    ///
    /// # Errors
    /// The errors of [`programs`].
    pub fn built_in() -> anyhow::Result<Self> {
        Ok(Self {
            trainer: programs()?.join("roundhouse-train"),
            data: repository().join("examples/data/digits"),
        })
    }

    /// The built-in trainer with tokens for language models, which it writes to a directory. Tokens
    /// are below 64.
    ///
    /// # Errors
    /// The errors of [`programs`], and of writing.
    pub fn on_tokens(directory: &Path) -> anyhow::Result<Self> {
        for (name, number) in [("train.bin", 4_000_u32), ("val.bin", 400)] {
            let tokens = (0..number).map(|place| u16::try_from(place * place % 61));
            let tokens: Vec<u16> = tokens.collect::<Result<_, _>>()?;
            let bytes: Vec<u8> = tokens.into_iter().flat_map(u16::to_le_bytes).collect();
            std::fs::write(directory.join(name), bytes)?;
        }
        Ok(Self {
            data: directory.to_owned(),
            ..Self::built_in()?
        })
    }
}

/// A job that trains a small network on the digits. Tests change the fields that they are about.
#[must_use]
pub fn job(workers: u32, steps: u64) -> Value {
    json!({
        "apiVersion": "roundhouse.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "digits"},
        "spec": {
            "workers": {"replicas": workers, "minReplicas": 1},
            // Training starts when all workers are ready.
            "elastic": {"joinWindowSeconds": 60},
            "trainer": {
                "model": {"name": "mlp", "hidden": [32]},
                "data": {"format": "idx"},
                "optimizer": {"name": "sgd", "learningRate": 0.05, "momentum": 0.9},
                "globalBatchSize": 64,
                "steps": steps,
                "seed": 7,
            },
        },
    })
}
