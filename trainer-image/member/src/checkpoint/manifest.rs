//! `manifest.json`: the contents of a checkpoint and the data that verifies them.

use std::collections::BTreeMap;
use std::path::Path;

use roundhouse_elastic::best::Scores;
use roundhouse_elastic::ledger::{Head, LedgerIdentity};
use roundhouse_elastic::state::layout::Runs;
use roundhouse_elastic::{
    BatchPace, Chain, CheckpointId, Claim, Digest, Line, LossScale, Origin, Skips, TrainingPosition,
};
use serde::{Deserialize, Serialize};

use super::error::steadily;
use super::{Reason, VolumeError};
use crate::faults;
use crate::state::Table;

/// Version of the format. A change of its meaning needs a new version.
pub const SCHEMA_VERSION: u32 = 1;
/// Name of the manifest in the checkpoint's directory.
pub const FILE: &str = "manifest.json";
/// Temporary name of a manifest that will replace the current one.
pub const DRAFT: &str = "manifest.json.partial";
/// Separator of the items of a setting that is a list.
const LIST_SEPARATOR: &str = "; ";
/// Maximum size of a manifest in bytes. A larger file is not read.
const MAX_BYTES: u64 = 1 << 30;

/// Everything in a checkpoint except the bytes of its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub schema_version: u32,
    /// Time of the save, RFC 3339.
    pub saved_at: String,
    /// Generation that committed the last step. In checkpoints of earlier versions: generation that
    /// saved it.
    pub generation: u64,
    /// Number of committed steps.
    pub step: u64,
    /// Epoch of the next step, from 0.
    pub epoch: u64,
    /// Number of samples of that epoch that committed steps have used.
    pub cursor: u64,
    /// Batch size and origin of the learning rate, if the batch depends on the number of workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<BatchPace>,
    /// Steps that were committed without an update.
    #[serde(default, skip_serializing_if = "Skips::is_none")]
    pub skips: Skips,
    /// Factor for the loss of the next step, if loss scaling is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// Scores of an evaluation of this state, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scores: Option<Scores>,
    /// Number of parts: one for each rank that wrote it, or those of a process that wrote all of
    /// it.
    pub world_size: u32,
    /// The training that the checkpoint belongs to.
    pub training: Identity,
    /// Hash of [`Self::training`] and the names, types and shapes of the tensors.
    pub config_hash: Digest,
    /// Last ledger line that the checkpoint contains.
    pub ledger: Head,
    /// The last ledger lines, if they may be in no ledger file: a process that saves alone has no
    /// rank 0 that writes the ledger. The next generation begins its file with these lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<Tail>,
    /// All tensors, in the order of their bytes.
    pub tensors: Table,
    /// The parts, in the order of ranks.
    pub shards: Vec<Shard>,
}

/// The last lines of a ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tail {
    /// The line before them, which is in a ledger file.
    pub after: Head,
    pub lines: Vec<Line>,
}

/// Values that must be equal to continue from a checkpoint, apart from the tensors' shapes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Kind of model, as named in the configuration.
    pub model: String,
    /// Kind of optimizer, as named in the configuration.
    pub optimizer: String,
    /// Number of samples, samples per step, seed and number of steps. The number of steps may
    /// change.
    #[serde(rename = "course")]
    pub ledger: LedgerIdentity,
    /// Other configuration fields that change the computation without changing a tensor's shape,
    /// such as the heads of a transformer, with their values as text. A field that is missing in a
    /// checkpoint was unknown to the program that wrote it, and is not compared.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

/// The part of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shard {
    /// File name in the checkpoint's directory.
    pub file: String,
    /// The pieces that it contains, in order.
    pub pieces: Vec<PieceRecord>,
    /// SHA-256 of the concatenated pieces.
    pub sha256: Digest,
}

/// Bytes of one tensor: a range, or several ranges of the same length if a process has a part of
/// each row of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PieceRecord {
    pub tensor: String,
    /// Position of the first byte.
    pub start: u64,
    /// Position after the last byte of the first range.
    pub end: u64,
    /// Number of ranges, 1 for most pieces.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u64,
    /// Distance between the starts of two ranges; 0 if there is one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stride: u64,
}

