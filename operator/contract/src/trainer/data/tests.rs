use serde_json::json;

use super::*;

fn parse(value: serde_json::Value) -> Result<Data, serde_json::Error> {
    serde_json::from_value(value)
}

#[test]
fn idx_manifests_stay_valid_and_unchanged() {
    let value =
        json!({"format": "idx", "path": "digits", "volume": {"configMap": {"name": "digits"}}});
    let data = parse(value.clone()).unwrap();
    assert_eq!(data.validate(), Ok(()));
    assert_eq!(serde_json::to_value(&data).unwrap(), value);
    assert_eq!(
        parse(json!({"format": "idx"})).unwrap(),
        Data::new(DataFormat::Idx)
    );
}

#[test]
fn formats_have_valid_configurations() {
    let cases = [
        json!({"format": "imagefolder", "image": {"size": 224, "augment": ["resizedCrop", "flip", "randAugment"],
            "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}),
        json!({"format": "webdataset", "train": "train", "validation": "val", "shuffle": {"block": 1000, "window": 16},
            "reading": {"onCorrupt": "Skip", "threads": 8, "readAhead": 4, "cacheDir": "/cache"}}),
        json!({"format": "tfrecord", "image": {"numClasses": 1000}}),
        json!({"format": "parquet", "image": {"column": "img", "labelColumn": "fine_label"}}),
        json!({"format": "parquet", "tokens": {"context": 1024, "column": "input_ids"}}),
        json!({"format": "tokens", "tokens": {"context": 1024, "dtype": "u32"},
            "mix": [{"train": "books.bin", "weight": 0.08}, {"train": "web.bin", "weight": 0.6}]}),
        json!({"format": "text", "tokens": {"context": 256, "tokenizer": "tokenizer.json"}}),
        json!({"format": "custom", "path": "tides", "train": "2025", "validation": "2026"}),
    ];
    for value in cases {
        let data = parse(value.clone()).unwrap();
        assert_eq!(data.validate(), Ok(()), "{value}");
        let again = parse(serde_json::to_value(&data).unwrap()).unwrap();
        assert_eq!(again, data);
    }
}

#[test]
fn unknown_format_or_data_key_is_named() {
    let unknown = parse(json!({"format": "zip"})).unwrap_err().to_string();
    assert!(
        unknown.contains("zip") && unknown.contains("webdataset"),
        "{unknown}"
    );
    let key = parse(json!({"format": "idx", "image": {"sise": 3}}))
        .unwrap_err()
        .to_string();
    assert!(key.contains("sise"), "{key}");
}

#[test]
fn invalid_data_values_name_their_field() {
    let folder = |image| json!({"format": "imagefolder", "image": image});
    let tokens = |tokens| json!({"format": "tokens", "tokens": tokens});
    let reading = |reading| json!({"format": "idx", "reading": reading});
    let cases = [
        ("data.path", json!({"format": "idx", "path": "../x"})),
        ("data.path", json!({"format": "idx", "path": "a\u{0}b"})),
        (
            "data.train",
            json!({"format": "imagefolder", "train": "a/../../b"}),
        ),
        ("data.train", json!({"format": "idx", "train": "train"})),
        (
            "data.train",
            json!({"format": "tfrecord", "train": "a", "mix": [{"train": "b", "weight": 1}]}),
        ),
        (
            "data.validation",
            json!({"format": "imagefolder", "validation": ".."}),
        ),
        ("data.volume", json!({"format": "idx", "volume": {}})),
        (
            "data.mix",
            json!({"format": "idx", "mix": [{"train": "b", "weight": 1}]}),
        ),
        (
            "data.mix.weight",
            json!({"format": "tfrecord", "mix": [{"train": "b", "weight": 0}]}),
        ),
        (
            "data.mix.train",
            json!({"format": "tfrecord", "mix": [{"train": "", "weight": 1}]}),
        ),
        (
            "data.image",
            json!({"format": "tokens", "tokens": {"context": 8}, "image": {}}),
        ),
        ("data.image.size", folder(json!({"size": 0}))),
        ("data.image.size", folder(json!({"size": 5000}))),
        (
            "data.image.resize",
            folder(json!({"size": 224, "resize": 200})),
        ),
        (
            "data.image.augment",
            folder(json!({"augment": ["crop", "resizedCrop"]})),
        ),
        (
            "data.image.augment",
            folder(json!({"augment": ["flip", "flip"]})),
        ),
        ("data.image.mean", folder(json!({"mean": [0.5]}))),
        ("data.image.mean", folder(json!({"mean": [5], "std": [1]}))),
        ("data.image.std", folder(json!({"mean": [0.5], "std": [0]}))),
        ("data.image.numClasses", folder(json!({"numClasses": 1}))),
        ("data.tokens", json!({"format": "text"})),
        (
            "data.tokens",
            json!({"format": "webdataset", "tokens": {"context": 8}}),
        ),
        ("data.tokens.context", tokens(json!({"context": 0}))),
        (
            "data.tokens.tokenizer",
            tokens(json!({"context": 8, "tokenizer": "t"})),
        ),
        (
            "data.tokens.tokenizer",
            json!({"format": "text", "tokens": {"context": 8}}),
        ),
        (
            "data.tokens.vocabulary",
            tokens(json!({"context": 8, "vocabulary": 0})),
        ),
        (
            "data.shuffle.block",
            json!({"format": "idx", "shuffle": {"block": 0, "window": 1}}),
        ),
        (
            "data.shuffle.window",
            json!({"format": "idx", "shuffle": {"block": 1, "window": 0}}),
        ),
        ("data.reading.threads", reading(json!({"threads": 0}))),
        ("data.reading.readAhead", reading(json!({"readAhead": 65}))),
        (
            "data.reading.cacheDir",
            reading(json!({"cacheDir": "/a/../b"})),
        ),
    ];
    for (field, value) in cases {
        let error = parse(value.clone()).unwrap().validate().unwrap_err();
        assert_eq!(error.field, field, "{value}: {}", error.message);
        assert!(!error.message.is_empty());
    }
}
