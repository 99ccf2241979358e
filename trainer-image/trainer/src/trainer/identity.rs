//! Computes from the configuration the identity of the training to which a checkpoint belongs.
//! Pure.

use std::collections::BTreeMap;

use roundhouse_contract::TrainerConfig;
use roundhouse_contract::trainer::{ModelName, data::Part};
use roundhouse_elastic::ledger::LedgerIdentity;
use roundhouse_elastic::{Blocks, DataSchedule};
use roundhouse_member::checkpoint::Identity;

/// The properties that must be equal for training to continue from a state.
pub(super) fn identity_of(
    config: &TrainerConfig,
    data_schedule: &DataSchedule,
    blocks: Option<Blocks>,
) -> Identity {
    let TrainerConfig {
        model, optimizer, ..
    } = config;
    Identity {
        model: name(&model.name),
        optimizer: name(&optimizer.name),
        ledger: LedgerIdentity {
            reference_replicas: config.scale_batch.map(|scale| scale.reference_replicas),
            blocks,
            ..LedgerIdentity::of(data_schedule, config.seed)
        },
        settings: settings(config),
    }
}

/// Fields that change the computation without changing a tensor's shape. Fields that users tune
/// during a training, such as the learning rate, are not among them.
fn settings(config: &TrainerConfig) -> BTreeMap<String, String> {
    let model = &config.model;
    let none = || "none".to_owned();
    let mut settings = BTreeMap::new();
    let mut set = |field: &str, value: String| settings.insert(field.to_owned(), value);
    if matches!(
        model.name,
        ModelName::Gpt2 | ModelName::Bert | ModelName::Llama | ModelName::Switch
    ) {
        set("model.heads", model.heads().to_string());
    }
    if model.name == ModelName::Llama {
        set("model.ropeTheta", model.rope_theta().to_string());
        set("model.normEpsilon", model.norm_epsilon().to_string());
    }
    if model.name == ModelName::Switch {
        set("model.capacityFactor", model.capacity_factor().to_string());
    }
    if let Some(batch_norm) = model.batch_norm() {
        set("model.batchNorm", name(&batch_norm));
        set(
            "model.ghostBatch",
            model.ghost_batch().map_or_else(none, |it| it.to_string()),
        );
    }
    set(
        "slices",
        config.slices.map_or_else(none, |it| it.to_string()),
    );
    let part = |Part { train, weight }: &Part| format!("{train} of weight {weight}");
    let mix: Vec<String> = config.data.mix.iter().map(part).collect();
    set(
        "data.mix",
        if mix.is_empty() {
            none()
        } else {
            mix.join(", ")
        },
    );
    settings
}

/// The name of an enum's value in the configuration.
fn name(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_value(value).unwrap_or_default();
    text.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(change: impl FnOnce(&mut serde_json::Value)) -> TrainerConfig {
        let mut value = serde_json::json!({
            "model": {"name": "gpt2", "heads": 4, "width": 8},
            "data": {"format": "tokens"},
            "optimizer": {"name": "sgd", "learningRate": 0.1},
            "globalBatchSize": 8,
            "epochs": 1,
        });
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn identity_ignores_tuned_fields() {
        let of =
            |config: &TrainerConfig| identity_of(config, &DataSchedule::of_steps(100, 8, 50), None);
        let before = of(&config(|_| {}));
        for (field, value) in [
            ("/model/heads", serde_json::json!(2)),
            ("/slices", serde_json::json!(4)),
            (
                "/data/mix",
                serde_json::json!([{"train": "a", "weight": 2.0}]),
            ),
        ] {
            let changed = config(|it| {
                let (parent, key) = field.rsplit_once('/').unwrap();
                it.pointer_mut(parent).unwrap()[key] = value;
            });
            assert_ne!(of(&changed), before, "{field}");
        }
        let tuned = config(|it| {
            it["optimizer"]["learningRate"] = 0.01.into();
            it["model"]["dropout"] = 0.5.into();
        });
        assert_eq!(of(&tuned), before);
    }

    #[test]
    fn rotary_positions_of_a_llama_are_part_of_the_identity() {
        let of = |model: serde_json::Value| settings(&config(|it| it["model"] = model));
        let default = of(serde_json::json!({"name": "llama"}));
        for (field, value) in [("ropeTheta", 5e5), ("normEpsilon", 1e-6)] {
            let changed = of(serde_json::json!({"name": "llama", field: value}));
            assert_ne!(changed, default, "{field}");
        }
    }

    #[test]
    fn capacity_of_experts_is_part_of_the_identity() {
        let of = |model: serde_json::Value| settings(&config(|it| it["model"] = model));
        let default = of(serde_json::json!({"name": "switch"}));
        let changed = of(serde_json::json!({"name": "switch", "capacityFactor": 2.0}));
        assert_ne!(changed, default);
    }

    #[test]
    fn batch_norm_groups_are_part_of_the_identity() {
        let of = |batch_norm: &str| {
            settings(&config(|it| {
                it["model"] = serde_json::json!({"name": "resnet18", "batchNorm": batch_norm});
            }))
        };
        assert_eq!(of("Ghost")["model.ghostBatch"], "32");
        assert_eq!(of("Sync")["model.batchNorm"], "Sync");
        assert!(!of("Ghost").contains_key("model.heads"));
    }
}