const fn one() -> u64 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_one(count: &u64) -> bool {
    *count == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_zero(stride: &u64) -> bool {
    *stride == 0
}

impl PieceRecord {
    #[must_use]
    pub fn new(tensor: String, runs: Runs) -> Self {
        let Runs {
            start,
            length,
            count,
            stride,
        } = runs;
        Self {
            tensor,
            start,
            end: start.saturating_add(length),
            count,
            stride: if count == 1 { 0 } else { stride },
        }
    }

    #[must_use]
    pub const fn runs(&self) -> Runs {
        let length = self.end.saturating_sub(self.start);
        Runs {
            start: self.start,
            length,
            count: self.count,
            stride: if self.count == 1 { length } else { self.stride },
        }
    }

    /// Number of bytes of the piece.
    #[must_use]
    pub const fn num_bytes(&self) -> u64 {
        self.runs().num_bytes()
    }
}

impl Identity {
    /// Hash of everything that must be equal.
    #[must_use]
    pub fn hash(&self, tensors: &Table) -> Digest {
        let ledger = self.ledger.genesis();
        let names = serde_json::to_vec(&(&self.model, &self.optimizer)).unwrap_or_default();
        let tensors = serde_json::to_vec(tensors).unwrap_or_default();
        let mut parts = vec![ledger.bytes().as_slice(), &names, &tensors];
        let settings = serde_json::to_vec(&self.settings).unwrap_or_default();
        if !self.settings.is_empty() {
            parts.push(&settings);
        }
        Digest::of(&parts)
    }

    /// Describes why this training cannot continue from a checkpoint of `saved`; `None` if it can.
    fn difference(&self, saved: &Self) -> Option<String> {
        let named = |what: &str, saved: String, ours: String| {
            (saved != ours)
                .then(|| format!("it was saved by a training with {what} {saved}, this has {ours}"))
        };
        let number = |what, saved: u64, ours: u64| named(what, saved.to_string(), ours.to_string());
        let (before, now) = (&saved.ledger, &self.ledger);
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
                let words = |ledger: &LedgerIdentity| {
                    let stages = ledger.growth.stages().iter().map(|stage| {
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
                let words = |ledger: &LedgerIdentity| {
                    ledger.blocks.map_or("none".to_owned(), |blocks| {
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

/// Returns the first items in which two lists differ, such as the structures of an object.
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
    /// [`VolumeError`] if the manifest cannot be read or parsed.
    pub fn read(checkpoint: &Path) -> Result<Self, VolumeError> {
        let path = checkpoint.join(FILE);
        Self::try_read(&path).map_err(VolumeError::with(&path))
    }

    /// Like [`Self::read`], but retries temporary errors. `None`: there is no manifest, so the
    /// directory is not a checkpoint or is being deleted.
    ///
    /// # Errors
    /// Those of [`Manifest::read`].
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

    /// The end of the ledger, for a process that continues from this checkpoint.
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

    /// The claim of a rank that has loaded the checkpoint.
    #[must_use]
    pub const fn claim(&self) -> Claim {
        Claim::of(Origin::Loaded, &self.ledger)
    }

    /// Generation and step, which are the checkpoint's name.
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
            samples: self.epoch * self.training.ledger.num_samples + self.cursor,
            pace: self.pace.unwrap_or(pace),
            skips: self.skips,
            loss_scale: self.loss_scale,
        }
    }

    /// Describes why a training cannot continue from the checkpoint; `None` if it can.
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

    fn identity(change: impl FnOnce(&mut LedgerIdentity)) -> Identity {
        let mut ledger = LedgerIdentity {
            num_samples: 100,
            global_batch: 10,
            seed: 7,
            total_steps: 50,
            reference_replicas: None,
            growth: Growth::default(),
            blocks: None,
        };
        change(&mut ledger);
        Identity {
            model: "mlp".to_owned(),
            optimizer: "sgd".to_owned(),
            ledger,
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
            identity(|ledger| ledger.total_steps = 90).difference(&saved),
            None
        );
        let difference = identity(|ledger| ledger.seed = 8)
            .difference(&saved)
            .unwrap();
        assert!(
            difference.contains("seed 7") && difference.contains('8'),
            "{difference}"
        );
        let difference = identity(|ledger| ledger.reference_replicas = Some(4))
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
        assert_eq!(
            hash(&identity(|ledger| ledger.total_steps = 90)),
            hash(&saved)
        );
    }
}
