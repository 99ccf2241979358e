//! The model and its loss as a [`Task`]: a recurrent layer reads past hours, and a linear layer
//! forecasts the next ones.

use roundhouse_trainer::random::seeded;
use roundhouse_trainer::tch::{Device, Kind, TchError, Tensor};
use roundhouse_trainer::{Batch, LossSum, Mode, Parameters, Role, Segment, Task};

use crate::options::Options;

/// A gated recurrent unit (Cho et al. 2014) and a linear layer. Each is a segment, so the job may
/// divide their weights among the processes of a worker (`trainer.parallel.shard: Zero3`).
#[derive(Debug)]
pub struct Forecaster {
    parameters: Parameters,
    recurrent: Segment<Recurrent>,
    head: Segment<Head>,
    /// H in the shapes below.
    num_units: i64,
    /// T in the shapes below.
    past_hours: i64,
    /// F in the shapes below.
    future_hours: i64,
}

/// The recurrent layer has the tensors `weight_ih [3·H, 1]`, `weight_hh [3·H, H]`, `bias_ih [3·H]`,
/// `bias_hh [3·H]`.
#[derive(Debug)]
struct Recurrent {
    num_units: i64,
}

impl Recurrent {
    fn new(parameters: &mut Parameters, num_units: i64) -> Result<Self, TchError> {
        let gates = 3 * num_units;
        let bound = 1.0 / (num_units as f64).sqrt();
        for (name, shape) in [
            ("gru.weight_ih_l0", vec![gates, 1]),
            ("gru.weight_hh_l0", vec![gates, num_units]),
            ("gru.bias_ih_l0", vec![gates]),
            ("gru.bias_hh_l0", vec![gates]),
        ] {
            let value = Tensor::f_zeros(&shape, (Kind::Float, Device::Cpu))?;
            parameters.push(name, Role::Weight, &{ value }.f_uniform_(-bound, bound)?)?;
        }
        Ok(Self { num_units })
    }

    /// The state `[B, H]` after the measured levels `[B, T]`. `parameters` are those of this
    /// segment.
    fn apply(&self, parameters: &Parameters, levels_bt: &Tensor) -> Result<Tensor, TchError> {
        let options = (Kind::Float, levels_bt.device());
        let start_lbh = Tensor::f_zeros([1, levels_bt.size()[0], self.num_units], options)?;
        let weights = parameters.tensors();
        let levels_bt1 = levels_bt.f_unsqueeze(2)?;
        let (_, last_lbh) =
            levels_bt1.f_gru(&start_lbh, weights, true, 1, 0.0, false, false, true)?;
        last_lbh.f_select(0, 0)
    }
}

/// A linear layer with the tensors `weight [F, H]` and `bias [F]` at these places.
#[derive(Debug)]
struct Head {
    weight: usize,
    bias: usize,
}

impl Head {
    fn new(
        parameters: &mut Parameters,
        future_hours: i64,
        num_units: i64,
    ) -> Result<Self, TchError> {
        let weight = parameters.tensors().len();
        parameters.add_layer("head", &[future_hours, num_units])?;
        Ok(Self {
            weight,
            bias: weight + 1,
        })
    }

    /// The forecasts `[B, F]` for states `[B, H]`.
    fn apply(&self, parameters: &Parameters, state_bh: &Tensor) -> Result<Tensor, TchError> {
        state_bh.f_linear(parameters.at(self.weight), Some(parameters.at(self.bias)))
    }
}

impl Forecaster {
    /// Draws the initial weights from `seed`, so all processes start with the same. Names and
    /// initial distribution are those of `torch.nn.GRU` and `torch.nn.Linear`.
    ///
    /// # Errors
    /// The weights do not fit in memory.
    pub fn new(options: &Options, seed: u64) -> Result<Self, TchError> {
        let num_units = i64::from(options.units);
        let (past_hours, future_hours) = (options.past_hours.into(), options.future_hours.into());
        let mut parameters = Parameters::default();
        let (recurrent, head) = seeded(seed, || {
            let recurrent = Segment::build(&mut parameters, |p| Recurrent::new(p, num_units))?;
            let head = Segment::build(&mut parameters, |p| Head::new(p, future_hours, num_units))?;
            Ok::<_, TchError>((recurrent, head))
        })?;
        Ok(Self {
            parameters,
            recurrent,
            head,
            num_units,
            past_hours,
            future_hours,
        })
    }

