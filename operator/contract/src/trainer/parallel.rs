//! How the processes of a worker divide what each of them would hold otherwise.

use serde::{Deserialize, Serialize};

use super::model::{BatchNorm, ModelName};
use super::{ConfigInvalid, Ddp, OptimizerName, TrainerConfig, invalid};

/// How the processes of a worker divide the state. Then they are one replica: if one of them dies,
/// all of them restart, and another worker sends them the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Parallel {
    /// The stage of `ZeRO` (Rajbhandari et al., 2020): what the processes of a worker shard. It
    /// needs the optimizer `sgd` or `adamw`, without `ema`. Default: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    /// Number of processes over which the experts of each layer of a `switch` are spread (Lepikhin
    /// et al., 2020). It must be the number of processes of a worker and divide `numExperts`, and
    /// `shard` must be `Zero2` or `Zero3`. Default: the experts are sharded like all other weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 2, max = 256)))]
    pub expert: Option<u32>,
    /// Number of processes that compute the same samples, each with a part of most weights: tensor
    /// parallelism (Shoeybi et al., 2019), for `gpt2`, `bert` and `llama`. It must be the number of
    /// processes of a worker and divide the numbers of heads. It excludes `shard`, and needs the
    /// optimizer `sgd` or `adamw`, without `ema`. Default: each process computes other samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 2, max = 256)))]
    pub tensor: Option<u32>,
}

/// What the processes of a worker shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum Shard {
    /// The state of the optimizer.
    Zero1,
    /// The state of the optimizer, and the gradients.
    Zero2,
    /// The state of the optimizer, the gradients and the weights. Each block gathers its weights
    /// before it computes, and drops them afterwards.
    Zero3,
}

impl Shard {
    /// Whether the gradients are sharded, too.
    #[must_use]
    pub const fn shards_gradients(self) -> bool {
        match self {
            Self::Zero1 => false,
            Self::Zero2 | Self::Zero3 => true,
        }
    }
}

impl Parallel {
    /// Whether each process has a copy of the state.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the processes of a worker together hold one copy of the state.
    #[must_use]
    pub const fn is_sharded(&self) -> bool {
        self.shard.is_some() || self.tensor.is_some()
    }

    /// Whether each process has only a part of the weights or of their gradients.
    #[must_use]
    pub fn divides_weights(&self) -> bool {
        self.shards_gradients() || self.tensor.is_some()
    }

    /// Whether each process has the gradients of only a part of the weights.
    #[must_use]
    pub fn shards_gradients(&self) -> bool {
        self.shard.is_some_and(Shard::shards_gradients)
    }
}

/// Refuses options that need whole weights, gradients or optimizer state.
pub(super) fn validate(config: &TrainerConfig) -> Result<(), ConfigInvalid> {
    validate_experts(config)?;
    validate_tensor(config)?;
    let parallel = config.parallel;
    let (field, name) = match (parallel.shard, parallel.tensor) {
        (None, None) => return Ok(()),
        (Some(_), _) => ("parallel.shard", "shard"),
        (None, Some(_)) => ("parallel.tensor", "tensor"),
    };
    match config.optimizer.name {
        OptimizerName::Sgd | OptimizerName::Adamw => {}
        OptimizerName::Lars | OptimizerName::Lamb => {
            return invalid(
                field,
                format!(
                    "lars and lamb use the norm of each whole tensor: set optimizer.name to sgd or adamw, or remove {name}"
                ),
            );
        }
    }
    if config.optimizer.ema.is_some() {
        return invalid(
            field,
            "optimizer.ema keeps a second copy of all weights in each process: remove one of them",
        );
    }
    if config.channels_last {
        return invalid(
            field,
            format!("weights are cut in their usual order: remove channelsLast or {name}"),
        );
    }
    if parallel.divides_weights() {
        if config.ddp != Ddp::default() {
            return invalid(
                field,
                "trainer.ddp is for gradients that are whole in each process: remove ddp, or use shard: Zero1",
            );
        }
        if config.model.batch_norm == Some(BatchNorm::Sync) {
            return invalid(
                field,
                "with model.batchNorm: Sync processes of several workers wait for each other within a pass: \
                 set batchNorm to Ghost, or shard to Zero1",
            );
        }
    }
    Ok(())
}

