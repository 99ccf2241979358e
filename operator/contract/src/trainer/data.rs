//! Where the data is and how it is written.

use serde::{Deserialize, Serialize};

use super::{ConfigInvalid, invalid};

/// How the data is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DataFormat {
    /// IDX files as MNIST is published: `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`,
    /// `t10k-images-idx3-ubyte`, `t10k-labels-idx1-ubyte`, each plain or with `.gz`.
    Idx,
}

/// Where the data is and how it is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Data {
    /// How it is written.
    pub format: DataFormat,
    /// Directory of the files; a relative path starts at the volume's root. Default: the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(length(max = 1024)))]
    pub path: Option<String>,
    /// Volume that holds the files, mounted read-only in every worker. Without it the path must
    /// exist in the worker's image or be mounted by `workers.template`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<DataVolume>,
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
    pub(super) fn validate(&self) -> Result<(), ConfigInvalid> {
        let climbs = |path: &str| path.split('/').any(|part| part == "..");
        if self.path.as_deref().is_some_and(climbs) {
            return invalid("data.path", "must not contain `..`");
        }
        match &self.volume {
            Some(DataVolume {
                config_map,
                persistent_volume_claim,
            }) if config_map.is_some() == persistent_volume_claim.is_some() => invalid(
                "data.volume",
                "give exactly one of configMap, persistentVolumeClaim",
            ),
            Some(_) | None => Ok(()),
        }
    }
}
