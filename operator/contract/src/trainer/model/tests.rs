use super::super::data::DataVolume;
use super::*;

const ALL: [ModelName; 10] = [
    ModelName::Linear,
    ModelName::Mlp,
    ModelName::Cnn,
    ModelName::Resnet18,
    ModelName::Resnet50,
    ModelName::Gpt2,
    ModelName::Bert,
    ModelName::Llama,
    ModelName::Switch,
    ModelName::Custom,
];

#[test]
fn models_are_valid_with_defaults_and_round_trip() {
    for name in ALL {
        let model = Model::new(name);
        assert_eq!(model.validate(), Ok(()), "{name:?}");
        let text = serde_json::to_string(&model).unwrap();
        assert_eq!(text, format!(r#"{{"name":"{}"}}"#, name.as_str()));
        assert_eq!(serde_json::from_str::<Model>(&text).unwrap(), model);
    }
}

#[test]
fn unknown_model_is_refused_with_known_names() {
    let error = serde_json::from_str::<Model>(r#"{"name":"resnet34"}"#).unwrap_err();
    let message = error.to_string();
    for name in ALL {
        assert!(message.contains(name.as_str()), "{message}");
    }
}

#[test]
fn model_fields_have_documented_names() {
    let text = r#"{"name":"resnet50","stem":"cifar","ghostBatch":16,"zeroInitResidual":true,
        "labelSmoothing":0.1,"initFrom":{"path":"resnet50.safetensors","skip":["fc."]}}"#;
    let model: Model = serde_json::from_str(text).unwrap();
    assert_eq!(model.validate(), Ok(()));
    assert_eq!(model.stem(), Stem::Cifar);
    assert_eq!(model.ghost_batch(), Some(16));
    assert!(model.zero_init_residual());
    assert_eq!(model.init_from.unwrap().skip, ["fc."]);
}

#[test]
fn only_resnets_have_batch_norm_groups() {
    let with_groups: Vec<ModelName> = ALL
        .into_iter()
        .filter(|name| Model::new(*name).ghost_batch().is_some())
        .collect();
    assert_eq!(with_groups, [ModelName::Resnet18, ModelName::Resnet50]);
}

#[test]
fn batch_norm_default_is_ghost() {
    let of = |text: &str| {
        let model: Model = serde_json::from_str(text).unwrap();
        assert_eq!(model.validate(), Ok(()), "{text}");
        (model.batch_norm(), model.ghost_batch())
    };
    assert_eq!(
        of(r#"{"name":"resnet18"}"#),
        (Some(BatchNorm::Ghost), Some(32))
    );
    assert_eq!(
        of(r#"{"name":"resnet18","ghostBatch":0}"#),
        (Some(BatchNorm::PerRank), None)
    );
    assert_eq!(
        of(r#"{"name":"resnet50","batchNorm":"Sync"}"#),
        (Some(BatchNorm::Sync), None)
    );
    assert_eq!(of(r#"{"name":"cnn"}"#), (None, None));
}

type Change = fn(&mut Model);

/// Asserts that each change of a valid model is refused with the field's name and advice.
fn assert_refused(cases: &[(ModelName, Change, &str, &str)]) {
    for (name, change, field, remedy) in cases {
        let mut model = Model::new(*name);
        change(&mut model);
        let invalid = model.validate().unwrap_err();
        assert_eq!(invalid.field, *field);
        assert!(invalid.message.contains(remedy), "{invalid}");
    }
}

#[test]
fn field_of_another_model_is_refused_with_own_fields() {
    use ModelName::{Bert, Cnn, Gpt2, Linear, Mlp, Resnet18};
    assert_refused(&[
        (
            Mlp,
            |m| m.channels = Some(vec![1]),
            "model.channels",
            "is for a cnn; an mlp has hidden",
        ),
        (
            Cnn,
            |m| m.hidden = Some(vec![1]),
            "model.hidden",
            "is for an mlp; a cnn has channels",
        ),
        (
            Linear,
            |m| m.hidden = Some(vec![1]),
            "model.hidden",
            "a linear model has no sizes",
        ),
        (
            Gpt2,
            |m| m.stem = Some(Stem::Cifar),
            "model.stem",
            "is for a resnet",
        ),
        (
            Bert,
            |m| m.ghost_batch = Some(8),
            "model.ghostBatch",
            "is for a resnet",
        ),
        (
            Gpt2,
            |m| m.batch_norm = Some(BatchNorm::Sync),
            "model.batchNorm",
            "is for a resnet",
        ),
        (
            Cnn,
            |m| m.zero_init_residual = Some(true),
            "model.zeroInitResidual",
            "for a resnet",
        ),
        (
            Resnet18,
            |m| m.layers = Some(18),
            "model.layers",
            "is for gpt2, bert, llama and switch",
        ),
        (
            Resnet18,
            |m| m.dropout = Some(0.1),
            "model.dropout",
            "is for gpt2, bert, llama and switch",
        ),
    ]);
}

#[test]
fn ghost_batch_without_ghost_batch_norm_is_refused() {
    use ModelName::Resnet18;
    assert_refused(&[
        (
            Resnet18,
            |m| (m.batch_norm, m.ghost_batch) = (Some(BatchNorm::Sync), Some(32)),
            "model.ghostBatch",
            "remove ghostBatch",
        ),
        (
            Resnet18,
            |m| (m.batch_norm, m.ghost_batch) = (Some(BatchNorm::Ghost), Some(0)),
            "model.ghostBatch",
            "set batchNorm: PerRank",
        ),
    ]);
}

#[test]
fn invalid_model_size_names_field_and_advice() {
    use ModelName::{Bert, Cnn, Gpt2, Mlp};
    assert_refused(&[
        (
            Mlp,
            |m| m.hidden = Some(vec![]),
            "model.hidden",
            "at least one layer",
        ),
        (
            Cnn,
            |m| m.channels = Some(vec![8, 0]),
            "model.channels",
            "each one channel",
        ),
        (Gpt2, |m| m.layers = Some(0), "model.layers", "at least 1"),
        (Gpt2, |m| m.heads = Some(0), "model.heads", "at least 1"),
        (
            Gpt2,
            |m| m.heads = Some(7),
            "model.heads",
            "7 heads do not divide 768",
        ),
        (
            Bert,
            |m| m.vocabulary = Some(1),
            "model.vocabulary",
            "at least 2",
        ),
        (
            Bert,
            |m| m.dropout = Some(f64::NAN),
            "model.dropout",
            "below 1",
        ),
        (
            Mlp,
            |m| m.label_smoothing = Some(1.0),
            "model.labelSmoothing",
            "below 1",
        ),
        (
            Gpt2,
            |m| m.init_from = Some(file("a/../b")),
            "model.initFrom.path",
            "`..`",
        ),
        (
            Gpt2,
            |m| m.init_from = Some(file("")),
            "model.initFrom.path",
            "give the path",
        ),
    ]);
}

#[test]
fn field_of_a_llama_is_refused_for_gpt2() {
    let cases: [(&str, Change); 5] = [
        ("model.numKeyValueHeads", |m| {
            m.num_key_value_heads = Some(1)
        }),
        ("model.innerWidth", |m| m.inner_width = Some(64)),
        ("model.ropeTheta", |m| m.rope_theta = Some(1e4)),
        ("model.normEpsilon", |m| m.norm_epsilon = Some(1e-6)),
        ("model.tieEmbeddings", |m| m.tie_embeddings = Some(true)),
    ];
    for (field, change) in cases {
        assert_refused(&[(ModelName::Gpt2, change, field, "is for a llama")]);
        let mut llama = Model::new(ModelName::Llama);
        change(&mut llama);
        assert_eq!(llama.validate(), Ok(()), "{field}");
    }
}

#[test]
fn invalid_llama_size_names_field_and_advice() {
    use ModelName::Llama;
    assert_refused(&[
        (
            Llama,
            |m| m.heads = Some(7),
            "model.heads",
            "7 heads do not divide 768",
        ),
        (
            Llama,
            |m| m.num_key_value_heads = Some(5),
            "model.numKeyValueHeads",
            "do not divide 12",
        ),
        (
            Llama,
            |m| m.width = Some(36),
            "model.heads",
            "width / heads is 3",
        ),
        (
            Llama,
            |m| m.num_key_value_heads = Some(0),
            "model.numKeyValueHeads",
            "at least 1",
        ),
        (
            Llama,
            |m| m.inner_width = Some(0),
            "model.innerWidth",
            "at least 1",
        ),
        (
            Llama,
            |m| m.rope_theta = Some(f64::NAN),
            "model.ropeTheta",
            "at least 1",
        ),
        (
            Llama,
            |m| m.norm_epsilon = Some(0.0),
            "model.normEpsilon",
            "at most 0.1",
        ),
        (
            Llama,
            |m| m.stem = Some(Stem::Cifar),
            "model.stem",
            "a llama has layers",
        ),
    ]);
}

#[test]
fn field_of_a_switch_is_refused_for_gpt2() {
    let cases: [(&str, Change); 3] = [
        ("model.numExperts", |m| m.num_experts = Some(4)),
        ("model.capacityFactor", |m| m.capacity_factor = Some(1.0)),
        ("model.routerAuxLossCoef", |m| {
            m.router_aux_loss_coef = Some(0.1)
        }),
    ];
    for (field, change) in cases {
        assert_refused(&[(ModelName::Gpt2, change, field, "is for a switch")]);
        let mut switch = Model::new(ModelName::Switch);
        change(&mut switch);
        assert_eq!(switch.validate(), Ok(()), "{field}");
    }
}

#[test]
fn invalid_switch_size_names_field_and_advice() {
    use ModelName::Switch;
    assert_refused(&[
        (
            Switch,
            |m| m.layers = Some(1),
            "model.layers",
            "every second block has experts",
        ),
        (
            Switch,
            |m| m.num_experts = Some(1),
            "model.numExperts",
            "at least 2",
        ),
        (
            Switch,
            |m| m.capacity_factor = Some(0.0),
            "model.capacityFactor",
            "at least 0.1",
        ),
        (
            Switch,
            |m| m.router_aux_loss_coef = Some(f64::NAN),
            "model.routerAuxLossCoef",
            "at most 10",
        ),
        (
            Switch,
            |m| m.rope_theta = Some(1e4),
            "model.ropeTheta",
            "a switch has layers",
        ),
    ]);
}

#[test]
fn default_inner_width_is_that_of_the_published_llama() {
    let of = |width| {
        let mut model = Model::new(ModelName::Llama);
        model.width = Some(width);
        model.inner_width()
    };
    assert_eq!([768, 4096, 5120].map(of), [2048, 11_008, 13_824]);
}

#[test]
fn initial_weights_have_one_volume_and_skipped_tensors() {
    let with = |volume, skip: &[&str]| InitFrom {
        volume,
        skip: skip.iter().map(ToString::to_string).collect(),
        ..file("weights.safetensors")
    };
    let nothing = DataVolume {
        config_map: None,
        persistent_volume_claim: None,
    };
    let field = |from: InitFrom| from.validate().err().map(|invalid| invalid.field);
    assert_eq!(field(with(None, &["fc."])), None);
    assert_eq!(field(with(None, &[""])), Some("model.initFrom.skip"));
    assert_eq!(
        field(with(Some(nothing), &[])),
        Some("model.initFrom.volume")
    );
}

fn file(path: &str) -> InitFrom {
    InitFrom {
        path: path.to_owned(),
        volume: None,
        skip: Vec::new(),
    }
}
