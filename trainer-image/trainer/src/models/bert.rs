//! BERT (Devlin et al. 2018) with the head for masked tokens. Names and initialization are those of
//! Transformers.

use roundhouse_contract::trainer::model::Model as ModelConfig;
use tch::{Kind, TchError, Tensor};

use super::layers::{LayerNorm, Linear, constant};
use super::masking::num_masked;
use super::transformer::{Dropout, Output, elsewhere, flops_of_blocks, through_blocks};
use crate::batch::Batch;
use crate::loss::{self, Scores};
use crate::parameters::Parameters;
use crate::pipeline::Layer;
use crate::segment::Segment;
use crate::task::{LossSum, Mode, Task};

mod embeddings;
mod layer;

use embeddings::Embeddings;
use layer::Layer as BertLayer;

/// Constant that layer normalization adds to the variance.
const EPSILON: f64 = 1e-12;

/// A layer, and scores as a product with the tied embedding.
#[derive(Debug)]
struct Head {
    transform: Linear,
    norm: LayerNorm,
    bias: usize,
    /// The place of the vectors of all tokens.
    words: usize,
}

impl Head {
    /// The scores `[B · M, V]` for vectors `[B, M, W]`.
    fn apply(&self, p: &Parameters, x_bmw: &Tensor) -> Result<Tensor, TchError> {
        let x_nw = self
            .transform
            .apply(p, &x_bmw.f_flatten(0, 1)?)?
            .f_gelu("none")?;
        let x_nw = p.input_of_colwise(&self.norm.apply(p, &x_nw)?)?;
        x_nw.f_linear(p.at(self.words), Some(p.at(self.bias)))
    }
}

/// An encoder-only transformer for masked tokens.
///
/// A batch has tokens `[B, T]` with masked places, as [`masking`](super::masking) chooses them.
/// Targets `[B, T]` are the original tokens of masked places, and -100 elsewhere. A sequence has at
/// most [`num_masked`] targets; with more, its loss is NaN. Each sequence is full: there is no
/// padding.
#[derive(Debug)]
pub struct Bert {
    parameters: Parameters,
    /// The place of the vectors of tokens.
    embedding_place: usize,
    embeddings: Segment<Embeddings>,
    layers: Vec<Segment<BertLayer>>,
    recomputes: bool,
    head: Segment<Head>,
    width: i64,
    num_heads: i64,
    dropout: f64,
    label_smoothing: f64,
    flops_per_sample: f64,
}

impl Bert {
    /// Builds the model of a valid configuration; `length` is the data's sequence length.
    ///
    /// # Errors
    /// The weights exceed the memory.
    pub fn new(config: &ModelConfig, length: i64) -> Result<Self, TchError> {
        let width = i64::from(config.width());
        let (num_layers, vocabulary) = (i64::from(config.layers()), i64::from(config.vocabulary()));
        let mut parameters = Parameters::default();
        let p = &mut parameters;
        let embeddings = Embeddings::new(p, vocabulary, config.context().into(), width)?;
        let of_embeddings = p.tensors().len();
        p.assign_one(embeddings.words(), Layer::Ends);
        p.assign(Layer::First);
        let layers = (0..num_layers)
            .map(|number| {
                let layer = Segment::build(p, |p| BertLayer::new(p, number, width));
                p.assign_block(number);
                layer
            })
            .collect::<Result<_, _>>()?;
        let first = p.tensors().len();
        let name = |part: &str| format!("cls.predictions.{part}");
        let head = Head {
            transform: Linear::normal(p, &name("transform.dense"), width, width)?,
            norm: LayerNorm::new(p, &name("transform.LayerNorm"), width, EPSILON)?,
            bias: constant(p, name("bias"), vocabulary, 0.0)?,
            words: embeddings.words(),
        };
        p.cut(head.bias, 0, 1);
        p.assign(Layer::Last);
        let embedding_place = head.words;
        // The embedding is used twice, so both segments have the same weights.
        let of_head = first..p.tensors().len();
        let places = || (0..of_embeddings).chain(of_head.clone());
        let embeddings = Segment::new(p, embeddings, places());
        let head = Segment::new(p, head, places());
        let of_scores = 6.0 * (width * (width + vocabulary) * num_masked(length)) as f64;
        Ok(Self {
            parameters,
            embedding_place,
            embeddings,
            layers,
            recomputes: false,
            head,
            width,
            num_heads: config.heads().into(),
            dropout: config.dropout(),
            label_smoothing: config.label_smoothing(),
            flops_per_sample: flops_of_blocks(num_layers, 12 * width * width, width, length)
                + of_scores,
        })
    }

    /// Returns the model with recomputation on or off. With it each layer keeps only its input: see
    /// [`Segment::apply`].
    #[must_use]
    pub fn recomputing(self, recomputes: bool) -> Self {
        Self { recomputes, ..self }
    }

    /// Scores `[B · T, V]` of the original token of each place of the tokens `[B, T]`.
    ///
    /// # Errors
    /// A sequence is longer than the context, or a token is not below the vocabulary.
    pub fn scores(&self, tokens_bt: &Tensor, mode: Mode) -> Result<Tensor, TchError> {
        match self.encode(tokens_bt, mode)? {
            Output::Here(x_btw) => self.head(&x_btw),
            Output::Sent(loss) => Ok(loss),
        }
    }

