//! GPT-2 (Radford et al. 2019). Names, layout and initialization are those of Transformers. A
//! `switch` is a GPT-2 with experts in every second block: see [`super::switch`].

use roundhouse_contract::trainer::model::Model as ModelConfig;
use tch::{Kind, TchError, Tensor};

use super::init;
use super::layers::{self, LayerNorm};
use super::transformer::{Dropout, Output, flops_of_blocks, loss_of_next_tokens, through_blocks};
use crate::batch::Batch;
use crate::parameters::{Parameters, Role};
use crate::pipeline::Layer;
use crate::segment::Segment;
use crate::task::{LossSum, Mode, Task};

mod block;

use block::Block;

/// Constant that layer normalization adds to the variance.
const EPSILON: f64 = 1e-5;

/// Vectors of tokens and places.
#[derive(Clone, Copy, Debug)]
struct Embedding {
    tokens: usize,
    places: usize,
}

impl Embedding {
    /// The vectors `[B, T, W]` of the tokens `[B, T]`.
    fn apply(&self, parameters: &Parameters, tokens_bt: &Tensor) -> Result<Tensor, TchError> {
        let length = tokens_bt.size()[1];
        let places_tw = parameters.at(self.places).f_narrow(0, 0, length)?;
        layers::embed(parameters, self.tokens, tokens_bt, -1)?.f_add(&places_tw)
    }
}

/// The last normalization, and scores as a product with the tied embedding.
#[derive(Debug)]
struct Head {
    norm: LayerNorm,
    embedding: Embedding,
}

impl Head {
    /// The scores `[B · T, V]` for vectors `[B, T, W]`.
    fn apply(&self, parameters: &Parameters, x_btw: &Tensor) -> Result<Tensor, TchError> {
        let x_nw = self.norm.apply(parameters, x_btw)?.f_flatten(0, 1)?;
        let x_nw = parameters.input_of_colwise(&x_nw)?;
        x_nw.f_linear(parameters.at(self.embedding.tokens), None::<Tensor>)
    }
}

/// A decoder-only transformer. A batch has tokens `[B, T]` and, as targets, the next tokens
/// `[B, T]`.
#[derive(Debug)]
pub struct Gpt2 {
    parameters: Parameters,
    /// The place of the vectors of tokens.
    embedding_place: usize,
    embedding: Segment<Embedding>,
    blocks: Vec<Segment<Block>>,
    recomputes: bool,
    head: Segment<Head>,
    width: i64,
    num_heads: i64,
    dropout: f64,
    label_smoothing: f64,
    router_aux_loss_coef: f64,
    flops_per_sample: f64,
}

impl Gpt2 {
    /// The model of a valid configuration; `length` is the data's sequence length.
    ///
    /// # Errors
    /// The weights exceed the memory.
    pub fn new(config: &ModelConfig, length: i64) -> Result<Self, TchError> {
        let width = i64::from(config.width());
        let (num_layers, vocabulary) = (i64::from(config.layers()), i64::from(config.vocabulary()));
        let mut parameters = Parameters::default();
        let mut embedding = |name: &str, rows: i64| {
            let name = format!("transformer.{name}.weight");
            parameters.push(name, Role::Weight, &init::normal(&[rows, width], 0.02)?)
        };
        let embedding = Embedding {
            tokens: embedding("wte", vocabulary)?,
            places: embedding("wpe", config.context().into())?,
        };
        parameters.cut(embedding.tokens, 0, 1);
        parameters.assign_one(embedding.tokens, Layer::Ends);
        parameters.assign(Layer::First);
        let blocks = (0..num_layers)
            .map(|layer| {
                let block = Segment::build(&mut parameters, |p| Block::new(p, layer, config));
                parameters.assign_block(layer);
                block
            })
            .collect::<Result<_, _>>()?;
        let first = parameters.tensors().len();
        let norm = LayerNorm::new(&mut parameters, "transformer.ln_f", width, EPSILON)?;
        parameters.assign(Layer::Last);
        // The embedding is used twice, so both segments have the same weights.
        let places: Vec<usize> = [embedding.tokens, embedding.places]
            .into_iter()
            .chain(first..parameters.tensors().len())
            .collect();
        let (embedding_place, head) = (embedding.tokens, Head { norm, embedding });
        let embedding = Segment::new(&mut parameters, embedding, places.clone());
        let head = Segment::new(&mut parameters, head, places);
        // The scores are a product with the tied embedding; the embedding lookup counts as free.
        let scores = 6.0 * (vocabulary * width) as f64 * length as f64;
        // A token passes through the router and one expert, which has the size of a perceptron.
        let num_router_outputs = num_layers / 2 * i64::from(config.num_experts());
        let routers = 6.0 * (num_router_outputs * width) as f64 * length as f64;
        Ok(Self {
            parameters,
            embedding_place,
            embedding,
            blocks,
            recomputes: false,
            head,
            width,
            num_heads: config.heads().into(),
            dropout: config.dropout(),
            label_smoothing: config.label_smoothing(),
            router_aux_loss_coef: config.router_aux_loss_coef(),
            flops_per_sample: flops_of_blocks(num_layers, 12 * width * width, width, length)
                + scores
                + routers,
        })
    }

    /// Returns the model with recomputation on or off. With it each block keeps only its input: see
    /// [`Segment::apply`].
    #[must_use]
    pub fn recomputing(self, recomputes: bool) -> Self {
        Self { recomputes, ..self }
    }

