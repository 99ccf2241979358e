//! Llama (Touvron et al. 2023). Names, layout and initialization are those of Transformers.

use roundhouse_contract::trainer::model::Model as ModelConfig;
use tch::{TchError, Tensor};

use super::init;
use super::layers::{self, Linear, RmsNorm};
use super::transformer::{Dropout, Output, flops_of_blocks, loss_of_next_tokens, through_blocks};
use crate::batch::Batch;
use crate::parameters::{Parameters, Role};
use crate::pipeline::Layer;
use crate::segment::Segment;
use crate::task::{LossSum, Mode, Task};

mod attention;
mod block;
mod rotation;

use block::{Block, Shape};
use rotation::Rotation;

/// The last normalization, and the scores.
#[derive(Debug)]
struct Head {
    norm: RmsNorm,
    /// The weights of the scores, unless they are the embedding.
    linear: Option<Linear>,
    embedding: usize,
}

impl Head {
    /// The scores `[B · T, V]` for vectors `[B, T, W]`.
    fn apply(&self, parameters: &Parameters, x_btw: &Tensor) -> Result<Tensor, TchError> {
        let x_nw = self.norm.apply(parameters, x_btw)?.f_flatten(0, 1)?;
        let x_nw = parameters.input_of_colwise(&x_nw)?;
        match &self.linear {
            Some(linear) => linear.apply(parameters, &x_nw),
            None => x_nw.f_linear(parameters.at(self.embedding), None::<Tensor>),
        }
    }
}

/// A decoder-only transformer with rotary positions. A batch has tokens `[B, T]` and, as targets,
/// the next tokens `[B, T]`.
#[derive(Debug)]
pub struct Llama {
    parameters: Parameters,
    /// The place of the vectors of tokens.
    embedding_place: usize,
    embedding: Segment<usize>,
    blocks: Vec<Segment<Block>>,
    recomputes: bool,
    head: Segment<Head>,
    width: i64,
    head_size: i64,
    rope_theta: f64,
    dropout: f64,
    label_smoothing: f64,
    flops_per_sample: f64,
}

