//! `trainer.options`: settings for a program of the user's own, whose keys are unknown here.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{ConfigInvalid, DataFormat, ModelName, TrainerConfig, invalid};

/// Settings by their names; values are any JSON.
pub type Options = BTreeMap<String, Value>;

/// Most bytes of the options as JSON. The configuration is an annotation of each pod, and all
/// annotations of an object together have at most 256 KiB.
pub const MAX_OPTIONS_BYTES: usize = 65_536;

/// Most levels of lists and objects in an option. Parsers of JSON and YAML have limits, of which
/// the smallest is 64.
pub const MAX_OPTIONS_LEVELS: u32 = 32;

/// The built-in program's error for a model or data of a user's own program.
pub const NEEDS_OWN_PROGRAM: &str = "custom is for a program of your own, and roundhouse-train does not have it: give the \
     container `trainer` an image with your program (with `kubectl roundhouse run --local`: --trainer PATH); \
     trainer-image/README.md, *Your own model and data*, says how to write it";

/// An option that the program cannot use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionsInvalid {
    /// Path of the key below `trainer.options`; empty for the options as a whole.
    pub key: String,
    /// What is wrong with it.
    pub message: String,
}

impl OptionsInvalid {
    /// Creates the error of a check that types cannot express, such as the bounds of a number.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            message: message.into(),
        }
    }
}

impl std::fmt::Display for OptionsInvalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { key, message } = self;
        match key.as_str() {
            "" => write!(f, "trainer.options: {message}"),
            key => write!(f, "trainer.options.{key}: {message}"),
        }
    }
}

impl std::error::Error for OptionsInvalid {}

impl TrainerConfig {
    /// Reads the options as a type of the program. Give the type `#[serde(deny_unknown_fields)]`,
    /// so that a misspelled key is an error, and `#[serde(default)]` for optional keys.
    ///
    /// # Errors
    /// Fails if a key is missing or unknown, or its value has another type. The
    /// message names the key.
    pub fn options<T: DeserializeOwned>(&self) -> Result<T, OptionsInvalid> {
        let options = self.options.clone().into_iter().collect();
        serde_path_to_error::deserialize(Value::Object(options)).map_err(|error| {
            // serde_path_to_error writes "." for the root.
            let key = Some(error.path().to_string()).filter(|path| path != ".");
            OptionsInvalid::new(key.unwrap_or_default(), error.inner().to_string())
        })
    }

    /// Refuses a configuration that needs a program of the user's own. The
    /// built-in program calls it.
    ///
    /// # Errors
    /// Fails if the model or the data format is `custom`.
    pub fn refuse_custom(&self) -> Result<(), ConfigInvalid> {
        if self.model.name == ModelName::Custom {
            return invalid("model.name", NEEDS_OWN_PROGRAM);
        }
        if self.data.format == DataFormat::Custom {
            return invalid("data.format", NEEDS_OWN_PROGRAM);
        }
        Ok(())
    }
}

pub(super) fn validate(config: &TrainerConfig) -> Result<(), ConfigInvalid> {
    if config.options.is_empty() {
        return Ok(());
    }
    if config.model.name != ModelName::Custom && config.data.format != DataFormat::Custom {
        return invalid(
            "options",
            "is for a model or data of your own: set model.name or data.format to custom, or remove options",
        );
    }
    if !config
        .options
        .values()
        .all(|value| is_within(value, MAX_OPTIONS_LEVELS))
    {
        return invalid(
            "options",
            format!(
                "nests lists or objects more than {MAX_OPTIONS_LEVELS} levels deep; flatten it"
            ),
        );
    }
    let size = serde_json::to_string(&config.options).map_or(usize::MAX, |text| text.len());
    if size > MAX_OPTIONS_BYTES {
        return invalid(
            "options",
            format!(
                "has {size} bytes as JSON and must have at most {MAX_OPTIONS_BYTES}; put large settings in a file beside the data"
            ),
        );
    }
    Ok(())
}

/// Whether a value has at most this number of levels of lists and objects.
fn is_within(value: &Value, levels: u32) -> bool {
    let fits = |inner: &Value| is_within(inner, levels - 1);
    match value {
        Value::Array(items) => levels > 0 && items.iter().all(fits),
        Value::Object(fields) => levels > 0 && fields.values().all(fits),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// The schema: any keys with any values, which the API server stores unchanged. The keys are those
/// of a map, and not unknown fields of an object, because CEL's `self == oldSelf` does not notice
/// when an unknown field is renamed. As a consequence no CEL rule can name the options; `validate`
/// reports options without effect.
#[cfg(feature = "schemars")]
pub(super) fn schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "additionalProperties": {"x-kubernetes-preserve-unknown-fields": true},
    })
}

#[cfg(test)]
mod tests;