    /// Scores `[B · T, V]` of the next token after each of the tokens `[B, T]`.
    ///
    /// # Errors
    /// A sequence is longer than the context, or a token is not below the vocabulary.
    pub fn scores(&self, tokens_bt: &Tensor, mode: Mode) -> Result<Tensor, TchError> {
        match self.scores_and_balance(tokens_bt, mode)?.0 {
            Output::Here(scores_nv) => Ok(scores_nv),
            Output::Sent(loss) => Ok(loss),
        }
    }

    /// The scores `[B · T, V]`, and the loss that balances the experts, summed over sequences and
    /// blocks; `None` for a model without experts.
    fn scores_and_balance(
        &self,
        tokens_bt: &Tensor,
        mode: Mode,
    ) -> Result<(Output, Option<Tensor>), TchError> {
        let mut balance: Option<Tensor> = None;
        let dropout = Dropout::new(self.dropout, mode).in_part(self.parameters.tensor_rank());
        let (batch_size, length) = (tokens_bt.size()[0], tokens_bt.size()[1]);
        let num_heads = self.num_heads;
        let first = || {
            let x_btw =
                self.embedding
                    .apply_alone(&self.parameters, tokens_bt, Embedding::apply)?;
            let mut dropout = dropout;
            dropout.apply(x_btw)
        };
        let run = |block: usize, x_btw: &Tensor| {
            // One use before the blocks, and three in each.
            let dropout = dropout.after(1 + 3 * block);
            let run = move |block: &Block, parameters: &Parameters, x_btw: &Tensor| {
                let mut dropout = dropout;
                let y_btw = block.apply(parameters, x_btw, num_heads, &mut dropout)?;
                Ok((y_btw, ()))
            };
            let block = &self.blocks[block];
            let (x_btw, ()) = block.apply(self.recomputes, &self.parameters, x_btw, run)?;
            // A block with experts adds a row.
            if x_btw.size()[1] > length {
                let loss = x_btw.f_select(1, length)?.f_select(1, 0)?;
                let loss = loss.f_sum(Kind::Float)?;
                balance = Some(match balance.take() {
                    Some(sum) => sum.f_add(&loss)?,
                    None => loss,
                });
                return x_btw.f_narrow(1, 0, length);
            }
            Ok(x_btw)
        };
        let shape = [batch_size, length, self.width];
        let p = &self.parameters;
        let output = through_blocks(p, shape, self.blocks.len(), tokens_bt, first, run)?;
        let output = match output {
            Output::Here(x_btw) => Output::Here(self.head.apply_alone(p, &x_btw, Head::apply)?),
            Output::Sent(loss) => Output::Sent(loss),
        };
        Ok((output, balance))
    }
}

impl Task for Gpt2 {
    fn loss(&self, batch: &Batch, mode: Mode) -> Result<LossSum, TchError> {
        let mut balance = None;
        let scores = || {
            let (scores_nv, loss) = self.scores_and_balance(&batch.inputs, mode)?;
            balance = loss;
            Ok(scores_nv)
        };
        let smoothing = self.label_smoothing;
        let vocabulary = self.parameters.vocabulary(self.embedding_place);
        let sum =
            loss_of_next_tokens(&self.parameters, vocabulary, batch, mode, smoothing, scores)?;
        let balance = balance.filter(|_| matches!(mode, Mode::Train { .. }));
        let Some(balance) = balance else {
            return Ok(sum);
        };
        let loss = sum
            .loss
            .f_add(&balance.f_mul_scalar(self.router_aux_loss_coef)?)?;
        Ok(LossSum { loss, ..sum })
    }

    /// `6 · (12 · L · W² + V · W) + 12 · L · W · T` for each of T tokens. This is 0.86 · 10⁹ for
    /// the smallest published size (12 layers, width 768, 1,024 tokens). A `switch` with E experts
    /// adds `6 · E · W` for each of L / 2 routers, rounded down.
    fn flops_per_sample(&self) -> Option<f64> {
        Some(self.flops_per_sample)
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
    use roundhouse_contract::trainer::model::ModelName;

    use super::*;
    use crate::random::seeded;

    #[test]
    fn gpt2_small_has_124_million_weights() {
        let model = seeded(1, || Gpt2::new(&ModelConfig::new(ModelName::Gpt2), 1024)).unwrap();
        assert_eq!(model.parameters().num_weights(), 124_439_808);
        let per_token = model.flops_per_sample().unwrap() / 1024.0;
        assert!((per_token / 0.8547e9 - 1.0).abs() < 1e-3, "{per_token}");
    }

    #[test]
    fn residual_projections_are_scaled_by_depth() {
        let mut config = ModelConfig::new(ModelName::Gpt2);
        (config.layers, config.vocabulary, config.width) = (Some(2), Some(100), Some(192));
        let model = seeded(1, || Gpt2::new(&config, 8)).unwrap();
        for (end, expected) in [
            ("c_fc.weight", 0.02),
            ("c_proj.weight", 0.01),
            ("wte.weight", 0.02),
        ] {
            let (name, tensor) = model
                .parameters()
                .iter()
                .find(|(n, _)| n.ends_with(end))
                .unwrap();
            let deviation = tensor.std(false).double_value(&[]);
            assert!(
                (deviation / expected - 1.0).abs() < 0.03,
                "{name}: {deviation}"
            );
        }
    }
}
