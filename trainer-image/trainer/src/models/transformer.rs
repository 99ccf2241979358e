//! Parts that transformers share: attention over heads, dropout, the loss of next tokens, and the
//! operation count.

use tch::{Kind, TchError, Tensor};

use crate::batch::Batch;
use crate::loss::Scores;
use crate::parameters::Parameters;
use crate::pipeline::Stage;
use crate::random::Draws;
use crate::task::{LossSum, Mode};
use crate::tensor_parallel::Vocabulary;

/// Drops values in a pass of a training step. The random numbers of each use are a function of the
/// pass's seed, step and slice, and of the number of the use within the pass. A copy of this struct
/// draws the same numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dropout {
    probability: f64,
    draws: Option<Draws>,
    num_uses: u64,
    /// Index of this process among those with parts of the layer.
    part: u32,
}

impl Dropout {
    pub(super) fn new(probability: f64, mode: Mode) -> Self {
        Self {
            probability,
            draws: Draws::of(mode).filter(|_| probability > 0.0),
            num_uses: 0,
            part: 0,
        }
    }

    /// With tensor parallelism, for the process with this index. Its heads of attention draw other
    /// numbers than those of the other processes, and all other uses draw the same.
    pub(super) fn in_part(self, part: u32) -> Self {
        Self { part, ..self }
    }

    /// Counts the uses of layers that another process computes.
    pub(super) fn after(self, num_uses: usize) -> Self {
        let num_uses = self.draws.map_or(0, |_| num_uses as u64);
        Self {
            num_uses: self.num_uses + num_uses,
            ..self
        }
    }

    /// Runs one use with the drop probability; it is 0 in an evaluation.
    fn once<T>(&mut self, part: u32, run: impl FnOnce(f64) -> T) -> T {
        let Some(draws) = self.draws else {
            return run(0.0);
        };
        self.num_uses += 1;
        let layer = self.num_uses | u64::from(part) << 32;
        draws.layer(layer, || run(self.probability))
    }

    /// Drops values, and scales the remaining values so that the mean is unchanged.
    pub(super) fn apply(&mut self, x: Tensor) -> Result<Tensor, TchError> {
        self.once(0, |probability| match probability {
            0.0 => Ok(x),
            probability => x.f_dropout(probability, true),
        })
    }

    /// Attention of queries, keys and values `[B, T, W]` over heads (Vaswani et al. 2017), with
    /// dropout of the attention weights. `is_causal`: a place attends only to itself and to earlier
    /// places.
    pub(super) fn attention(
        &mut self,
        [q_btw, k_btw, v_btw]: [&Tensor; 3],
        num_heads: i64,
        is_causal: bool,
    ) -> Result<Tensor, TchError> {
        let heads = |x_btw: &Tensor| in_heads(x_btw, num_heads);
        let (q, k, v) = (heads(q_btw)?, heads(k_btw)?, heads(v_btw)?);
        self.attention_of_heads([&q, &k, &v], is_causal)
    }

    /// [`Self::attention`] of queries, keys and values `[B, H, T, D]` of H heads. The result is
    /// `[B, T, H · D]`.
    pub(super) fn attention_of_heads(
        &mut self,
        [q_bhtd, k_bhtd, v_bhtd]: [&Tensor; 3],
        is_causal: bool,
    ) -> Result<Tensor, TchError> {
        let mixed_bhtd = self.once(self.part, |probability| {
            Tensor::f_scaled_dot_product_attention(
                q_bhtd,
                k_bhtd,
                v_bhtd,
                None::<Tensor>,
                probability,
                is_causal,
                None,
                false,
            )
        })?;
        mixed_bhtd.f_transpose(1, 2)?.f_flatten(2, 3)
    }
}

/// Splits vectors `[B, T, H · D]` into heads `[B, H, T, D]`.
pub(super) fn in_heads(x_btw: &Tensor, num_heads: i64) -> Result<Tensor, TchError> {
    let size = x_btw.size();
    x_btw
        .f_reshape([size[0], size[1], num_heads, size[2] / num_heads])?
        .f_transpose(1, 2)
}

/// What a process computes of a model.
pub(super) enum Output {
    /// The activations of the last block.
    Here(Tensor),
    /// A loss of 0: another process computes the rest.
    Sent(Tensor),
}

