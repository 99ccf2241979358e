use super::*;

fn smallest() -> serde_json::Value {
    serde_json::json!({
        "model": {"name": "mlp"},
        "data": {"format": "idx", "volume": {"configMap": {"name": "digits"}}},
        "globalBatchSize": 64,
        "epochs": 2,
    })
}

/// Keys that the first version wrote.
const KEYS: [&str; 34] = [
    "data.format",
    "data.volume.configMap.name",
    "data.volume.configMap",
    "data.volume",
    "data",
    "ddp.bucketCapMiB",
    "ddp.firstBucketMiB",
    "ddp",
    "epochs",
    "eval.everyEpochs",
    "eval",
    "globalBatchSize",
    "model.name",
    "model",
    "optimizer.beta1",
    "optimizer.beta2",
    "optimizer.epsilon",
    "optimizer.learningRate",
    "optimizer.momentum",
    "optimizer.name",
    "optimizer.nesterov",
    "optimizer.trustCoefficient",
    "optimizer.weightDecay",
    "optimizer",
    "schedule.decayFraction",
    "schedule.decayShape",
    "schedule.gamma",
    "schedule.minFactor",
    "schedule.name",
    "schedule.power",
    "schedule.stepEpochs",
    "schedule.warmupSteps",
    "schedule",
    "seed",
];

fn parse(change: impl FnOnce(&mut serde_json::Value)) -> Result<TrainerConfig, serde_json::Error> {
    let mut value = smallest();
    change(&mut value);
    serde_json::from_value(value)
}

/// Keys of all objects in a document, as paths.
fn keys(value: &serde_json::Value, path: &str, found: &mut Vec<String>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}{key}");
        keys(value, &format!("{path}."), found);
        found.push(path);
    }
}

/// A trainer refuses unknown keys, since it would train something else. So that a trainer of an
/// earlier version works with a newer operator, a new key is left out while it has its default.
#[test]
fn new_keys_are_written_only_when_used() {
    let mut found = Vec::new();
    let config = serde_json::to_value(parse(|_| {}).unwrap()).unwrap();
    keys(&config, "", &mut found);
    assert_eq!(found, KEYS, "give the new field skip_serializing_if");
}

#[test]
fn minimal_configuration_has_defaults() {
    let config = parse(|_| {}).unwrap();
    assert_eq!(config.validate(), Ok(()));
    assert_eq!(config.optimizer, Optimizer::default());
    let text = serde_json::to_string(&config).unwrap();
    assert_eq!(
        serde_json::from_str::<TrainerConfig>(&text).unwrap(),
        config
    );
}

#[test]
fn unknown_key_is_named() {
    let error =
        parse(|value| value["optimizer"] = serde_json::json!({"lerningRate": 1})).unwrap_err();
    assert!(error.to_string().contains("lerningRate"), "{error}");
}

#[test]
fn invalid_trainer_values_name_their_field() {
    type Change = fn(&mut TrainerConfig);
    let cases: [(&str, Change); 13] = [
        ("epochs", |c| c.epochs = None),
        ("steps", |c| c.steps = Some(5)),
        ("globalBatchSize", |c| c.global_batch_size = 0),
        ("peakFlops", |c| c.peak_flops = Some(0.0)),
        ("microBatchSize", |c| c.micro_batch_size = Some(0)),
        ("model.channels", |c| c.model.channels = Some(vec![1])),
        ("model.hidden", |c| c.model.hidden = Some(vec![])),
        ("data.path", |c| {
            c.data.path = Some("a/../../etc".to_owned())
        }),
        ("data.volume", |c| {
            c.data.volume = Some(DataVolume {
                config_map: None,
                persistent_volume_claim: None,
            });
        }),
        ("optimizer.learningRate", |c| {
            c.optimizer.learning_rate = f64::NAN
        }),
        ("optimizer.momentum", |c| c.optimizer.momentum = 1.0),
        ("schedule.gamma", |c| c.schedule.gamma = 0.0),
        ("scaleBatch.referenceReplicas", |c| {
            c.scale_batch = Some(ScaleBatch {
                reference_replicas: 0,
                rule: crate::RateRule::Linear,
                warmup_steps: 0,
            });
        }),
    ];
    for (field, change) in cases {
        let mut config = parse(|_| {}).unwrap();
        change(&mut config);
        assert_eq!(config.validate().unwrap_err().field, field);
    }
}

#[test]
fn cudnn_benchmark_is_off_only_if_deterministic() {
    for (deterministic, given, found) in [
        (false, None, Some(true)),
        (false, Some(false), Some(false)),
        (false, Some(true), Some(true)),
        (true, None, Some(false)),
        (true, Some(false), Some(false)),
        (true, Some(true), None),
    ] {
        let config = parse(|value| {
            value["deterministic"] = deterministic.into();
            if let Some(given) = given {
                value["cudnnBenchmark"] = given.into();
            }
        });
        let config = config.unwrap();
        let switch = config.validate().map(|()| config.has_cudnn_benchmark());
        let refused = switch.as_ref().err().map(|error| error.field);
        let words = format!("deterministic {deterministic}, cudnnBenchmark {given:?}");
        assert_eq!(switch.ok(), found, "{words}");
        assert_eq!(
            refused,
            found.is_none().then_some("cudnnBenchmark"),
            "{words}"
        );
    }
}