fn validate_tensor(config: &TrainerConfig) -> Result<(), ConfigInvalid> {
    const FIELD: &str = "parallel.tensor";
    let (model, Some(number)) = (&config.model, config.parallel.tensor) else {
        return Ok(());
    };
    if number < 2 {
        return invalid(FIELD, "weights are divided among at least 2 processes");
    }
    if config.parallel.shard.is_some() {
        return invalid(FIELD, "excludes shard: remove one of them");
    }
    let num_heads = match model.name {
        ModelName::Gpt2 | ModelName::Bert => [model.heads(); 2],
        ModelName::Llama => [model.heads(), model.num_key_value_heads()],
        ModelName::Linear
        | ModelName::Mlp
        | ModelName::Cnn
        | ModelName::Resnet18
        | ModelName::Resnet50
        | ModelName::Switch
        | ModelName::Custom => {
            return invalid(
                FIELD,
                "the models gpt2, bert and llama have layers that processes can divide: remove tensor",
            );
        }
    };
    if let Some(heads) = num_heads.iter().find(|heads| !heads.is_multiple_of(number)) {
        return invalid(
            FIELD,
            format!(
                "all processes have equally many heads of attention, and {number} does not divide {heads}: \
                 change tensor or the heads of the model"
            ),
        );
    }
    Ok(())
}

