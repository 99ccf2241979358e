//! What a run with random faults trains: its job, its pace, and how much faults may change its
//! weights.

use std::path::Path;

use roundhouse_tests::local::{LocalRun, Program, job};
use roundhouse_tests::pytorch::Script;
use serde_json::{Value, json};

/// The number of slices limits the number of workers.
const SLICES: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// The built-in trainer: faults change weights by rounding only.
    BuiltIn,
    /// The built-in trainer with slices: weights and losses are equal bit for bit.
    Slices,
    /// The built-in trainer with slices; two processes of each worker divide weights, gradients and
    /// the optimizer's state. Weights are equal bit for bit.
    Divided,
    /// A script that joins.
    Script,
    /// A script in 64 bits whose model two processes of each worker share.
    Sharded,
    /// A script in 64 bits with the Trainer of transformers.
    FineTuning,
}

/// The number of faults, and how many steps they take.
pub(super) struct Pace {
    /// The number of faults, unless a variable says it.
    pub(super) events: u64,
    /// Enough that training outlasts all events.
    pub(super) steps_per_event: u64,
    /// Milliseconds added to each step until all events have occurred.
    pub(super) pause_millis: u64,
    pub(super) steps_per_checkpoint: u64,
    /// Whether half of the events wait for a step: a few events would otherwise all happen to
    /// workers that recover.
    pub(super) waits: bool,
    /// The most workers and spares together.
    pub(super) most_workers: u32,
}

/// Whether the test of the built-in trainer trains the transformer.
pub(super) fn is_gpt2() -> bool {
    std::env::var("ROUNDHOUSE_CHAOS_MODEL").is_ok_and(|model| model == "gpt2")
}

impl Subject {
    pub(super) fn pace(self) -> Pace {
        match self {
            Self::BuiltIn | Self::Slices => Pace {
                events: 100,
                steps_per_event: 20,
                pause_millis: 25,
                steps_per_checkpoint: 50,
                waits: false,
                most_workers: SLICES,
            },
            Self::Divided => Pace {
                events: 20,
                steps_per_event: 20,
                pause_millis: 50,
                steps_per_checkpoint: 50,
                waits: true,
                most_workers: 3,
            },
            // The workers import PyTorch for seconds before the next event can affect them.
            Self::Script => Pace {
                events: 100,
                steps_per_event: 60,
                pause_millis: 25,
                steps_per_checkpoint: 50,
                waits: false,
                most_workers: 4,
            },
            Self::Sharded | Self::FineTuning => Pace {
                events: 8,
                steps_per_event: 15,
                pause_millis: 150,
                steps_per_checkpoint: 10,
                waits: true,
                most_workers: 3,
            },
        }
    }

    /// The largest allowed difference, as a fraction of the largest weight of a tensor.
    pub(super) fn tolerance(self, steps: u64) -> f32 {
        let hundreds = steps as f32 / 100.0;
        match self {
            Self::BuiltIn => 1e-6 * hundreds,
            Self::Slices | Self::Divided => 0.0,
            // The network of the script is smaller, so its rounding differences are smaller, too.
            Self::Script => 1e-7 * hundreds,
            Self::Sharded | Self::FineTuning => 1e-12,
        }
    }

    /// The job with three workers, which every fault may hit.
    pub(super) fn disturbed(self, steps: u64) -> anyhow::Result<Value> {
        let mut job = self.job(3, steps)?;
        job["spec"]["elastic"]["joinWindowSeconds"] = 0.into();
        job["spec"]["failurePolicy"] = json!({"backoffLimit": 10_000});
        Ok(job)
    }

    /// The job in one process.
    pub(super) fn undisturbed(self, steps: u64) -> anyhow::Result<Value> {
        let mut job = self.job(1, steps)?;
        if matches!(self, Self::Sharded | Self::Divided) {
            job["spec"]["workers"]["procsPerWorker"] = 1.into();
        }
        if self == Self::Divided {
            job["spec"]["trainer"]["parallel"] = json!({});
        }
        Ok(job)
    }

    fn job(self, workers: u32, steps: u64) -> anyhow::Result<Value> {
        let script = self.script(steps)?;
        let mut job = script.map_or_else(|| job(workers, steps), |it| it.job(workers));
        if is_gpt2() {
            let trainer = &mut job["spec"]["trainer"];
            trainer["model"] = json!({
                "name": "gpt2", "layers": 1, "heads": 2, "width": 32, "context": 16, "vocabulary": 64, "dropout": 0.1,
            });
            trainer["data"] =
                json!({"format": "tokens", "train": "train.bin", "tokens": {"context": 16}});
            trainer["optimizer"] = json!({"name": "adamw", "learningRate": 0.001});
            trainer["globalBatchSize"] = 8.into();
        }
        if matches!(self, Self::Slices | Self::Divided) {
            job["spec"]["trainer"]["slices"] = SLICES.into();
        }
        if self == Self::Divided {
            job["spec"]["workers"]["procsPerWorker"] = 2.into();
            job["spec"]["trainer"]["parallel"] = json!({"shard": "Zero3"});
        }
        job["spec"]["checkpoint"] = json!({
            "volume": {"hostPath": {"path": "/srv"}},
            "everySteps": self.pace().steps_per_checkpoint,
        });
        Ok(job)
    }

    /// None: the job has the built-in trainer.
    fn script(self, steps: u64) -> anyhow::Result<Option<Script>> {
        Ok(match self {
            Self::BuiltIn | Self::Slices | Self::Divided => None,
            Self::Script => Some(Script::whole(steps)?),
            Self::Sharded => Some(Script::sharded(steps)?),
            Self::FineTuning => Some(Script::fine_tuning(steps)?),
        })
    }

    /// The weights at the end of a run.
    pub(super) fn weights(self, run: &LocalRun, steps: u64) -> anyhow::Result<Vec<u8>> {
        match self.script(steps)? {
            Some(script) => run.result(script.weights),
            None => run.weights(),
        }
    }
}

/// The trainer with its data: the digits, or random tokens in `directory` for the transformer.
pub(super) fn program(directory: &Path) -> anyhow::Result<Program> {
    if is_gpt2() {
        Program::on_tokens(directory)
    } else {
        Program::built_in()
    }
}
