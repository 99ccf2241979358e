//! Location and format of the data.

use serde::{Deserialize, Serialize};

use super::{ConfigInvalid, ModelName, TrainerConfig, invalid};

pub mod image;
pub mod mix;
pub mod reading;
#[cfg(test)]
mod tests;
pub mod tokens;

pub use image::{Augment, ImageOptions};
pub use mix::Part;
pub use reading::{OnCorrupt, Reading, Shuffle};
pub use tokens::{TokenOptions, TokenType};

crate::closed_enum! {
    /// Format of the data files.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
    #[serde(rename_all = "lowercase")]
    pub enum DataFormat {
        /// IDX files as published for MNIST: `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`,
        /// `t10k-images-idx3-ubyte`, `t10k-labels-idx1-ubyte`, each plain or with `.gz`.
        Idx,
        /// A directory per class with JPEG and PNG files. Classes are numbered in the order of
        /// their names.
        ImageFolder,
        /// `WebDataset` `.tar` files: per sample a `.jpg`, `.jpeg` or `.png` and a `.cls` or
        /// `.json` with the label.
        WebDataset,
        /// `TFRecord` files of `tf.train.Example` with `image/encoded` and `image/class/label`.
        TfRecord,
        /// Parquet files: images and labels as Hugging Face writes them, or a column of token
        /// lists.
        Parquet,
        /// Files of tokens without a header (`.bin`).
        Tokens,
        /// Text files, one document per line, and a Hugging Face `tokenizer.json`.
        Text,
        /// Data that a program of your own reads: the container `trainer` needs an image with that
        /// program. Settings of the data are in `trainer.options`.
        Custom,
    }
}

impl DataFormat {
    /// Whether samples of a built-in format can be images with a label.
    #[must_use]
    pub const fn has_images(self) -> bool {
        match self {
            Self::Idx | Self::ImageFolder | Self::WebDataset | Self::TfRecord | Self::Parquet => {
                true
            }
            Self::Tokens | Self::Text | Self::Custom => false,
        }
    }

    /// Whether samples of a built-in format can be tokens.
    #[must_use]
    pub const fn has_tokens(self) -> bool {
        match self {
            Self::Parquet | Self::Tokens | Self::Text => true,
            Self::Idx | Self::ImageFolder | Self::WebDataset | Self::TfRecord | Self::Custom => {
                false
            }
        }
    }
}

/// Refuses samples that the model cannot read.
pub(super) fn validate_model(config: &TrainerConfig) -> Result<(), ConfigInvalid> {
    let (model, format) = (config.model.name, config.data.format);
    let reads_tokens = match model {
        ModelName::Gpt2 | ModelName::Bert | ModelName::Llama | ModelName::Switch => true,
        ModelName::Linear
        | ModelName::Mlp
        | ModelName::Cnn
        | ModelName::Resnet18
        | ModelName::Resnet50 => false,
        ModelName::Custom => return Ok(()),
    };
    let can_be_custom = format == DataFormat::Custom;
    if reads_tokens && !format.has_tokens() && !can_be_custom {
        return invalid(
            "data.format",
            "gpt2, bert, llama and switch read tokens: set it to tokens, text or parquet, or choose a model of images",
        );
    }
    if !reads_tokens && !format.has_images() && !can_be_custom {
        return invalid(
            "data.format",
            "tokens and text are for gpt2, bert, llama and switch: choose one of these models, or a format of images",
        );
    }
    Ok(())
}

/// Location and format of the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Data {
    /// Format of the data files.
    pub format: DataFormat,
    /// Directory of the files; a relative path starts at the volume's root. Default: the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 1024)))]
    pub path: Option<String>,
    /// Volume that holds the files, mounted read-only in every worker. Without it the path must
    /// exist in the worker's image or be mounted by `workers.template`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<DataVolume>,
    /// Directory or file of the training split, below `path`. Default: `train`. IDX files need
    /// none. Excludes `mix`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(min = 1, max = 1024)))]
    pub train: Option<String>,
    /// Directory or file of the split that is evaluated, below `path`. Default: `val` where that
    /// exists; without it nothing is evaluated. IDX files need none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(min = 1, max = 1024)))]
    pub validation: Option<String>,
    /// Several training splits, each with a weight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 64)))]
    pub mix: Vec<Part>,
    /// Size and augmentation of images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageOptions>,
    /// How samples are cut from token files and texts. Required for `tokens` and `text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenOptions>,
    /// Order of the samples in an epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shuffle: Option<Shuffle>,
    /// Threads, memory and the treatment of corrupt records.
    #[serde(default, skip_serializing_if = "Reading::is_default")]
    pub reading: Reading,
}

