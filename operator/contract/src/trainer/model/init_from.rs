//! The source of the initial weights.

use serde::{Deserialize, Serialize};

use super::super::data::DataVolume;
use super::super::{ConfigInvalid, invalid};

/// A safetensors file with the initial weights, with the names that torchvision and Hugging Face
/// use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InitFrom {
    /// Path of the file; a relative path starts at the volume's root.
    #[cfg_attr(feature = "schemars", schemars(length(min = 1, max = 1024)))]
    pub path: String,
    /// Volume that contains the file, mounted read-only in every worker. Without it the path must
    /// exist in the worker's image or be mounted by `workers.template`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<DataVolume>,
    /// Prefixes of the names of tensors that keep their random weights, such as `fc.` for a
    /// classifier of other classes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "schemars",
        schemars(length(max = 64), inner(length(min = 1, max = 256)))
    )]
    pub skip: Vec<String>,
}

impl InitFrom {
    pub(super) fn validate(&self) -> Result<(), ConfigInvalid> {
        let Self { path, volume, skip } = self;
        if path.is_empty() {
            return invalid("model.initFrom.path", "give the path of a safetensors file");
        }
        if path.split('/').any(|part| part == "..") {
            return invalid("model.initFrom.path", "must not contain `..`");
        }
        if skip.iter().any(String::is_empty) {
            return invalid(
                "model.initFrom.skip",
                "an empty beginning would skip every tensor; remove it",
            );
        }
        match volume {
            Some(DataVolume {
                config_map,
                persistent_volume_claim,
            }) if config_map.is_some() == persistent_volume_claim.is_some() => invalid(
                "model.initFrom.volume",
                "give exactly one of configMap, persistentVolumeClaim",
            ),
            Some(_) | None => Ok(()),
        }
    }
}