#[test]
fn synchronized_batch_norm_needs_a_single_pass() {
    let with = |change: fn(&mut serde_json::Value)| {
        let config = parse(|value| {
            value["model"] = serde_json::json!({"name": "resnet18", "batchNorm": "Sync"});
            change(value);
        });
        config.unwrap().validate()
    };
    assert_eq!(with(|_| {}), Ok(()));
    let passes = with(|value| value["microBatchSize"] = 8.into()).unwrap_err();
    assert_eq!(passes.field, "microBatchSize");
    assert!(passes.message.contains("remove microBatchSize"), "{passes}");
    let slices = with(|value| value["slices"] = 4.into()).unwrap_err();
    assert_eq!(slices.field, "slices");
    assert!(
        slices.message.contains("model.batchNorm: Ghost"),
        "{slices}"
    );
    let blocks = with(|value| value["activationCheckpointing"] = "Blocks".into()).unwrap_err();
    assert_eq!(blocks.field, "activationCheckpointing");
    let groups = with(|value| {
        value["model"] = serde_json::json!({"name": "resnet18"});
        (value["microBatchSize"], value["slices"]) = (8.into(), 4.into());
        value["activationCheckpointing"] = "Blocks".into();
    });
    assert_eq!(groups, Ok(()));
}

#[test]
fn fields_without_effect_are_refused() {
    type Change = fn(&mut TrainerConfig);
    let cases: [(&str, Change, Change); 5] = [
        (
            "lossScaling",
            |c| c.loss_scaling.initial = 4.0,
            |c| c.precision = Precision::Fp16,
        ),
        (
            "maxConsecutiveSkips",
            |c| c.max_consecutive_skips = 3,
            |c| c.on_non_finite = OnNonFinite::Skip,
        ),
        (
            "ddp.compression",
            |c| (c.slices, c.ddp.compression) = (Some(4), Compression::Bf16),
            |c| c.slices = None,
        ),
        (
            "ddp.compression",
            |c| (c.slices, c.ddp.compression) = (Some(4), Compression::PowerSgd),
            |c| c.slices = None,
        ),
        (
            "ddp.powerSGD",
            |c| c.ddp.power_sgd = Some(PowerSgd::default()),
            |c| c.ddp.compression = Compression::PowerSgd,
        ),
    ];
    for (field, change, remedy) in cases {
        let mut config = parse(|_| {}).unwrap();
        change(&mut config);
        assert_eq!(config.validate().unwrap_err().field, field);
        remedy(&mut config);
        assert_eq!(config.validate(), Ok(()), "{field}");
    }
}

#[test]
fn model_must_read_the_data_format() {
    let with = |model: &str, format: &str| {
        let config = parse(|value| {
            value["model"] = serde_json::json!({ "name": model });
            value["data"] = serde_json::json!({ "format": format });
            match format {
                "tokens" => value["data"]["tokens"] = serde_json::json!({"context": 8}),
                "text" => {
                    let tokens = serde_json::json!({"context": 8, "tokenizer": "tokenizer.json"});
                    value["data"]["tokens"] = tokens;
                }
                _ => {}
            }
        });
        config.unwrap().validate().err().map(|error| error.field)
    };
    for (model, format, refused) in [
        ("gpt2", "idx", Some("data.format")),
        ("bert", "imagefolder", Some("data.format")),
        ("mlp", "tokens", Some("data.format")),
        ("resnet18", "text", Some("data.format")),
        ("gpt2", "tokens", None),
        ("llama", "idx", Some("data.format")),
        ("llama", "text", None),
        ("switch", "idx", Some("data.format")),
        ("switch", "text", None),
        ("bert", "parquet", None),
        ("gpt2", "custom", None),
        ("mlp", "custom", None),
        ("cnn", "webdataset", None),
    ] {
        assert_eq!(with(model, format), refused, "{model} {format}");
    }
}

#[test]
fn power_sgd_is_written_with_rank_and_start() {
    let with = |ddp: serde_json::Value| parse(|value| value["ddp"] = ddp).unwrap();
    let plain = with(serde_json::json!({"compression": "PowerSGD"}));
    assert_eq!(plain.validate(), Ok(()));
    assert_eq!(plain.ddp.compression, Compression::PowerSgd);
    let given = with(serde_json::json!({"compression": "PowerSGD", "powerSGD": {"rank": 4}}));
    assert_eq!(given.validate(), Ok(()));
    let settings = PowerSgd {
        rank: 4,
        ..PowerSgd::default()
    };
    assert_eq!(given.ddp.power_sgd, Some(settings));
    for config in [plain, given] {
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(
            serde_json::from_str::<TrainerConfig>(&text).unwrap(),
            config
        );
    }
    for rank in [0, 65] {
        let settings = serde_json::json!({"rank": rank});
        let config = with(serde_json::json!({"compression": "PowerSGD", "powerSGD": settings}));
        assert_eq!(config.validate().unwrap_err().field, "ddp.powerSGD.rank");
    }
}
