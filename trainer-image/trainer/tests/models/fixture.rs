//! Reads the results of `fixtures/make.py` and compares tensors with them.

use std::collections::HashMap;
use std::path::PathBuf;

use roundhouse_trainer::{Parameters, Role};
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use tch::{Kind, Tensor};

use crate::formula;

/// Largest difference in single precision, relative to the largest value.
pub(crate) const SINGLE: f64 = 1e-5;
/// Largest difference in double precision, relative to the largest value.
pub(crate) const DOUBLE: f64 = 1e-9;

pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(format!("{name}.safetensors"))
}

/// The tensors and the metadata of a file.
pub(crate) struct Fixture {
    tensors: HashMap<String, Tensor>,
    texts: HashMap<String, String>,
}

impl Fixture {
    pub(crate) fn read(name: &str) -> Self {
        let bytes = std::fs::read(path(name)).unwrap();
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.iter().map(|(name, view)| {
            let kind = match view.dtype() {
                Dtype::F32 => Kind::Float,
                Dtype::F64 => Kind::Double,
                Dtype::I64 => Kind::Int64,
                other => panic!("{name} has type {other:?}"),
            };
            let size: Vec<i64> = view
                .shape()
                .iter()
                .map(|&size| size.try_into().unwrap())
                .collect();
            let value = Tensor::from_data_size(view.data(), &size, kind);
            (name.to_owned(), value)
        });
        Self {
            tensors: tensors.collect(),
            texts: metadata.metadata().clone().unwrap_or_default(),
        }
    }

    pub(crate) fn tensor(&self, name: &str) -> &Tensor {
        &self.tensors[name]
    }

    pub(crate) fn lines(&self, name: &str) -> Vec<&str> {
        self.texts[name].lines().collect()
    }
}

/// Rounding error of 32-bit sums, relative to the largest value.
const ROUNDING: f64 = 1e-6;

/// Asserts that two tensors are equal within the tolerance.
pub(crate) fn assert_close(what: &str, tolerance: f64, ours: &Tensor, theirs: &Tensor) {
    assert_close_among(what, tolerance, ours, theirs, 0.0);
}

/// Asserts that a tensor of a group is equal within the tolerance; `scale` is the largest value of
/// the group. A tensor that is 0 except for rounding (the gradient of the bias of keys, on which
/// the softmax does not depend) has different digits on each processor.
pub(crate) fn assert_close_among(
    what: &str,
    tolerance: f64,
    ours: &Tensor,
    theirs: &Tensor,
    scale: f64,
) {
    assert_eq!(ours.numel(), theirs.numel(), "{what}");
    let ours = ours.detach().to_kind(Kind::Double).flatten(0, -1);
    let theirs = theirs.to_kind(Kind::Double).flatten(0, -1);
    let largest = theirs.abs().max().double_value(&[]);
    let difference = (ours - theirs).abs().max().double_value(&[]);
    assert!(
        difference <= (tolerance * largest).max(ROUNDING * scale).max(1e-35),
        "{what}: differs by {difference}, and the largest value is {largest}"
    );
}

/// Asserts norms of tensors, and their products with fixed values, as `summary` in `make.py`
/// computes them.
pub(crate) fn assert_summary(fixture: &Fixture, what: &str, ours: &[(&str, Tensor)]) {
    let names = fixture.lines(&format!("{what}s").replace("gradients", "parameters"));
    assert_eq!(
        ours.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        names
    );
    for (place, (name, tensor)) in (0..).zip(ours) {
        let tensor = tensor.to_kind(Kind::Double);
        let probe = formula::values(&format!("{name}.probe"), &tensor.size(), 1.0, 0.0);
        let norm = fixture
            .tensor(&format!("{what}.norms"))
            .double_value(&[place]);
        let dot = fixture
            .tensor(&format!("{what}.dots"))
            .double_value(&[place]);
        let differences = [
            tensor.norm().double_value(&[]) - norm,
            (&tensor * &probe).sum(Kind::Double).double_value(&[]) - dot,
        ];
        let scale = norm * probe.norm().double_value(&[]).max(1.0);
        for difference in differences {
            assert!(
                difference.abs() <= DOUBLE * scale,
                "{what} of {name}: differs by {difference}, and the norm is {norm}"
            );
        }
    }
}

/// Names and gradients of weights, or of running statistics.
pub(crate) fn gradients(parameters: &Parameters, of_weights: bool) -> Vec<(&str, Tensor)> {
    parameters
        .iter()
        .zip(parameters.roles())
        .filter(|(_, role)| (**role == Role::Weight) == of_weights)
        .map(|((name, tensor), _)| (name, tensor.grad()))
        .collect()
}
