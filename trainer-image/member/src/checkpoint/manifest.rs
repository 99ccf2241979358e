//! `manifest.json`: what a checkpoint holds, and how to tell that it still does.

use std::collections::BTreeMap;
use std::path::Path;

use roundhouse_elastic::best::Scores;
use roundhouse_elastic::ledger::{Head, RunIdentity};
use roundhouse_elastic::{
    BatchPace, Chain, CheckpointId, Claim, Digest, Line, LossScale, Origin, Skips, TrainingPosition,
};
use serde::{Deserialize, Serialize};

use super::error::steadily;
use super::{Reason, VolumeError};
use crate::faults;
use crate::state::Table;

/// Version of the format. What changes its meaning gets another one.
pub const SCHEMA_VERSION: u32 = 1;
/// Name of the manifest in the checkpoint's directory.
pub const FILE: &str = "manifest.json";
/// Name of the manifest that is about to replace it.
pub const DRAFT: &str = "manifest.json.partial";
/// Between the items of a setting that is a list.
const LIST_SEPARATOR: &str = "; ";
/// A larger file is not a manifest.
const MAX_BYTES: u64 = 1 << 30;

/// Everything about a checkpoint but its tensors' bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// See [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// When it was saved, RFC 3339.
    pub saved_at: String,
    /// Generation that committed its last step; in checkpoints of earlier versions, the generation that saved it.
    pub generation: u64,
    /// Committed steps.
    pub step: u64,
    /// Epoch of the next step, from 0.
    pub epoch: u64,
    /// Samples of that epoch that committed steps have consumed.
    pub cursor: u64,
    /// How large steps were and where the rate came from, if the batch follows the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<BatchPace>,
    /// Steps that were committed without an update.
    #[serde(default, skip_serializing_if = "Skips::is_none")]
    pub skips: Skips,
    /// What the loss of the next step was to be multiplied by, if it was scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// What an evaluation of this state found, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scores: Option<Scores>,
    /// Parts that it consists of: one of each rank that wrote it, or those of a process that wrote all of it.
    pub world_size: u32,
    /// What training it belongs to.
    pub training: Identity,
    /// Hash of [`Self::training`] and the tensors' names, types and shapes.
    pub config_hash: Digest,
    /// Where the ledger was.
    pub ledger: Head,
    /// The end of the ledger, if it was not known that a file of the ledger has it: whoever saves alone has no rank 0
    /// that writes the ledger. The next generation begins its file with these lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<Tail>,
    /// All tensors, in the order of their bytes.
    pub tensors: Table,
    /// The parts, by rank.
    pub shards: Vec<Shard>,
}

/// The last lines of a ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tail {
    /// The line before them, which a file of the ledger has.
    pub after: Head,
    /// The lines.
    pub lines: Vec<Line>,
}

/// What has to be equal for a state to be gone on with, apart from the tensors' shapes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Kind of model, as the configuration calls it.
    pub model: String,
    /// Kind of optimizer, as the configuration calls it.
    pub optimizer: String,
    /// Samples of the data, samples per step, seed, and how many steps are meant to be done. The
    /// last of these may change.
    #[serde(rename = "course")]
    pub run: RunIdentity,
    /// What else of the configuration changes what is computed and no tensor's shape, such as the heads of a
    /// transformer: fields with their values in words. One that is not in a checkpoint was written by an older program,
    /// and is not compared.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

/// One rank's part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shard {
    /// Its file in the checkpoint's directory.
    pub file: String,
    /// What it holds, in order.
    pub pieces: Vec<PieceRecord>,
    /// SHA-256 of these bytes, one after the other.
    pub sha256: Digest,
}

/// Some bytes of one tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PieceRecord {
    /// Name of the tensor.
    pub tensor: String,
    /// First byte.
    pub start: u64,
    /// Byte after the last.
    pub end: u64,
}

impl Identity {
    /// Hash over everything that has to be equal.
    #[must_use]
    pub fn hash(&self, tensors: &Table) -> Digest {
        let run = self.run.genesis();
        let names = serde_json::to_vec(&(&self.model, &self.optimizer)).unwrap_or_default();
        let tensors = serde_json::to_vec(tensors).unwrap_or_default();
        let mut parts = vec![run.bytes().as_slice(), &names, &tensors];
        let settings = serde_json::to_vec(&self.settings).unwrap_or_default();
        if !self.settings.is_empty() {
            parts.push(&settings);
        }
        Digest::of(&parts)
    }