impl Llama {
    /// The model of a valid configuration; `length` is the data's sequence length.
    ///
    /// # Errors
    /// The weights exceed the memory.
    pub fn new(config: &ModelConfig, length: i64) -> Result<Self, TchError> {
        let shape = Shape::of(config);
        let Shape { width, epsilon, .. } = shape;
        let (num_layers, vocabulary) = (i64::from(config.layers()), i64::from(config.vocabulary()));
        let mut parameters = Parameters::default();
        let p = &mut parameters;
        let embedding = init::normal(&[vocabulary, width], 0.02)?;
        let embedding = p.push("model.embed_tokens.weight", Role::Weight, &embedding)?;
        p.cut(embedding, 0, 1);
        p.assign(if config.tie_embeddings() {
            Layer::Ends
        } else {
            Layer::First
        });
        let embedding_place = embedding;
        let blocks = (0..num_layers)
            .map(|layer| {
                let block = Segment::build(p, |p| Block::new(p, layer, shape));
                p.assign_block(layer);
                block
            })
            .collect::<Result<_, _>>()?;
        let first = p.tensors().len();
        let norm = RmsNorm::new(p, "model.norm", width, epsilon)?;
        let has_linear = !config.tie_embeddings();
        let linear = has_linear.then(|| {
            let linear = Linear::without_bias(p, "lm_head", width, vocabulary)?;
            Ok::<_, TchError>(linear.colwise(p))
        });
        let head = Head {
            norm,
            linear: linear.transpose()?,
            embedding,
        };
        let of_head = first..p.tensors().len();
        p.assign(Layer::Last);
        let (embedding, head) = if has_linear {
            let segment = Segment::new(p, embedding, [embedding]);
            (segment, Segment::new(p, head, of_head))
        } else {
            // The embedding is used twice, so both segments have the same weights.
            let places = || of_head.clone().chain([embedding]);
            let segment = Segment::new(p, embedding, places());
            (segment, Segment::new(p, head, places()))
        };
        // The embedding lookup counts as free.
        let scores = 6.0 * (vocabulary * width) as f64 * length as f64;
        let blocks_flops = flops_of_blocks(num_layers, shape.num_weights(), width, length);
        Ok(Self {
            embedding_place,
            embedding,
            blocks,
            recomputes: false,
            head,
            width,
            head_size: shape.head_size(),
            rope_theta: config.rope_theta(),
            dropout: config.dropout(),
            label_smoothing: config.label_smoothing(),
            flops_per_sample: blocks_flops + scores,
            parameters,
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
    /// A token is not below the vocabulary.
    pub fn scores(&self, tokens_bt: &Tensor, mode: Mode) -> Result<Tensor, TchError> {
        match self.output(tokens_bt, mode)? {
            Output::Here(scores_nv) => Ok(scores_nv),
            Output::Sent(loss) => Ok(loss),
        }
    }

    fn output(&self, tokens_bt: &Tensor, mode: Mode) -> Result<Output, TchError> {
        let p = &self.parameters;
        let dropout = Dropout::new(self.dropout, mode).in_part(p.tensor_rank());
        let rotation = Rotation::new(
            tokens_bt.size()[1],
            self.head_size,
            self.rope_theta,
            p.device(),
        )?;
        let embed = |embedding: &usize, parameters: &Parameters, tokens_bt: &Tensor| {
            layers::embed(parameters, *embedding, tokens_bt, -1)
        };
        let run = |block: usize, x_btw: &Tensor| {
            // One use in each block.
            let (rotation, dropout) = (rotation.share(), dropout.after(block));
            let run = move |block: &Block, parameters: &Parameters, x_btw: &Tensor| {
                let mut dropout = dropout;
                let y_btw = block.apply(parameters, x_btw, &rotation, &mut dropout)?;
                Ok((y_btw, ()))
            };
            let block = &self.blocks[block];
            let (x_btw, ()) = block.apply(self.recomputes, p, x_btw, run)?;
            Ok(x_btw)
        };
        let first = || self.embedding.apply_alone(p, tokens_bt, embed);
        let shape = [tokens_bt.size()[0], tokens_bt.size()[1], self.width];
        let output = through_blocks(p, shape, self.blocks.len(), tokens_bt, first, run)?;
        Ok(match output {
            Output::Here(x_btw) => Output::Here(self.head.apply_alone(p, &x_btw, Head::apply)?),
            Output::Sent(loss) => Output::Sent(loss),
        })
    }
}

impl Task for Llama {
    fn loss(&self, batch: &Batch, mode: Mode) -> Result<LossSum, TchError> {
        let scores = || self.output(&batch.inputs, mode);
        let (p, smoothing) = (&self.parameters, self.label_smoothing);
        loss_of_next_tokens(
            p,
            p.vocabulary(self.embedding_place),
            batch,
            mode,
            smoothing,
            scores,
        )
    }

    /// `6 · (L · N + V · W) + 12 · L · W · T` for each of T tokens. N is the number of weights in
    /// the matrices of one block.
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

    fn llama(change: impl FnOnce(&mut ModelConfig)) -> Llama {
        let mut config = ModelConfig::new(ModelName::Llama);
        change(&mut config);
        seeded(1, || Llama::new(&config, 1024)).unwrap()
    }

    #[test]
    fn tinyllama_has_the_published_number_of_weights_per_block() {
        // TinyLlama-1.1B has 22 blocks.
        let tiny = |layers| {
            llama(|it| {
                (it.layers, it.heads, it.num_key_value_heads) = (Some(layers), Some(32), Some(4));
                (it.width, it.inner_width, it.vocabulary) = (Some(2048), Some(5632), Some(2));
            })
        };
        let [one, two] = [1, 2].map(|layers| tiny(layers).parameters().num_weights());
        let of_vocabulary = 2 * 32_000 * 2048;
        assert_eq!(22 * (two - one) + of_vocabulary + 2048, 1_100_048_384);
    }

    #[test]
    fn tied_llama_has_no_weights_of_a_head() {
        let num_weights = |tied| {
            let small = llama(|it| {
                (it.layers, it.heads, it.width) = (Some(1), Some(2), Some(16));
                (it.vocabulary, it.tie_embeddings) = (Some(50), Some(tied));
            });
            let mut names = small.parameters().iter().map(|(name, _)| name);
            assert_eq!(names.any(|name| name == "lm_head.weight"), !tied);
            small.parameters().num_weights()
        };
        assert_eq!(num_weights(false), num_weights(true) + 50 * 16);
    }
}