    /// Returns forecasts `[B, F]` for measured levels `[B, T]`, where B > 0.
    fn forecasts(&self, levels_bt: &Tensor) -> Result<Tensor, TchError> {
        let p = &self.parameters;
        let state_bh = self.recurrent.apply_alone(p, levels_bt, Recurrent::apply)?;
        self.head.apply_alone(p, &state_bh, Head::apply)
    }
}

impl Task for Forecaster {
    /// The loss of a sample is the mean squared error of its forecast hours, in square metres. The
    /// result is the *sum* over the samples, so the library can add the losses of parts of a batch
    /// from several processes.
    fn loss(&self, batch: &Batch, _mode: Mode) -> Result<LossSum, TchError> {
        let loss = if batch.num_samples == 0 {
            self.parameters.no_loss()?
        } else {
            let errors_bf = self.forecasts(&batch.inputs)?.f_sub(&batch.targets)?;
            let losses_b = errors_bf.f_square()?.f_mean_dim(1, false, Kind::Float)?;
            losses_b.f_sum(Kind::Float)?
        };
        Ok(LossSum {
            loss,
            counts: Vec::new(),
        })
    }

    /// Counts a multiplication and an addition per weight and hour. The backward pass costs twice
    /// the forward pass.
    fn flops_per_sample(&self) -> Option<f64> {
        let recurrent = self.past_hours * 3 * self.num_units * (1 + self.num_units);
        let head = self.num_units * self.future_hours;
        Some(3.0 * 2.0 * (recurrent + head) as f64)
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }
}

#[cfg(test)]
mod tests {
    use roundhouse_trainer::tch;

    use super::*;

    const MODE: Mode = Mode::Evaluate;

    fn small() -> Forecaster {
        let options = Options {
            past_hours: 3,
            future_hours: 2,
            units: 4,
            ..Options::default()
        };
        Forecaster::new(&options, 1).unwrap()
    }

    fn batch(num_samples: i64) -> Batch {
        let ramp = |width| {
            let values = Tensor::arange(num_samples * width, (Kind::Float, Device::Cpu));
            values.reshape([num_samples, width]) / 10.0
        };
        Batch {
            inputs: ramp(3),
            targets: ramp(2),
            num_samples: num_samples.unsigned_abs(),
        }
    }

    #[test]
    fn losses_of_parts_add_up_to_the_loss_of_the_whole() {
        let (task, whole) = (small(), batch(5));
        let loss = |start: i64, length: i64| {
            let part = Batch {
                inputs: whole.inputs.narrow(0, start, length),
                targets: whole.targets.narrow(0, start, length),
                num_samples: length.unsigned_abs(),
            };
            task.loss(&part, MODE).unwrap().loss.double_value(&[])
        };
        let parts = loss(0, 2) + loss(2, 0) + loss(2, 3);
        assert!((parts - loss(0, 5)).abs() < 1e-5, "{parts}");
    }

    #[test]
    fn with_zero_weights_the_forecast_is_the_bias() {
        let mut task = small();
        tch::no_grad(|| {
            for tensor in task.parameters_mut().tensors_mut() {
                let _ = tensor.zero_();
            }
            let [.., bias] = task.parameters_mut().tensors_mut() else {
                panic!("a model without tensors");
            };
            bias.copy_(&Tensor::from_slice(&[0.5_f32, -0.5]));
        });
        // Targets 0 and 0.1: errors 0.5 and -0.6, whose squares have the mean 0.305.
        let loss = task.loss(&batch(1), MODE).unwrap().loss.double_value(&[]);
        assert!((loss - 0.305).abs() < 1e-6, "{loss}");
    }

    #[test]
    fn gradients_of_an_empty_batch_are_zero() {
        let task = small();
        task.loss(&batch(0), MODE).unwrap().loss.backward();
        for (name, tensor) in task.parameters().iter() {
            assert!(
                tensor.grad().abs().max().double_value(&[]) < 1e-12,
                "{name}"
            );
        }
    }

    #[test]
    fn initial_weights_are_a_function_of_the_seed() {
        let first = |seed| {
            let task = Forecaster::new(&Options::default(), seed).unwrap();
            task.parameters().at(0).double_value(&[0, 0])
        };
        assert!((first(1) - first(1)).abs() < 1e-12);
        assert!((first(1) - first(2)).abs() > 1e-9);
    }
}