    fn encode(&self, tokens_bt: &Tensor, mode: Mode) -> Result<Output, TchError> {
        let dropout = Dropout::new(self.dropout, mode).in_part(self.parameters.tensor_rank());
        let embed = move |embeddings: &Embeddings, parameters: &Parameters, tokens_bt: &Tensor| {
            let mut dropout = dropout;
            embeddings.apply(parameters, tokens_bt, &mut dropout)
        };
        let (p, num_heads) = (&self.parameters, self.num_heads);
        let first = || self.embeddings.apply_alone(p, tokens_bt, embed);
        let run = |layer: usize, x_btw: &Tensor| {
            // One use before the layers, and three in each.
            let dropout = dropout.after(1 + 3 * layer);
            let run = move |layer: &BertLayer, parameters: &Parameters, x_btw: &Tensor| {
                let mut dropout = dropout;
                let y_btw = layer.apply(parameters, x_btw, num_heads, &mut dropout)?;
                Ok((y_btw, ()))
            };
            let layer = &self.layers[layer];
            let (x_btw, ()) = layer.apply(self.recomputes, p, x_btw, run)?;
            Ok(x_btw)
        };
        let shape = [tokens_bt.size()[0], tokens_bt.size()[1], self.width];
        through_blocks(p, shape, self.layers.len(), tokens_bt, first, run)
    }

    fn head(&self, x_btw: &Tensor) -> Result<Tensor, TchError> {
        self.head.apply_alone(&self.parameters, x_btw, Head::apply)
    }
}

/// Places of M targets in each row of `[B, T]`, and NaN for rows with more than M targets, else 0.
/// M does not depend on the batch's content, so the host reads nothing from the device.
fn places_of_targets(targets_bt: &Tensor) -> Result<(Tensor, Tensor), TchError> {
    let num_targets = num_masked(targets_bt.size()[1]);
    let counted_bt = targets_bt.f_ne(loss::IGNORED)?.f_to_kind(Kind::Int64)?;
    let places_bm = counted_bt
        .f_argsort_stable(true, 1, true)?
        .f_narrow(1, 0, num_targets)?;
    let too_many = counted_bt
        .f_sum_dim_intlist(1, false, Kind::Int64)?
        .f_gt(num_targets)?;
    let mark_b = too_many
        .f_to_kind(Kind::Float)?
        .f_masked_fill(&too_many, f64::NAN)?;
    Ok((places_bm, mark_b.f_sum(Kind::Float)?))
}

impl Task for Bert {
    fn loss(&self, batch: &Batch, mode: Mode) -> Result<LossSum, TchError> {
        if batch.num_samples == 0 {
            return Ok(LossSum {
                loss: self.parameters.no_loss()?,
                counts: Vec::new(),
            });
        }
        let x_btw = match self.encode(&batch.inputs, mode)? {
            Output::Here(x_btw) => x_btw,
            Output::Sent(loss) => return Ok(elsewhere(loss)),
        };
        // Compute the head for masked places only: at every place it is a third of the work.
        let (places_bm, mark) = places_of_targets(&batch.targets)?;
        let targets_bm = batch.targets.f_gather(1, &places_bm, false)?;
        let index_bmw = places_bm
            .f_unsqueeze(2)?
            .f_expand([-1, -1, x_btw.size()[2]], false)?;
        let scores = Scores {
            scores_nv: self.head(&x_btw.f_gather(1, &index_bmw, false)?)?,
            vocabulary: self.parameters.vocabulary(self.embedding_place),
        };
        let (smoothing, counts) = match mode {
            Mode::Train { .. } => (self.label_smoothing, Vec::new()),
            Mode::Evaluate => (0.0, scores.count_tokens(&targets_bm)?),
        };
        let loss = scores.of_sequences(&targets_bm, smoothing)?;
        Ok(LossSum {
            loss: loss.f_add(&mark)?,
            counts,
        })
    }

    /// `6 · 12 · L · W² + 12 · L · W · T` for each of T tokens, and `6 · W · (W + V)` for each
    /// masked token.
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
    fn bert_base_has_110_million_weights() {
        let model = seeded(1, || Bert::new(&ModelConfig::new(ModelName::Bert), 512)).unwrap();
        // BertForMaskedLM of bert-base-uncased.
        assert_eq!(model.parameters().num_weights(), 109_514_298);
    }

    #[test]
    fn sequence_with_too_many_targets_has_loss_nan() {
        let marked = |targets: &[i64]| {
            let targets = Tensor::from_slice(targets).reshape([1, -1]);
            let (places, mark) = places_of_targets(&targets).unwrap();
            let places = Vec::<i64>::try_from(places.flatten(0, -1)).unwrap();
            (places, mark.double_value(&[]).is_nan())
        };
        let mut targets = [loss::IGNORED; 14];
        (targets[3], targets[9]) = (5, 0);
        assert_eq!(marked(&targets), (vec![3, 9], false));
        targets[11] = 1;
        assert_eq!(marked(&targets), (vec![3, 9], true));
    }
}
