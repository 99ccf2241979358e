//! Which activations a step keeps between the forward and the backward pass.

use serde::{Deserialize, Serialize};

use super::{ConfigInvalid, ModelName, TrainerConfig, invalid};

/// Which activations are computed again in the backward pass, so that the step needs less memory
/// and more time (Chen et al. 2016).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum ActivationCheckpointing {
    /// All activations are kept.
    #[default]
    None,
    /// Each block of a `gpt2`, `bert`, `llama`, `switch`, `resnet18` or `resnet50` keeps only its
    /// input.
    Blocks,
}

impl ActivationCheckpointing {
    /// Whether it is `None`.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Refuses blocks for a model that has none.
pub(super) fn validate(config: &TrainerConfig) -> Result<(), ConfigInvalid> {
    let name = config.model.name;
    let advice = match (config.activation_checkpointing, name) {
        (ActivationCheckpointing::None, _)
        | (
            _,
            ModelName::Gpt2
            | ModelName::Bert
            | ModelName::Llama
            | ModelName::Switch
            | ModelName::Resnet18
            | ModelName::Resnet50,
        ) => return Ok(()),
        (_, ModelName::Linear | ModelName::Mlp | ModelName::Cnn) => {
            "lower microBatchSize to save memory"
        }
        (_, ModelName::Custom) => "your program decides with roundhouse_trainer::Segment",
    };
    invalid(
        "activationCheckpointing",
        format!(
            "Blocks is for gpt2, bert, llama, switch, resnet18 and resnet50; remove it for model.name: {}, and {advice}",
            name.as_str()
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(model: &str, switch: &str) -> TrainerConfig {
        let config = json!({
            "model": {"name": model},
            "data": {"format": "custom"},
            "activationCheckpointing": switch,
            "globalBatchSize": 8,
            "steps": 1,
        });
        serde_json::from_value(config).unwrap()
    }

    #[test]
    fn blocks_need_a_model_with_blocks() {
        for model in ["gpt2", "bert", "llama", "switch", "resnet18", "resnet50"] {
            assert_eq!(config(model, "Blocks").validate(), Ok(()), "{model}");
        }
        for (model, advice) in [
            ("linear", "microBatchSize"),
            ("mlp", "microBatchSize"),
            ("cnn", "microBatchSize"),
            ("custom", "your program"),
        ] {
            let error = config(model, "Blocks").validate().unwrap_err();
            assert_eq!(error.field, "activationCheckpointing");
            let remedy = format!("remove it for model.name: {model}");
            assert!(error.message.contains(&remedy), "{error}");
            assert!(error.message.contains(advice), "{error}");
            assert_eq!(config(model, "None").validate(), Ok(()), "{model}");
        }
    }

    #[test]
    fn default_activation_checkpointing_is_not_written() {
        let text = serde_json::to_string(&config("gpt2", "None")).unwrap();
        assert!(!text.contains("activationCheckpointing"), "{text}");
        let blocks = config("gpt2", "Blocks");
        let text = serde_json::to_string(&blocks).unwrap();
        assert!(
            text.contains(r#""activationCheckpointing":"Blocks""#),
            "{text}"
        );
        assert_eq!(
            serde_json::from_str::<TrainerConfig>(&text).unwrap(),
            blocks
        );
    }
}
