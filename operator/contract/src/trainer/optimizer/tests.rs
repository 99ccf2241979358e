use super::*;

fn sgd() -> Optimizer {
    Optimizer::default()
}

fn refusal(result: Result<(), ConfigInvalid>) -> (&'static str, String) {
    let ConfigInvalid { field, message } = result.unwrap_err();
    (field, message)
}

#[test]
fn invalid_optimizer_names_its_field() {
    type Change = fn(&mut Optimizer);
    let cases: [(&str, Change); 13] = [
        ("learningRate", |it| it.learning_rate = f64::INFINITY),
        ("momentum", |it| it.momentum = -0.1),
        ("nesterov", |it| {
            (it.nesterov, it.momentum) = (true, 0.0);
        }),
        ("nesterov", |it| {
            (it.nesterov, it.name) = (true, OptimizerName::Lars);
        }),
        ("weightDecay", |it| it.weight_decay = -1.0),
        ("beta1", |it| it.beta1 = 1.0),
        ("beta2", |it| it.beta2 = f64::NAN),
        ("epsilon", |it| it.epsilon = 0.0),
        ("trustCoefficient", |it| it.trust_coefficient = 0.0),
        ("maxGradNorm", |it| it.max_grad_norm = Some(0.0)),
        ("maxGradNorm", |it| it.max_grad_norm = Some(f64::NAN)),
        ("ema.decay", |it| it.ema = Some(Ema { decay: 1.0 })),
        ("ema.decay", |it| it.ema = Some(Ema { decay: -0.5 })),
    ];
    for (field, change) in cases {
        let mut optimizer = sgd();
        change(&mut optimizer);
        let (found, _) = refusal(optimizer.validate());
        assert_eq!(found, format!("optimizer.{field}"));
    }
}

#[test]
fn invalid_schedule_names_its_field() {
    type Change = fn(&mut Schedule);
    fn grow(at_epochs: &[u32], factor: f64) -> BatchGrowth {
        BatchGrowth {
            at_epochs: at_epochs.to_vec(),
            factor,
        }
    }
    let cases: [(&str, Change); 12] = [
        ("minFactor", |it| it.min_factor = 1.5),
        ("stepEpochs", |it| it.step_epochs = 0),
        ("gamma", |it| it.gamma = 0.0),
        ("power", |it| it.power = 0.0),
        ("power", |it| it.power = f64::NAN),
        ("decayFraction", |it| it.decay_fraction = 0.0),
        ("decayFraction", |it| it.decay_fraction = 1.1),
        ("batchGrowth.atEpochs", |it| {
            it.batch_growth = Some(grow(&[], 2.0))
        }),
        ("batchGrowth.atEpochs", |it| {
            it.batch_growth = Some(grow(&[0, 4], 2.0));
        }),
        ("batchGrowth.atEpochs", |it| {
            it.batch_growth = Some(grow(&[4, 4], 2.0));
        }),
        ("batchGrowth.atEpochs", |it| {
            it.batch_growth = Some(grow(&(1..=17).collect::<Vec<_>>(), 2.0));
        }),
        ("batchGrowth.factor", |it| {
            it.batch_growth = Some(grow(&[4], 1.0));
        }),
    ];
    for (field, change) in cases {
        let mut schedule = Schedule::default();
        change(&mut schedule);
        let (found, _) = refusal(schedule.validate());
        assert_eq!(found, format!("schedule.{field}"));
    }
}

#[test]
fn nesterov_without_momentum_is_refused_with_advice() {
    let optimizer = Optimizer {
        nesterov: true,
        momentum: 0.0,
        ..sgd()
    };
    let (_, message) = refusal(optimizer.validate());
    assert!(message.contains("optimizer.momentum"), "{message}");
}

#[test]
fn nondefault_field_of_another_optimizer_is_refused() {
    use OptimizerName::{Adamw, Lamb, Lars, Sgd};
    type Change = fn(&mut Optimizer);
    let cases: [(&str, Change, &[OptimizerName]); 9] = [
        ("momentum", |it| it.momentum = 0.8, &[Sgd, Lars]),
        ("nesterov", |it| it.nesterov = true, &[Sgd]),
        ("beta1", |it| it.beta1 = 0.8, &[Adamw, Lamb]),
        ("beta2", |it| it.beta2 = 0.95, &[Adamw, Lamb]),
        ("epsilon", |it| it.epsilon = 1e-6, &[Adamw, Lamb]),
        (
            "trustCoefficient",
            |it| it.trust_coefficient = 0.01,
            &[Lars],
        ),
        (
            "weightDecay",
            |it| it.weight_decay = 0.1,
            &OptimizerName::ALL,
        ),
        (
            "decayNormAndBias",
            |it| it.decay_norm_and_bias = Some(true),
            &OptimizerName::ALL,
        ),
        (
            "ema",
            |it| it.ema = Some(Ema { decay: 0.9 }),
            &OptimizerName::ALL,
        ),
    ];
    for name in OptimizerName::ALL {
        let plain = Optimizer { name, ..sgd() };
        assert_eq!(plain.validate(), Ok(()), "{name:?}");
        for (field, change, owners) in cases {
            let mut optimizer = plain.clone();
            change(&mut optimizer);
            let found = optimizer.validate();
            if owners.contains(&name) {
                assert_eq!(found, Ok(()), "{name:?} {field}");
                continue;
            }
            let (refused, message) = refusal(found);
            assert_eq!(refused, format!("optimizer.{field}"), "{name:?}");
            assert!(message.contains(owners[0].text()), "{message}");
        }
    }
}

#[test]
fn biases_decay_by_default_only_for_sgd_and_adamw() {
    for (name, by_default) in [
        (OptimizerName::Sgd, true),
        (OptimizerName::Adamw, true),
        (OptimizerName::Lars, false),
        (OptimizerName::Lamb, false),
    ] {
        let with = |decay_norm_and_bias| Optimizer {
            name,
            decay_norm_and_bias,
            ..sgd()
        };
        assert_eq!(with(None).decays_norm_and_bias(), by_default);
        assert!(with(Some(true)).decays_norm_and_bias());
        assert!(!with(Some(false)).decays_norm_and_bias());
    }
}

#[test]
fn settings_without_newer_fields_keep_their_meaning() {
    let optimizer: Optimizer = serde_json::from_str(
        r#"{"name": "adamw", "learningRate": 0.001, "momentum": 0.9, "weightDecay": 0.01,
            "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8}"#,
    )
    .unwrap();
    assert_eq!(optimizer.validate(), Ok(()));
    assert!(optimizer.decays_norm_and_bias());
    assert_eq!((optimizer.max_grad_norm, optimizer.ema), (None, None));
    let schedule: Schedule = serde_json::from_str(
        r#"{"name": "cosine", "warmupSteps": 5, "minFactor": 0.1, "stepEpochs": 30, "gamma": 0.1}"#,
    )
    .unwrap();
    assert_eq!(schedule.validate(), Ok(()));
    assert_eq!(schedule.batch_growth, None);
}

#[test]
fn optimizer_and_schedule_names_round_trip() {
    for name in OptimizerName::ALL {
        let text = serde_json::to_value(name).unwrap();
        assert_eq!(text, name.text());
        assert_eq!(serde_json::from_value::<OptimizerName>(text).unwrap(), name);
    }
    for text in ["constant", "linear", "cosine", "step", "polynomial", "wsd"] {
        let name: ScheduleName = serde_json::from_value(text.into()).unwrap();
        assert_eq!(serde_json::to_value(name).unwrap(), text);
    }
}
