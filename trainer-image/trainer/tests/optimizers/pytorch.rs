//! Weights, averages and norms after 50 steps equal those of PyTorch, or those of the paper's
//! algorithm if PyTorch lacks the optimizer.

use std::collections::BTreeMap;

use roundhouse_contract::trainer::{Optimizer, OptimizerName};
use roundhouse_trainer::optimizers;
use tch::{Kind, Tensor};

use super::model::{Fixture, Model};

/// Largest difference, as a fraction of the largest element.
const TOLERANCE: f64 = 1e-6;

fn assert_close(what: &str, found: &Tensor, expected: &Tensor) {
    let expected = expected.to_kind(Kind::Double);
    let difference = (found.to_kind(Kind::Double) - &expected).abs().max();
    let relative = difference.double_value(&[]) / expected.abs().max().double_value(&[]);
    println!("{what}: {relative:.1e}");
    assert!(
        relative <= TOLERANCE,
        "{what} differs by {relative:e} of its largest element"
    );
}

fn assert_as_pytorch(case: &str, config: &Optimizer) {
    let expected = Fixture::read(&format!("{case}.safetensors"));
    let mut model = Model::new();
    let before = super::model::copies(model.parameters.tensors());
    let mut update = optimizers::build(config, &model.parameters).unwrap();
    let norms = model.train(update.as_mut(), config.learning_rate, config.max_grad_norm);
    for ((name, found), before) in model.parameters.iter().zip(&before) {
        assert!(!found.equal(before), "{case}: {name} did not move");
        assert_close(&format!("{case}: {name}"), found, expected.get(name));
    }
    if config.max_grad_norm.is_some() {
        assert_close(
            &format!("{case}: norms"),
            &Tensor::from_slice(&norms),
            expected.get("norms"),
        );
    }
    let state = update.state();
    let averages = state.iter().find(|(name, _)| *name == "ema");
    assert_eq!(averages.is_some(), config.ema.is_some());
    if let Some((_, averages)) = averages {
        for ((name, _), average) in model.parameters.iter().zip(*averages) {
            let what = format!("{case}: average of {name}");
            assert_close(&what, average, expected.get(&format!("{name}.ema")));
        }
    }
}

#[test]
fn weights_after_50_steps_equal_pytorch_or_the_papers() {
    let text = std::fs::read_to_string(Fixture::path("cases.json")).unwrap();
    let cases: BTreeMap<String, Optimizer> = serde_json::from_str(&text).unwrap();
    for name in OptimizerName::ALL {
        let has_case = cases.values().any(|config| config.name == name);
        assert!(
            has_case,
            "no case of {name:?}: add one to fixtures/optimizers.py"
        );
    }
    for (case, config) in &cases {
        assert_as_pytorch(case, config);
    }
}