/// Runs this process' blocks of a pipeline, or all blocks. `shape` is that of the activations,
/// `inputs` are the tokens, and `first` computes the input of the first block from them. `run`
/// computes a block with this index.
pub(super) fn through_blocks(
    parameters: &Parameters,
    shape: [i64; 3],
    num_blocks: usize,
    inputs: &Tensor,
    first: impl FnOnce() -> Result<Tensor, TchError>,
    mut run: impl FnMut(usize, &Tensor) -> Result<Tensor, TchError>,
) -> Result<Output, TchError> {
    let pipeline = parameters.pipeline();
    let stage = pipeline.map(|it| it.stage());
    let mut x_btw = match pipeline {
        Some(pipeline) if !pipeline.stage().is_first() => pipeline.receive(&shape, inputs)?,
        _ => first()?,
    };
    for block in stage.map_or(0..num_blocks, Stage::blocks) {
        x_btw = run(block, &x_btw)?;
    }
    match pipeline {
        Some(pipeline) if !pipeline.stage().is_last() => pipeline.send(&x_btw).map(Output::Sent),
        _ => Ok(Output::Here(x_btw)),
    }
}

/// The loss and counts of a process that has not computed the scores.
pub(super) const fn elsewhere(loss: Tensor) -> LossSum {
    LossSum {
        loss,
        counts: Vec::new(),
    }
}

/// Loss and counts of a model that predicts next tokens. `scores` returns those of the batch's
/// tokens, `[B · T, V]`.
pub(super) fn loss_of_next_tokens(
    parameters: &Parameters,
    vocabulary: Option<Vocabulary>,
    batch: &Batch,
    mode: Mode,
    label_smoothing: f64,
    scores: impl FnOnce() -> Result<Output, TchError>,
) -> Result<LossSum, TchError> {
    if batch.num_samples == 0 {
        return Ok(LossSum {
            loss: parameters.no_loss()?,
            counts: Vec::new(),
        });
    }
    let scores_nv = match scores()? {
        Output::Here(scores_nv) => scores_nv,
        Output::Sent(loss) => return Ok(elsewhere(loss)),
    };
    let scores = Scores {
        scores_nv,
        vocabulary,
    };
    let (smoothing, counts) = match mode {
        Mode::Train { .. } => (label_smoothing, Vec::new()),
        Mode::Evaluate => (0.0, scores.count_tokens(&batch.targets)?),
    };
    let loss = scores.of_sequences(&batch.targets, smoothing)?;
    Ok(LossSum {
        loss: loss.f_to_kind(Kind::Float)?,
        counts,
    })
}

/// Floating-point operations of blocks for one sequence, forward and backward (Chowdhery et al.
/// 2022, appendix B): `L · (6 · N + 12 · W · T)` for each of T tokens. N is the number of weights
/// in the matrices of one block. The second term counts the products of queries with keys and of
/// attention weights with values.
pub(super) fn flops_of_blocks(num_layers: i64, block_weights: i64, width: i64, length: i64) -> f64 {
    let per_token = 6 * block_weights + 12 * width * length;
    (num_layers * length) as f64 * per_token as f64
}

#[cfg(test)]
mod tests {
    use tch::{Kind, kind::FLOAT_CPU};

    use super::*;

    const TRAIN: Mode = Mode::Train {
        seed: 1,
        step: 2,
        slice: 3,
    };

    fn equal(a: &Tensor, b: &Tensor) -> bool {
        a.f_equal(b).unwrap()
    }

    #[test]
    fn dropout_is_a_function_of_pass_and_use() {
        let ones = || Tensor::ones([1000], FLOAT_CPU);
        let mut first = Dropout::new(0.5, TRAIN);
        let (a, b) = (first.apply(ones()).unwrap(), first.apply(ones()).unwrap());
        assert!(!equal(&a, &b));
        // Other draws in between have no effect.
        let mut second = Dropout::new(0.5, TRAIN);
        let again = second.apply(ones()).unwrap();
        crate::random::seeded(0, || drop(Tensor::rand([10], FLOAT_CPU)));
        assert!(equal(&a, &again) && equal(&b, &second.apply(ones()).unwrap()));
        let kept = (a.ne(0.0)).sum(Kind::Int64).int64_value(&[]);
        assert!((450..550).contains(&kept), "{kept}");
    }

    #[test]
    fn evaluation_drops_nothing() {
        let ones = Tensor::ones([100], FLOAT_CPU);
        let mut dropout = Dropout::new(0.5, Mode::Evaluate);
        assert!(equal(&dropout.apply(ones.copy()).unwrap(), &ones));
    }

    #[test]
    fn causal_attention_averages_values_up_to_its_place() {
        let zeros = Tensor::zeros([1, 3, 2], FLOAT_CPU);
        let values = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]).reshape([1, 3, 2]);
        let mut dropout = Dropout::new(0.0, TRAIN);
        let mut attend = |is_causal| {
            let mixed = dropout
                .attention([&zeros, &zeros, &values], 2, is_causal)
                .unwrap();
            Vec::<f32>::try_from((mixed * 16.0).round().flatten(0, -1)).unwrap()
        };
        assert_eq!(attend(true), [16.0, 32.0, 32.0, 48.0, 48.0, 64.0]);
        assert_eq!(attend(false), [48.0, 64.0, 48.0, 64.0, 48.0, 64.0]);
    }
}