/// A volume with data: exactly one of its fields is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataVolume {
    /// A ConfigMap of the job's namespace; good for data below 1 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapVolume>,
    /// A PersistentVolumeClaim of the job's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<PersistentVolumeClaimVolume>,
}

/// A ConfigMap whose keys are the files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConfigMapVolume {
    /// Name of the ConfigMap.
    #[cfg_attr(feature = "schemars", schemars(length(min = 1, max = 253)))]
    pub name: String,
}

/// A claim whose volume holds the files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PersistentVolumeClaimVolume {
    /// Name of the PersistentVolumeClaim.
    #[cfg_attr(feature = "schemars", schemars(length(min = 1, max = 253)))]
    pub claim_name: String,
}

impl Data {
    /// Data of this format with default values for all other fields.
    #[must_use]
    pub fn new(format: DataFormat) -> Self {
        Self {
            format,
            path: None,
            volume: None,
            train: None,
            validation: None,
            mix: Vec::new(),
            image: None,
            tokens: None,
            shuffle: None,
            reading: Reading::default(),
        }
    }

    /// Says what no field's type can say.
    ///
    /// # Errors
    /// The first field that cannot be used, and what to change.
    pub fn validate(&self) -> Result<(), ConfigInvalid> {
        let Self {
            format,
            path,
            volume,
            train,
            validation,
            mix,
            image,
            tokens,
            shuffle,
            reading,
        } = self;
        let paths = [
            ("data.path", path),
            ("data.train", train),
            ("data.validation", validation),
        ];
        for (field, path) in paths {
            no_climbing(field, path.as_deref())?;
        }
        if let Some(DataVolume {
            config_map,
            persistent_volume_claim,
        }) = volume
            && config_map.is_some() == persistent_volume_claim.is_some()
        {
            return invalid(
                "data.volume",
                "give exactly one of configMap, persistentVolumeClaim",
            );
        }
        if *format == DataFormat::Idx && (train.is_some() || validation.is_some()) {
            return invalid(
                "data.train",
                "remove train and validation: IDX files have fixed names",
            );
        }
        if *format == DataFormat::Idx && !mix.is_empty() {
            return invalid("data.mix", "remove it: IDX files cannot be mixed");
        }
        if train.is_some() && !mix.is_empty() {
            return invalid("data.train", "give either train or mix, not both");
        }
        mix::validate(mix)?;
        if *format == DataFormat::Custom {
            self.refuse_fields_of_built_in_formats()?;
        }
        if let Some(image) = image {
            if !format.has_images() || tokens.is_some() {
                return invalid("data.image", "remove it: the samples are tokens");
            }
            image.validate()?;
        }
        match tokens {
            Some(_) if !format.has_tokens() => {
                return invalid("data.tokens", "remove it: the samples are images");
            }
            Some(tokens) => tokens.validate(*format)?,
            None if !format.has_images() && *format != DataFormat::Custom => {
                return invalid("data.tokens", "give at least the context length");
            }
            None => {}
        }
        if let Some(shuffle) = shuffle {
            shuffle.validate()?;
        }
        reading.validate()
    }
}

impl Data {
    /// Refuses fields that have no effect with a format of the user's own.
    fn refuse_fields_of_built_in_formats(&self) -> Result<(), ConfigInvalid> {
        let fields = [
            ("data.mix", !self.mix.is_empty()),
            ("data.image", self.image.is_some()),
            ("data.tokens", self.tokens.is_some()),
            ("data.shuffle", self.shuffle.is_some()),
            ("data.reading", !self.reading.is_default()),
        ];
        match fields.into_iter().find(|(_, given)| *given) {
            Some((field, _)) => invalid(
                field,
                "remove it: it is for built-in formats; the settings of custom data are in trainer.options",
            ),
            None => Ok(()),
        }
    }
}

/// Refuses a path that leaves the directory in which it starts.
fn no_climbing(field: &'static str, path: Option<&str>) -> Result<(), ConfigInvalid> {
    let climbs = |path: &str| path.split('/').any(|part| part == "..");
    if path.is_some_and(climbs) {
        return invalid(field, "must not contain `..`");
    }
    if path.is_some_and(|path| path.contains('\0')) {
        return invalid(field, "must not contain a NUL character");
    }
    Ok(())
}
