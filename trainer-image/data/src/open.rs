//! From the configuration to data sets.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use roundhouse_contract::trainer::data::{
    Data, DataFormat, ImageOptions, Part as MixPart, TokenOptions,
};
use roundhouse_contract::trainer::options::NEEDS_OWN_PROGRAM;
use roundhouse_elastic::{Blocks, Permutation};

use crate::cache::Cache;
use crate::dataset::Dataset;
use crate::error::DataError;
use crate::format::folder::Folder;
use crate::format::idx;
#[cfg(feature = "parquet")]
use crate::format::parquet::TokenLists;
use crate::format::shards::Shards;
#[cfg(feature = "text")]
use crate::format::text::TextTokenizer;
use crate::format::tfrecord::TfRecord;
use crate::format::tokens::{TokenFiles, Tokens, Windows};
use crate::format::webdataset::WebDataset;
use crate::image::{Images, Output, Records, Size, Transform};
use crate::mix::{Mix, Part, Share};

#[cfg(test)]
mod tests;

/// Width and height of images where nothing else is said.
const SIZE: u32 = 224;
/// Blocks that are mixed where the format has blocks and the configuration says nothing.
const NUM_MIXED: u64 = 16;

/// What a job trains and evaluates on.
#[derive(Debug)]
pub struct Splits {
    /// To train on.
    pub train: Arc<dyn Dataset>,
    /// To evaluate on.
    pub validation: Option<Arc<dyn Dataset>>,
    /// Mean and standard deviation by channel that pixels are normalized with after division by 255; `None`: they
    /// are not, or have been.
    pub normalize: Option<(Vec<f64>, Vec<f64>)>,
    /// The order of the training samples, if it has two levels.
    pub blocks: Option<Blocks>,
    /// What each data set of a mix gives to an epoch; empty without a mix.
    pub shares: Vec<Share>,
}

impl Splits {
    /// The order of the training samples in an epoch.
    #[must_use]
    pub fn order(&self, seed: u64, epoch: u64) -> Permutation {
        let num_samples = self.train.num_samples();
        match self.blocks {
            Some(blocks) => Permutation::in_blocks(num_samples, seed, epoch, blocks),
            None => Permutation::new(num_samples, seed, epoch),
        }
    }
}

/// What samples of pixels become in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pixels {
    /// Bytes, to be normalized on the device: a quarter of the memory.
    Bytes,
    /// Normalized floats.
    Normalized,
}

/// Opens the data that a configuration names, below `data_dir` unless its path is absolute. `seed` is that of
/// augmentation. `vocabulary` is how many different tokens the model takes from the data, `None` if that is not
/// known. It holds where `data.tokens.vocabulary` is not set and the format has no tokenizer: a token that is not
/// below it is a corrupt record.
///
/// # Errors
/// Names the file or the field and what is wrong with it.
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
    /// Of the model.
    vocabulary: Option<u32>,
    blocks: Option<Blocks>,
}

/// What the validation split has to know about the training split.
#[derive(Default)]
struct Known {
    classes: Option<Vec<String>>,
    num_classes: Option<u32>,
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