fn validate_experts(config: &TrainerConfig) -> Result<(), ConfigInvalid> {
    const FIELD: &str = "parallel.expert";
    let Some(number) = config.parallel.expert else {
        return Ok(());
    };
    if number < 2 {
        return invalid(FIELD, "experts are spread over at least 2 processes");
    }
    let num_experts = config.model.num_experts();
    match config.model.name {
        // The trainer checks the experts of the program.
        ModelName::Custom => {}
        ModelName::Switch if !num_experts.is_multiple_of(number) => {
            return invalid(
                FIELD,
                format!(
                    "all processes have equally many experts, and {number} does not divide {num_experts}: \
                     change expert or model.numExperts"
                ),
            );
        }
        ModelName::Switch => {}
        ModelName::Linear
        | ModelName::Mlp
        | ModelName::Cnn
        | ModelName::Resnet18
        | ModelName::Resnet50
        | ModelName::Gpt2
        | ModelName::Bert
        | ModelName::Llama => {
            return invalid(FIELD, "only the model switch has experts: remove expert");
        }
    }
    if !config.parallel.shards_gradients() {
        return invalid(
            FIELD,
            "the processes that have different experts shard the other weights or their gradients: \
             set shard to Zero2 or Zero3",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn config(change: &Value) -> TrainerConfig {
        let mut config = json!({
            "model": {"name": "mlp"},
            "data": {"format": "idx"},
            "globalBatchSize": 8,
            "steps": 1,
            "parallel": {"shard": "Zero1"},
        });
        for (field, value) in change.as_object().unwrap() {
            config[field] = value.clone();
        }
        serde_json::from_value(config).unwrap()
    }

    #[test]
    fn shards_of_the_optimizer_need_one_that_updates_by_element() {
        for (change, refused) in [
            (json!({}), None),
            (json!({"optimizer": {"name": "adamw"}}), None),
            (json!({"optimizer": {"name": "lars"}}), Some("lars")),
            (json!({"optimizer": {"name": "lamb"}}), Some("lamb")),
            (json!({"optimizer": {"ema": {"decay": 0.9}}}), Some("ema")),
            (json!({"channelsLast": true}), Some("channelsLast")),
        ] {
            let validated = config(&change).validate();
            match refused {
                None => assert_eq!(validated, Ok(()), "{change}"),
                Some(word) => {
                    let error = validated.unwrap_err();
                    assert_eq!(error.field, "parallel.shard");
                    assert!(error.message.contains(word), "{error}");
                }
            }
        }
    }

    #[test]
    fn divided_gradients_refuse_what_needs_whole_ones() {
        let sync = json!({"name": "resnet18", "batchNorm": "Sync"});
        for (change, word) in [
            (json!({"ddp": {"compression": "bf16"}}), "ddp"),
            (json!({"model": sync}), "batchNorm"),
            (json!({"optimizer": {"name": "lars"}}), "lars"),
            (json!({"optimizer": {"ema": {"decay": 0.9}}}), "ema"),
        ] {
            for shard in ["Zero2", "Zero3"] {
                let mut change = change.clone();
                change["parallel"] = json!({"shard": shard});
                let error = config(&change).validate().unwrap_err();
                assert_eq!(error.field, "parallel.shard");
                assert!(error.message.contains(word), "{error}");
            }
        }
    }

    #[test]
    fn experts_are_spread_evenly_beside_shards() {
        let switch = json!({"name": "switch", "numExperts": 6});
        let tokens = json!({"format": "tokens", "tokens": {"context": 8}});
        for (model, expert, shard, refused) in [
            (&switch, 2, json!("Zero2"), None),
            (&switch, 3, json!("Zero3"), None),
            (&json!({"name": "custom"}), 5, json!("Zero3"), None),
            (&switch, 4, json!("Zero3"), Some("divide 6")),
            (&switch, 1, json!("Zero3"), Some("at least 2")),
            (&switch, 2, json!("Zero1"), Some("Zero2 or Zero3")),
            (&switch, 2, Value::Null, Some("Zero2 or Zero3")),
            (&json!({"name": "gpt2"}), 2, json!("Zero3"), Some("switch")),
        ] {
            let parallel = json!({"expert": expert, "shard": shard});
            let change = json!({"model": model, "data": tokens, "parallel": parallel});
            let what = change.to_string();
            match (config(&change).validate(), refused) {
                (Ok(()), None) => {}
                (Err(error), Some(words)) => {
                    assert_eq!(error.field, "parallel.expert", "{what}");
                    assert!(error.message.contains(words), "{error}");
                }
                (found, _) => panic!("{what}: {found:?}"),
            }
        }
    }

    #[test]
    fn tensor_parallelism_divides_heads_and_needs_no_shards() {
        let gpt2 = json!({"name": "gpt2", "heads": 6});
        let llama = json!({"name": "llama", "heads": 6, "numKeyValueHeads": 3});
        let tokens = json!({"format": "tokens", "tokens": {"context": 8}});
        for (model, parallel, other, refused) in [
            (&gpt2, json!({"tensor": 2}), json!({}), None),
            (&llama, json!({"tensor": 3}), json!({}), None),
            (&gpt2, json!({"tensor": 4}), json!({}), Some("divide 6")),
            (&llama, json!({"tensor": 2}), json!({}), Some("divide 3")),
            (&gpt2, json!({"tensor": 1}), json!({}), Some("at least 2")),
            (
                &gpt2,
                json!({"tensor": 2, "shard": "Zero3"}),
                json!({}),
                Some("excludes shard"),
            ),
            (
                &json!({"name": "switch"}),
                json!({"tensor": 2}),
                json!({}),
                Some("gpt2"),
            ),
            (
                &gpt2,
                json!({"tensor": 2}),
                json!({"optimizer": {"name": "lamb"}}),
                Some("lamb"),
            ),
            (
                &gpt2,
                json!({"tensor": 2}),
                json!({"optimizer": {"ema": {"decay": 0.9}}}),
                Some("ema"),
            ),
            (
                &gpt2,
                json!({"tensor": 2}),
                json!({"ddp": {"compression": "bf16"}}),
                Some("ddp"),
            ),
        ] {
            let mut change = json!({"model": model, "data": tokens, "parallel": parallel});
            change
                .as_object_mut()
                .unwrap()
                .extend(other.as_object().unwrap().clone());
            let what = change.to_string();
            match (config(&change).validate(), refused) {
                (Ok(()), None) => {}
                (Err(error), Some(words)) => {
                    assert_eq!(error.field, "parallel.tensor", "{what}");
                    assert!(error.message.contains(words), "{error}");
                }
                (found, _) => panic!("{what}: {found:?}"),
            }
        }
    }

    #[test]
    fn default_parallelism_is_not_written() {
        assert!(!config(&json!({"parallel": {}})).parallel.is_sharded());
        let text = serde_json::to_string(&config(&json!({"parallel": {}}))).unwrap();
        assert!(!text.contains("parallel"), "{text}");
        let text = serde_json::to_string(&config(&json!({}))).unwrap();
        assert!(text.contains(r#""parallel":{"shard":"Zero1"}"#), "{text}");
    }
}