    /// What keeps this training from going on with a checkpoint of `saved`; `None` if nothing does.
    fn difference(&self, saved: &Self) -> Option<String> {
        let named = |what: &str, saved: String, ours: String| {
            (saved != ours)
                .then(|| format!("it was saved by a training with {what} {saved}, this has {ours}"))
        };
        let number = |what, saved: u64, ours: u64| named(what, saved.to_string(), ours.to_string());
        let (before, now) = (&saved.run, &self.run);
        named("model.name", saved.model.clone(), self.model.clone())
            .or_else(|| {
                named(
                    "optimizer.name",
                    saved.optimizer.clone(),
                    self.optimizer.clone(),
                )
            })
            .or_else(|| number("training samples:", before.num_samples, now.num_samples))
            .or_else(|| number("globalBatchSize", before.global_batch, now.global_batch))
            .or_else(|| number("seed", before.seed, now.seed))
            .or_else(|| {
                let words = |reference: Option<u32>| {
                    reference.map_or("KeepGlobalBatch".to_owned(), |replicas| {
                        format!("ScaleBatch of {replicas} replicas")
                    })
                };
                let saved = words(before.reference_replicas);
                named("elastic.onScale", saved, words(now.reference_replicas))
            })
            .or_else(|| {
                let words = |run: &RunIdentity| {
                    let stages = run.growth.stages().iter().map(|stage| {
                        format!("{} from epoch {}", stage.global_batch, stage.from_epoch)
                    });
                    let stages: Vec<String> = stages.collect();
                    if stages.is_empty() {
                        "none".to_owned()
                    } else {
                        stages.join(", ")
                    }
                };
                named("schedule.batchGrowth", words(before), words(now))
            })
            .or_else(|| {
                let words = |run: &RunIdentity| {
                    run.blocks.map_or("none".to_owned(), |blocks| {
                        format!(
                            "blocks of {}, {} mixed",
                            blocks.num_samples, blocks.num_mixed
                        )
                    })
                };
                named("data.shuffle", words(before), words(now))
            })
            .or_else(|| {
                saved.settings.iter().find_map(|(field, before)| {
                    let now = self.settings.get(field)?;
                    let (before, now) = first_difference(before, now);
                    named(field, before, now)
                })
            })
    }
}

/// Of two lists, such as the structures of an object, their first items that differ.
fn first_difference(before: &str, now: &str) -> (String, String) {
    let end = std::iter::once("nothing more");
    let mut pairs = before
        .split(LIST_SEPARATOR)
        .chain(end.clone())
        .zip(now.split(LIST_SEPARATOR).chain(end));
    let differing = pairs.find(|(before, now)| before != now);
    let (before, now) = differing.unwrap_or((before, now));
    (before.to_owned(), now.to_owned())
}

