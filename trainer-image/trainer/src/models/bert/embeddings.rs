//! The embeddings of BERT: tokens to vectors.

use tch::{TchError, Tensor};

use super::super::init;
use super::super::layers::{self, LayerNorm};
use super::super::transformer::Dropout;
use super::EPSILON;
use crate::parameters::{Parameters, Role};

/// The padding token of Transformers; its lookup has no gradient.
const PADDING: i64 = 0;

/// Normalized sum of the vectors of a token, its place and its segment. All tokens are of the first
/// segment.
#[derive(Debug)]
pub(super) struct Embeddings {
    words: usize,
    places: usize,
    segments: usize,
    norm: LayerNorm,
}

impl Embeddings {
    pub(super) fn new(
        parameters: &mut Parameters,
        vocabulary: i64,
        context: i64,
        width: i64,
    ) -> Result<Self, TchError> {
        let mut add = |name: &str, rows: i64| {
            let value = init::normal(&[rows, width], 0.02)?;
            if name == "word" {
                let _ = value.f_select(0, PADDING)?.f_zero_()?;
            }
            let name = format!("bert.embeddings.{name}_embeddings.weight");
            parameters.push(name, Role::Weight, &value)
        };
        let (words, places, segments) = (
            add("word", vocabulary)?,
            add("position", context)?,
            add("token_type", 2)?,
        );
        parameters.cut(words, 0, 1);
        let norm = LayerNorm::new(parameters, "bert.embeddings.LayerNorm", width, EPSILON)?;
        Ok(Self {
            words,
            places,
            segments,
            norm,
        })
    }

    /// The place of the vectors of all tokens `[V, W]`.
    pub(super) const fn words(&self) -> usize {
        self.words
    }

    pub(super) fn apply(
        &self,
        parameters: &Parameters,
        tokens_bt: &Tensor,
        dropout: &mut Dropout,
    ) -> Result<Tensor, TchError> {
        let length = tokens_bt.size()[1];
        let places_tw = parameters.at(self.places).f_narrow(0, 0, length)?;
        let segment_w = parameters.at(self.segments).f_select(0, 0)?;
        let x_btw = layers::embed(parameters, self.words, tokens_bt, PADDING)?
            .f_add(&segment_w)?
            .f_add(&places_tw)?;
        dropout.apply(self.norm.apply(parameters, &x_btw)?)
    }
}
