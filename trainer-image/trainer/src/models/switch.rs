//! A mixture of experts in place of a perceptron (Fedus et al. 2021). Names are those of the class
//! `SwitchTransformersSparseMLP` in Transformers.
//!
//! A router sends each token to the expert with the highest probability, which scales its output.
//! An expert takes a fixed number of tokens of each sequence, the earliest ones. A token that comes
//! later gets an output of 0, so only the shortcut around the layer carries it.
//!
//! Both the capacity and the loss that balances the experts concern one sequence. So a sequence
//! does not depend on the others of its batch, nor on the number of workers.

use roundhouse_c10d::Autocast;
use roundhouse_contract::trainer::model::Model as ModelConfig;
use tch::{Kind, TchError, Tensor};

use super::layers::Linear;
use crate::experts::Experts;
use crate::parameters::Parameters;

mod routes;

use routes::Routes;

/// The router and its experts.
#[derive(Debug)]
pub(super) struct Mixture {
    router: Linear,
    experts: Experts<[Linear; 2]>,
    num_experts: i64,
    capacity_factor: f64,
}

impl Mixture {
    /// The layer `name` with vectors of `width` elements, and of four times as many inside of an
    /// expert. Weights are normal with a variance of 0.1 / inputs: section 2.4 of the paper, but
    /// without truncation.
    pub(super) fn new(
        parameters: &mut Parameters,
        name: &str,
        width: i64,
        config: &ModelConfig,
    ) -> Result<Self, TchError> {
        let num_experts = i64::from(config.num_experts());
        let linear =
            |parameters: &mut Parameters, part: &str, num_inputs: i64, num_outputs: i64| {
                let deviation = (0.1 / num_inputs as f64).sqrt();
                let name = format!("{name}.{part}");
                Linear::normal_without_bias(parameters, &name, num_inputs, num_outputs, deviation)
            };
        let expert = |parameters: &mut Parameters, number: usize| {
            let name = |part: &str| format!("experts.expert_{number}.{part}");
            Ok([
                linear(parameters, &name("wi"), width, 4 * width)?,
                linear(parameters, &name("wo"), 4 * width, width)?,
            ])
        };
        Ok(Self {
            router: linear(parameters, "router.classifier", width, num_experts)?,
            experts: Experts::build(parameters, config.num_experts() as usize, expert)?,
            num_experts,
            capacity_factor: config.capacity_factor(),
        })
    }

    /// Number of tokens that an expert takes of a sequence.
    fn capacity(&self, length: i64) -> i64 {
        let share = self.capacity_factor * length as f64 / self.num_experts as f64;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the share is at most 256 times the context"
        )]
        let capacity = share.ceil() as i64;
        capacity.clamp(1, length.max(1))
    }

    /// The outputs for tokens `[B, T, W]`, and each sequence's loss `[B]`:
    /// `E · Σ share · probability` over E experts, of the share of the tokens that an expert is
    /// sent and of its mean probability (equation 4). It is 1 if all experts have equal shares.
    pub(super) fn apply(
        &self,
        parameters: &Parameters,
        x_btw: &Tensor,
    ) -> Result<(Tensor, Tensor), TchError> {
        let (size, num_experts) = (x_btw.size(), self.num_experts);
        let probabilities_bte = self.probabilities(parameters, x_btw)?;
        let (probability_bt1, expert_bt1) = probabilities_bte.f_max_dim(2, true)?;
        let numbers_e = Tensor::f_arange(num_experts, (Kind::Int64, x_btw.device()))?;
        let is_sent_bte = expert_bt1.f_eq_tensor(&numbers_e)?;
        let share_be = is_sent_bte.f_mean_dim(1, false, Kind::Float)?;
        let loss_b = probabilities_bte
            .f_mean_dim(1, false, Kind::Float)?
            .f_mul(&share_be)?
            .f_sum_dim_intlist(1, false, Kind::Float)?
            .f_mul_scalar(num_experts)?;
        let routes = Routes::new(&is_sent_bte, self.capacity(size[1]))?;
        let x_ncw = routes.dispatch(&x_btw.f_flatten(0, 1)?)?;
        let expert = |[inner, outer]: &[Linear; 2], parameters: &Parameters, x_nw: &Tensor| {
            let inner_nf = inner.apply(parameters, x_nw)?.f_gelu("tanh")?;
            outer.apply(parameters, &inner_nf)
        };
        let outputs_ncw = self.experts.apply(parameters, &x_ncw, expert)?;
        let out_btw = routes
            .combine(&outputs_ncw)?
            .f_reshape(&size)?
            .f_mul(&probability_bt1)?;
        Ok((out_btw, loss_b))
    }

    /// Probabilities of the experts `[B, T, E]`. They are computed in 32 bits: in 16 bits the
    /// training is unstable (section 2.4).
    fn probabilities(&self, parameters: &Parameters, x_btw: &Tensor) -> Result<Tensor, TchError> {
        let _autocast = Autocast::enter(x_btw.device(), Kind::Float)
            .map_err(|error| TchError::Torch(error.message))?;
        let x_btw = x_btw.f_to_kind(Kind::Float)?;
        self.router
            .apply(parameters, &x_btw)?
            .f_softmax(2, Kind::Float)
    }
}