impl Manifest {
    /// Reads the manifest of a checkpoint.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(checkpoint: &Path) -> Result<Self, VolumeError> {
        let path = checkpoint.join(FILE);
        Self::try_read(&path).map_err(VolumeError::with(&path))
    }

    /// The same, when a volume that answers with errors for a moment answers again. `None`: there is none, so this is no
    /// checkpoint, or one that is being deleted.
    ///
    /// # Errors
    /// As [`Manifest::read`].
    pub fn read_steadily(checkpoint: &Path) -> Result<Option<Self>, VolumeError> {
        match steadily(|| Self::read(checkpoint)) {
            Err(volume_error) if volume_error.is_absence() => Ok(None),
            result => result.map(Some),
        }
    }

    fn try_read(path: &Path) -> Result<Self, Reason> {
        faults::stale(path)?;
        let size = std::fs::metadata(path)?;
        if size.len() > MAX_BYTES {
            return Err(Reason::TooLarge);
        }
        let text = std::fs::read(path)?;
        let manifest: Self = serde_json::from_slice(&text)?;
        if manifest.schema_version != SCHEMA_VERSION {
            return Err(Reason::SchemaVersion(manifest.schema_version));
        }
        Ok(manifest)
    }

    /// The end of the ledger for a process that continues with it.
    #[must_use]
    pub fn chain(&self) -> Chain {
        let Some(Tail { after, lines }) = &self.tail else {
            return Chain::from(self.ledger);
        };
        let mut chain = Chain::from(*after);
        for line in lines {
            chain.push(*line);
        }
        chain
    }

    /// What a rank that has loaded it says of its state.
    #[must_use]
    pub const fn claim(&self) -> Claim {
        Claim::of(Origin::Loaded, &self.ledger)
    }

    /// The checkpoint's name.
    #[must_use]
    pub const fn id(&self) -> CheckpointId {
        CheckpointId {
            generation: self.generation,
            step: self.step,
        }
    }

    /// How far it had come. `pace` is that of a batch that stays.
    #[must_use]
    pub fn position(&self, pace: BatchPace) -> TrainingPosition {
        TrainingPosition {
            step: self.step,
            samples: self.epoch * self.training.run.num_samples + self.cursor,
            pace: self.pace.unwrap_or(pace),
            skips: self.skips,
            loss_scale: self.loss_scale,
        }
    }

    /// What keeps a training from going on with it; `None` if nothing does.
    #[must_use]
    pub fn difference(&self, training: &Identity, tensors: &Table) -> Option<String> {
        let table = || self.tensors.difference(tensors);
        training.difference(&self.training).or_else(table)
    }
}

#[cfg(test)]
mod tests {
    use roundhouse_elastic::Growth;

    use super::*;

    fn identity(change: impl FnOnce(&mut RunIdentity)) -> Identity {
        let mut run = RunIdentity {
            num_samples: 100,
            global_batch: 10,
            seed: 7,
            total_steps: 50,
            reference_replicas: None,
            growth: Growth::default(),
            blocks: None,
        };
        change(&mut run);
        Identity {
            model: "mlp".to_owned(),
            optimizer: "sgd".to_owned(),
            run,
            settings: BTreeMap::from([("model.heads".to_owned(), "12".to_owned())]),
        }
    }

    #[test]
    fn saved_settings_are_compared() {
        let now = identity(|_| {});
        let with = |settings: &[(&str, &str)]| Identity {
            settings: settings
                .iter()
                .map(|(field, value)| ((*field).to_owned(), (*value).to_owned()))
                .collect(),
            ..now.clone()
        };
        for (saved, expected) in [
            (with(&[("model.heads", "12")]), None),
            (with(&[]), None),
            (with(&[("model.heads", "8")]), Some("model.heads 8")),
            (
                with(&[("model.heads", "12; x.a: a number; x.b: a number")]),
                Some("model.heads x.a: a number, this has nothing more"),
            ),
        ] {
            let found = now.difference(&saved);
            assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
            assert!(
                found
                    .unwrap_or_default()
                    .contains(expected.unwrap_or_default())
            );
        }
        let hash = |identity: &Identity| identity.hash(&Table::default());
        assert_ne!(hash(&with(&[("model.heads", "8")])), hash(&now));
    }

    #[test]
    fn difference_is_named_and_total_steps_may_differ() {
        let saved = identity(|_| {});
        assert_eq!(
            identity(|run| run.total_steps = 90).difference(&saved),
            None
        );
        let difference = identity(|run| run.seed = 8).difference(&saved).unwrap();
        assert!(
            difference.contains("seed 7") && difference.contains('8'),
            "{difference}"
        );
        let difference = identity(|run| run.reference_replicas = Some(4))
            .difference(&saved)
            .unwrap();
        assert!(
            difference.contains("onScale KeepGlobalBatch") && difference.contains("4 replicas"),
            "{difference}"
        );
        let mut other = saved.clone();
        other.optimizer = "adamw".to_owned();
        let difference = other.difference(&saved).unwrap();
        assert!(difference.contains("optimizer.name"), "{difference}");
        let hash = |identity: &Identity| identity.hash(&Table::default());
        assert_ne!(hash(&other), hash(&saved));
        assert_eq!(hash(&identity(|run| run.total_steps = 90)), hash(&saved));
    }
}
