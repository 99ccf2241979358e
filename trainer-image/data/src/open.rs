//! Opens the data sets of a configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use roundhouse_contract::trainer::data::{Data, DataFormat, Part as MixPart};
use roundhouse_contract::trainer::options::NEEDS_OWN_PROGRAM;
use roundhouse_elastic::{Blocks, Permutation};

use crate::cache::Cache;
use crate::dataset::Dataset;
use crate::error::DataError;
use crate::mix::{Mix, Part, Share};

mod images;
#[cfg(test)]
mod tests;
mod tokens;

use images::Known;

/// Default number of mixed blocks if the format has blocks.
const NUM_MIXED: u64 = 16;

/// The data on which a job trains and evaluates.
#[derive(Debug)]
pub struct Splits {
    /// Data set of the training.
    pub train: Arc<dyn Dataset>,
    /// Data set of the evaluation.
    pub validation: Option<Arc<dyn Dataset>>,
    /// Mean and standard deviation by channel, for normalizing pixels after division by 255; `None`
    /// if pixels are not normalized or are normalized already.
    pub normalize: Option<(Vec<f64>, Vec<f64>)>,
    /// The two-level order of the training samples, if it has two levels.
    pub blocks: Option<Blocks>,
    /// The share of each data set of a mix in an epoch; empty without a mix.
    pub shares: Vec<Share>,
}

impl Splits {
    /// Returns the order of the training samples in an epoch.
    #[must_use]
    pub fn order(&self, seed: u64, epoch: u64) -> Permutation {
        let num_samples = self.train.num_samples();
        match self.blocks {
            Some(blocks) => Permutation::in_blocks(num_samples, seed, epoch, blocks),
            None => Permutation::new(num_samples, seed, epoch),
        }
    }
}

/// The form of pixels in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pixels {
    /// Bytes, which are normalized on the device and need a quarter of the memory.
    Bytes,
    /// Floats that are already normalized.
    Normalized,
}

/// Opens the data of a configuration, below `data_dir` unless its path is absolute. `seed` is the
/// seed of augmentation. `vocabulary` is the number of different tokens that the model takes from
/// the data, `None` if unknown. It applies if `data.tokens.vocabulary` is not set and the format
/// has no tokenizer. A token that is not below it is a corrupt record.
///
/// # Errors
/// Returns an error that names the file or the field.
pub fn open(
    data: &Data,
    data_dir: &Path,
    pixels: Pixels,
    seed: u64,
    vocabulary: Option<u32>,
) -> Result<Splits, DataError> {
    data.validate()
        .map_err(|invalid| DataError::config(invalid.field, invalid.message))?;
    if data.format == DataFormat::Custom {
        return Err(DataError::config("data.format", NEEDS_OWN_PROGRAM));
    }
    let root = data
        .path
        .as_ref()
        .map_or_else(|| data_dir.to_owned(), |path| data_dir.join(path));
    let opener = Opener {
        data,
        cache: Cache {
            directory: data.reading.cache_dir.as_ref().map(PathBuf::from),
        },
        root,
        pixels,
        seed,
        vocabulary,
        blocks: data.shuffle.map(|shuffle| Blocks {
            num_samples: shuffle.block,
            num_mixed: shuffle.window,
        }),
    };
    opener.splits()
}

struct Opener<'a> {
    data: &'a Data,
    cache: Cache,
    root: PathBuf,
    pixels: Pixels,
    seed: u64,
    /// Vocabulary of the model.
    vocabulary: Option<u32>,
    blocks: Option<Blocks>,
}

impl Opener<'_> {
    fn splits(&self) -> Result<Splits, DataError> {
        let mut splits = if self.data.format == DataFormat::Idx {
            self.idx()?
        } else {
            self.others()?
        };
        let per_block = splits.train.samples_per_block();
        let natural = (per_block > 1).then_some(Blocks {
            num_samples: per_block,
            num_mixed: NUM_MIXED,
        });
        splits.blocks = self.blocks.or(natural);
        Ok(splits)
    }

    fn others(&self) -> Result<Splits, DataError> {
        let mut known = Known::default();
        let mut shares = Vec::new();
        let train: Arc<dyn Dataset> = if self.data.mix.is_empty() {
            let path = self
                .root
                .join(self.data.train.as_deref().unwrap_or("train"));
            self.split(&path, true, &mut known)?
        } else {
            let mut parts = Vec::new();
            for MixPart { train, weight } in &self.data.mix {
                parts.push(Part {
                    name: train.clone(),
                    dataset: self.split(&self.root.join(train), true, &mut known)?,
                    weight: *weight,
                });
            }
            let mix = Mix::new(parts, self.seed, self.blocks)?;
            shares = mix.shares();
            Arc::new(mix)
        };
        known.num_classes = train.num_classes();
        let validation = match &self.data.validation {
            Some(name) => Some(self.root.join(name)),
            None => Some(self.root.join("val")).filter(|path| path.exists()),
        };
        let validation = validation
            .map(|path| self.split(&path, false, &mut known))
            .transpose()?;
        Ok(Splits {
            train,
            validation,
            normalize: self.normalize(),
            blocks: None,
            shares,
        })
    }

    fn split(
        &self,
        path: &Path,
        is_train: bool,
        known: &mut Known,
    ) -> Result<Arc<dyn Dataset>, DataError> {
        if !path.exists() {
            let field = if is_train {
                "train (or mix)"
            } else {
                "validation"
            };
            let reason = format!("does not exist; name the split in trainer.data.{field}");
            return Err(DataError::invalid(path, reason));
        }
        if let Some(options) = &self.data.tokens {
            return self.tokens(path, options);
        }
        self.images(path, is_train, known)
    }
}
