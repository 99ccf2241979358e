use serde_json::{Value, json};

use super::super::TrainerConfig;

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

/// Checks that a change is valid, or refused with a field and words.
fn assert_refused(change: &Value, field: &str, refused: Option<&str>) {
    match (config(change).validate(), refused) {
        (Ok(()), None) => {}
        (Err(error), Some(words)) => {
            assert_eq!(error.field, field, "{change}");
            assert!(error.message.contains(words), "{error}");
        }
        (found, _) => panic!("{change}: {found:?}"),
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
        assert_refused(&change, "parallel.expert", refused);
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
            &json!({"name": "gpt2", "heads": 6, "vocabulary": 2}),
            json!({"tensor": 3}),
            json!({}),
            Some("needs a token"),
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
        assert_refused(&change, "parallel.tensor", refused);
    }
}

#[test]
fn pipeline_has_a_layer_in_each_process() {
    let gpt2 = json!({"name": "gpt2", "layers": 3});
    let tokens = json!({"format": "tokens", "tokens": {"context": 8}});
    for (model, parallel, refused) in [
        (&gpt2, json!({"pipeline": 3}), None),
        (&gpt2, json!({"pipeline": 4}), Some("has 3")),
        (&gpt2, json!({"pipeline": 1}), Some("at least 2")),
        (
            &gpt2,
            json!({"pipeline": 2, "shard": "Zero1"}),
            Some("excludes"),
        ),
        (
            &json!({"name": "switch"}),
            json!({"pipeline": 2}),
            Some("gpt2"),
        ),
    ] {
        let change = json!({"model": model, "data": tokens, "parallel": parallel});
        assert_refused(&change, "parallel.pipeline", refused);
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
