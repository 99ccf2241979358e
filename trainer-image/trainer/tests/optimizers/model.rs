//! A model of a few tensors whose gradients depend on the weights.

use std::path::PathBuf;

use roundhouse_trainer::{Parameters, Rate, Role, Signals, Update, clip};
use tch::{Kind, Tensor};

pub(crate) const NUM_STEPS: u64 = 50;

const NAMES: [&str; 5] = [
    "conv.weight",
    "norm.weight",
    "norm.bias",
    "fc.weight",
    "fc.bias",
];

/// The tensors of a file that `fixtures/optimizers.py` wrote.
#[derive(Debug)]
pub(crate) struct Fixture(Vec<(String, Tensor)>);

impl Fixture {
    pub(crate) fn path(file: &str) -> PathBuf {
        let crate_dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        crate_dir.join("fixtures/optimizers").join(file)
    }

    pub(crate) fn read(file: &str) -> Self {
        Self(Tensor::read_safetensors(Self::path(file)).unwrap())
    }

    pub(crate) fn get(&self, name: &str) -> &Tensor {
        let found = self.0.iter().find(|(own, _)| own == name);
        &found.unwrap_or_else(|| panic!("no tensor {name}")).1
    }
}

/// The model of `fixtures/optimizers.py`: `gradient(w, t) = w·a + b·cos(0.3·t)`.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) parameters: Parameters,
    inputs: Fixture,
}

impl Model {
    pub(crate) fn new() -> Self {
        let inputs = Fixture::read("inputs.safetensors");
        let mut parameters = Parameters::default();
        for name in NAMES {
            let initial = inputs.get(&format!("{name}.initial"));
            parameters.push(name, Role::Weight, initial).unwrap();
        }
        Self { parameters, inputs }
    }

    /// The model with an additional scalar weight, and with a running statistic among the weights.
    pub(crate) fn with_statistic(momentum: f64) -> Self {
        let mut model = Self::new();
        let value = Tensor::from_slice(&[1.0_f32, 2.0, 3.0]);
        let scale = Tensor::from(0.5_f32);
        model
            .parameters
            .push("scale", Role::Weight, &scale)
            .unwrap();
        let role = Role::Statistic { momentum };
        model.parameters.push("norm.mean", role, &value).unwrap();
        model
    }

    /// Computes the gradients of a step, times a factor. Each element of a statistic's gradient is
    /// `of_batch`.
    pub(crate) fn backward(&mut self, step: u64, factor: f64, of_batch: f64) {
        for tensor in self.parameters.tensors_mut() {
            tensor.zero_grad();
        }
        let phase = (0.3 * step as f64).cos();
        let terms = self.parameters.iter().map(|(name, w)| {
            if name == "norm.mean" {
                return (w * of_batch).sum(Kind::Float);
            }
            if name == "scale" {
                return w.square() * factor;
            }
            let input = |which| self.inputs.get(&format!("{name}.{which}"));
            ((w.square() * input("a") * 0.5 + w * input("b") * phase) * factor).sum(Kind::Float)
        });
        terms.sum::<Tensor>().backward();
    }

    /// Trains 50 steps as the script does, and returns the gradient norm of each step.
    pub(crate) fn train(
        &mut self,
        update: &mut dyn Update,
        learning_rate: f64,
        max_grad_norm: Option<f64>,
    ) -> Vec<f64> {
        let mut norms = Vec::new();
        for step in 1..=NUM_STEPS {
            self.backward(step, 1.0, 0.0);
            let norm = clip::gradient_norm(&self.parameters).unwrap();
            let divisor = max_grad_norm.map(|limit| clip::divisor(&norm, limit).unwrap());
            let rate = Rate {
                learning_rate: learning_rate * (1.0 - 0.5 * (step - 1) as f64 / NUM_STEPS as f64),
                step,
            };
            let signals = Signals {
                divisor: divisor.as_ref(),
                ..Signals::default()
            };
            update.apply(&mut self.parameters, rate, signals).unwrap();
            norms.push(norm.double_value(&[]));
        }
        norms
    }
}

/// Copies of tensors, to check later whether the tensors changed.
pub(crate) fn copies(tensors: &[Tensor]) -> Vec<Tensor> {
    tensors
        .iter()
        .map(|tensor| tensor.detach().copy())
        .collect()
}
