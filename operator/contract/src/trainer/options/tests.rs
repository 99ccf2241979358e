use serde::Deserialize;
use serde_json::json;

use super::*;

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Mine {
    num_units: u32,
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Layer {
    width: f64,
}

fn config(model: &str, format: &str, options: &Value) -> TrainerConfig {
    let config = json!({
        "model": {"name": model},
        "data": {"format": format},
        "options": options,
        "globalBatchSize": 8,
        "steps": 1,
    });
    serde_json::from_value(config).unwrap()
}

fn refused(options: &Value) -> String {
    let config = config("custom", "custom", options);
    let invalid = config.options::<Mine>().unwrap_err();
    invalid.to_string()
}

#[test]
fn options_read_as_a_type_and_survive_the_file() {
    let config = config(
        "custom",
        "custom",
        &json!({"numUnits": 8, "layers": [{"width": 0.5}]}),
    );
    assert_eq!(config.validate(), Ok(()));
    let text = serde_json::to_string(&config).unwrap();
    let again: TrainerConfig = serde_json::from_str(&text).unwrap();
    assert_eq!(again, config);
    let expected = Mine {
        num_units: 8,
        layers: vec![Layer { width: 0.5 }],
    };
    assert_eq!(again.options::<Mine>(), Ok(expected));
}

#[test]
fn unreadable_option_names_its_key() {
    let wrong_type = refused(&json!({"numUnits": "many"}));
    assert!(
        wrong_type.starts_with("trainer.options.numUnits: invalid type"),
        "{wrong_type}"
    );
    let nested = refused(&json!({"numUnits": 1, "layers": [{"width": 1.0}, {"width": true}]}));
    assert!(
        nested.starts_with("trainer.options.layers[1].width: "),
        "{nested}"
    );
    let unknown = refused(&json!({"numUnit": 1}));
    assert!(
        unknown.starts_with("trainer.options.numUnit: unknown field"),
        "{unknown}"
    );
    let missing = refused(&json!({}));
    assert_eq!(missing, "trainer.options: missing field `numUnits`");
    let own = OptionsInvalid::new("numUnits", "must be at least 1");
    assert_eq!(
        own.to_string(),
        "trainer.options.numUnits: must be at least 1"
    );
}

#[test]
fn options_need_a_custom_model_or_custom_data() {
    let options = json!({"numUnits": 8});
    for (model, format) in [("custom", "idx"), ("mlp", "custom"), ("custom", "custom")] {
        assert_eq!(config(model, format, &options).validate(), Ok(()));
    }
    let invalid = config("mlp", "idx", &options).validate().unwrap_err();
    assert_eq!(invalid.field, "options");
    assert!(
        invalid
            .message
            .contains("set model.name or data.format to custom"),
        "{invalid}"
    );
    assert_eq!(config("mlp", "idx", &json!({})).validate(), Ok(()));
}

#[test]
fn oversized_options_are_refused() {
    let options = json!({"table": "x".repeat(MAX_OPTIONS_BYTES)});
    let invalid = config("custom", "idx", &options).validate().unwrap_err();
    assert_eq!(invalid.field, "options");
    assert!(invalid.message.contains("at most 65536"), "{invalid}");
}

#[test]
fn deeply_nested_options_are_refused() {
    let nested = |levels: u32| (0..levels).fold(json!(1), |inner, _| json!({"in": [inner]}));
    let config = |levels| config("custom", "idx", &json!({"deep": nested(levels)}));
    assert_eq!(config(MAX_OPTIONS_LEVELS / 2).validate(), Ok(()));
    let invalid = config(MAX_OPTIONS_LEVELS / 2 + 1).validate().unwrap_err();
    assert_eq!(invalid.field, "options");
    assert!(invalid.message.contains("32 levels deep"), "{invalid}");
}

#[test]
fn built_in_program_refuses_custom_with_advice() {
    let field = |model, format| {
        let refused = config(model, format, &json!({})).refuse_custom();
        refused.err().map(|invalid| {
            assert!(
                invalid.message.contains("image with your program"),
                "{invalid}"
            );
            invalid.field
        })
    };
    assert_eq!(field("mlp", "idx"), None);
    assert_eq!(field("custom", "idx"), Some("model.name"));
    assert_eq!(field("mlp", "custom"), Some("data.format"));
}

#[test]
fn custom_model_and_data_refuse_built_in_fields() {
    type Change = fn(&mut TrainerConfig);
    let cases: [(&str, Change); 7] = [
        ("model.layers", |c| c.model.layers = Some(2)),
        ("model.labelSmoothing", |c| {
            c.model.label_smoothing = Some(0.1)
        }),
        ("data.image", |c| {
            c.data.image = Some(super::super::data::ImageOptions::default())
        }),
        ("data.tokens", |c| {
            c.data.tokens = serde_json::from_value(json!({"context": 8})).unwrap();
        }),
        ("data.mix", |c| {
            c.data.mix = serde_json::from_value(json!([{"train": "a", "weight": 1}])).unwrap();
        }),
        ("data.shuffle", |c| {
            c.data.shuffle = serde_json::from_value(json!({"block": 8, "window": 2})).unwrap();
        }),
        ("data.reading", |c| c.data.reading.read_ahead = 7),
    ];
    for (field, change) in cases {
        let mut config = config("custom", "custom", &json!({}));
        change(&mut config);
        let invalid = config.validate().unwrap_err();
        assert_eq!(invalid.field, field);
        assert!(invalid.message.contains("trainer.options"), "{invalid}");
    }
}