    fn idx(&self) -> Result<Splits, DataError> {
        let (train, test) = idx::open(&self.root)?;
        let options = self.data.image.clone().unwrap_or_default();
        let own = train.size();
        let edge = |own| options.size.unwrap_or(own);
        let size = Size {
            width: edge(own.width),
            height: edge(own.height),
            num_channels: 1,
        };
        let num_classes = options.num_classes;
        let images = |records: idx::Idx, is_train| {
            let transform = self.transform(&options, size, is_train)?;
            let images = Images::new(Box::new(records), transform, num_classes, self.seed);
            Ok::<Arc<dyn Dataset>, DataError>(Arc::new(images))
        };
        Ok(Splits {
            train: images(train, true)?,
            validation: Some(images(test, false)?),
            normalize: self.normalize(&options),
            blocks: None,
            shares: Vec::new(),
        })
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
        let options = self.data.image.clone().unwrap_or_default();
        Ok(Splits {
            train,
            validation,
            normalize: self.normalize(&options),
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
        let options = self.data.image.clone().unwrap_or_default();
        let edge = options.size.unwrap_or(SIZE);
        let size = Size {
            width: edge,
            height: edge,
            num_channels: 3,
        };
        let transform = self.transform(&options, size, is_train)?;
        let records = self.records(path, &options, known)?;
        // A validation split may lack the highest class; the training split's number holds.
        let num_classes = options.num_classes.or(known.num_classes);
        Ok(Arc::new(Images::new(
            records,
            transform,
            num_classes,
            self.seed,
        )))
    }

    fn records(
        &self,
        path: &Path,
        options: &ImageOptions,
        known: &mut Known,
    ) -> Result<Box<dyn Records>, DataError> {
        Ok(match self.data.format {
            DataFormat::ImageFolder => {
                let folder = Folder::open(path, known.classes.as_deref(), &self.cache)?;
                known
                    .classes
                    .get_or_insert_with(|| folder.classes().to_vec());
                Box::new(folder)
            }
            DataFormat::WebDataset => Box::new(Shards::open(WebDataset, path, &self.cache)?),
            DataFormat::TfRecord => Box::new(Shards::open(TfRecord, path, &self.cache)?),
            #[cfg(feature = "parquet")]
            DataFormat::Parquet => {
                let image = options.column.as_deref().unwrap_or("image");
                let label = options.label_column.as_deref().unwrap_or("label");
                Box::new(crate::format::parquet::Parquet::open(
                    path,
                    image,
                    label,
                    &self.cache,
                )?)
            }
            other => {
                let _ = options;
                return Err(DataError::config(
                    "data.format",
                    format!("{other:?} was not built in, or has no images"),
                ));
            }
        })
    }

    fn tokens(&self, path: &Path, options: &TokenOptions) -> Result<Arc<dyn Dataset>, DataError> {
        let mut vocabulary = options.vocabulary.or(self.vocabulary);
        let tokens: Box<dyn Tokens> = match self.data.format {
            DataFormat::Tokens => {
                let paths = crate::files::find(path, &[".bin"])?;
                Box::new(TokenFiles::open(paths, options.dtype)?)
            }
            #[cfg(feature = "text")]
            DataFormat::Text => {
                let tokenizer = self.tokenizer(options)?;
                vocabulary = Some(tokenizer.vocabulary());
                let texts = crate::files::find(path, &[".txt"])?;
                Box::new(tokenizer.tokens_of(&texts, &self.cache)?)
            }
            #[cfg(feature = "parquet")]
            DataFormat::Parquet => {
                let column = options.column.as_deref().unwrap_or("input_ids");
                let paths = crate::files::find(path, &[".parquet"])?;
                Box::new(TokenLists::open(&paths, column, &self.cache)?)
            }
            other => {
                let _ = &mut vocabulary;
                return Err(DataError::config(
                    "data.format",
                    format!("{other:?} was not built in, or has no tokens"),
                ));
            }
        };
        let windows = Windows::new(path, tokens, options.context, vocabulary)?;
        Ok(Arc::new(windows))
    }

    #[cfg(feature = "text")]
    fn tokenizer(&self, options: &TokenOptions) -> Result<TextTokenizer, DataError> {
        let name = options.tokenizer.as_deref().unwrap_or("tokenizer.json");
        let end = options.end_of_text.as_deref();
        TextTokenizer::open(&self.root.join(name), end, options.vocabulary)
    }

    fn transform(
        &self,
        options: &ImageOptions,
        size: Size,
        is_train: bool,
    ) -> Result<Transform, DataError> {
        let edge = size.width.max(size.height);
        if let (Some(resize), None) = (options.resize, options.size)
            && resize < edge
        {
            return Err(DataError::config(
                "data.image.resize",
                format!("must be at least {edge}"),
            ));
        }
        let num_channels = size.num_channels as usize;
        if ![0, num_channels].contains(&options.mean.len()) {
            let reason = format!("the images have {num_channels} channels; give as many numbers");
            return Err(DataError::config("data.image.mean", reason));
        }
        let single = |values: &[f64], default: f32| -> Vec<f32> {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a mean needs no more digits"
            )]
            let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
            if values.is_empty() {
                vec![default; num_channels]
            } else {
                values
            }
        };
        Ok(Transform {
            size,
            // As 256 is to 224.
            resize: options.resize.unwrap_or(edge * 8 / 7),
            augment: if is_train {
                options.augment.clone()
            } else {
                Vec::new()
            },
            output: match self.pixels {
                Pixels::Bytes => Output::Pixels,
                Pixels::Normalized => {
                    Output::normalized(&single(&options.mean, 0.0), &single(&options.std, 1.0))
                }
            },
        })
    }

    fn normalize(&self, options: &ImageOptions) -> Option<(Vec<f64>, Vec<f64>)> {
        let is_left = self.pixels == Pixels::Bytes && !options.mean.is_empty();
        is_left.then(|| (options.mean.clone(), options.std.clone()))
    }
}
