//! Losses as sums over samples, and the counts of an evaluation.

use tch::{Kind, Reduction, TchError, Tensor};

use crate::tensor_parallel::Vocabulary;

/// A target that losses and counts ignore, as in PyTorch.
pub const IGNORED: i64 = -100;

/// Sum of the cross entropies of scores `[B, K]` and classes `[B]`.
///
/// # Errors
/// The shapes do not match.
pub fn of_classes(
    scores_bk: &Tensor,
    targets_b: &Tensor,
    smoothing: f64,
) -> Result<Tensor, TchError> {
    in_fp32(scores_bk)?.f_cross_entropy_loss(
        targets_b,
        None::<Tensor>,
        Reduction::Sum,
        IGNORED,
        smoothing,
    )
}

/// Sum over sequences of the mean cross entropy over a sequence's targets, for scores of `B · T`
/// places `[B · T, V]` and targets `[B, T]`. A sequence without targets counts 0.
///
/// # Errors
/// The shapes do not match.
pub fn of_sequences(
    scores_nv: &Tensor,
    targets_bt: &Tensor,
    smoothing: f64,
) -> Result<Tensor, TchError> {
    Scores::all(scores_nv).of_sequences(targets_bt, smoothing)
}

/// Scores of tokens, for all of the vocabulary or the part of this process.
#[derive(Debug)]
pub(crate) struct Scores {
    /// `[N, V]`, or `[N, V / P]` in each of P processes.
    pub(crate) scores_nv: Tensor,
    pub(crate) vocabulary: Option<Vocabulary>,
}

impl Scores {
    fn all(scores_nv: &Tensor) -> Self {
        Self {
            scores_nv: scores_nv.shallow_clone(),
            vocabulary: None,
        }
    }

    /// The sum of losses that [`of_sequences`] describes.
    pub(crate) fn of_sequences(
        &self,
        targets_bt: &Tensor,
        smoothing: f64,
    ) -> Result<Tensor, TchError> {
        let losses_bt = self.of_tokens(targets_bt, smoothing)?;
        let counts_b = counted(targets_bt)?.f_sum_dim_intlist(1, false, Kind::Float)?;
        losses_bt
            .f_sum_dim_intlist(1, false, Kind::Float)?
            .f_div(&counts_b.f_clamp_min(1.0)?)?
            .f_sum(Kind::Float)
    }

    /// The counts that [`count_tokens`] describes.
    pub(crate) fn count_tokens(
        &self,
        targets_bt: &Tensor,
    ) -> Result<Vec<(&'static str, Tensor)>, TchError> {
        Ok(vec![
            ("nll", self.of_tokens(targets_bt, 0.0)?.f_sum(Kind::Double)?),
            ("tokens", counted(targets_bt)?.f_sum(Kind::Int64)?),
        ])
    }

    /// The cross entropy of each target.
    fn of_tokens(&self, targets_bt: &Tensor, smoothing: f64) -> Result<Tensor, TchError> {
        let targets_n = targets_bt.f_reshape([-1])?;
        let scores_nv = in_fp32(&self.scores_nv)?;
        let losses_n = match &self.vocabulary {
            Some(part) => part.cross_entropy(&scores_nv, &targets_n, smoothing, IGNORED)?,
            None => scores_nv.f_cross_entropy_loss(
                &targets_n,
                None::<Tensor>,
                Reduction::None,
                IGNORED,
                smoothing,
            )?,
        };
        losses_n.f_reshape(targets_bt.size())
    }
}

/// Counts for the evaluation of a classifier: samples whose class has the highest score (`top1`),
/// and samples whose class is among the five highest (`top5`).
///
/// # Errors
/// The shapes do not match.
pub fn count_classes(
    scores_bk: &Tensor,
    targets_b: &Tensor,
) -> Result<Vec<(&'static str, Tensor)>, TchError> {
    let num_best = scores_bk.size()[1].min(5);
    let (_, best_b5) = scores_bk.f_topk(num_best, 1, true, true)?;
    let right_b5 = best_b5.f_eq_tensor(&targets_b.f_unsqueeze(1)?)?;
    Ok(vec![
        ("top1", right_b5.f_narrow(1, 0, 1)?.f_sum(Kind::Int64)?),
        ("top5", right_b5.f_sum(Kind::Int64)?),
    ])
}

/// Counts for the evaluation of a language model: the sum of the targets' negative log-likelihoods
/// (`nll`), and the number of targets (`tokens`).
///
/// # Errors
/// The shapes do not match.
pub fn count_tokens(
    scores_nv: &Tensor,
    targets_bt: &Tensor,
) -> Result<Vec<(&'static str, Tensor)>, TchError> {
    Scores::all(scores_nv).count_tokens(targets_bt)
}

/// Converts 16-bit scores to fp32. On a CPU autocast does this for a loss, on a GPU it does not:
/// log-probabilities near -10 would be rounded to multiples of 0.06.
fn in_fp32(scores: &Tensor) -> Result<Tensor, TchError> {
    match scores.f_kind()? {
        Kind::BFloat16 | Kind::Half => scores.f_to_kind(Kind::Float),
        _ => Ok(scores.shallow_clone()),
    }
}

fn counted(targets: &Tensor) -> Result<Tensor, TchError> {
    targets.f_ne(IGNORED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_of_16_bit_scores_equals_their_fp32_loss() {
        let scores = Tensor::randn([6, 50_000], (Kind::Float, tch::Device::Cpu)) * 3.0;
        let targets = Tensor::from_slice(&[7_i64, 49_999, IGNORED, 0, 123, 4_567]);
        let of_kind = |kind| {
            let scores = scores.to_kind(kind).set_requires_grad(true);
            let classes = of_classes(&scores, &targets, 0.1).unwrap();
            let sequences = of_sequences(&scores, &targets.view([2, 3]), 0.0).unwrap();
            let counted = count_tokens(&scores, &targets.view([2, 3])).unwrap();
            (&classes + &sequences).backward();
            assert_eq!(scores.grad().kind(), kind);
            [value(&classes), value(&sequences), value(&counted[0].1)]
        };
        for kind in [Kind::BFloat16, Kind::Half] {
            let rounded = scores.to_kind(kind).to_kind(Kind::Float);
            let wanted = [
                value(&of_classes(&rounded, &targets, 0.1).unwrap()),
                value(&of_sequences(&rounded, &targets.view([2, 3]), 0.0).unwrap()),
                value(&count_tokens(&rounded, &targets.view([2, 3])).unwrap()[0].1),
            ];
            assert_eq!(
                of_kind(kind).map(f64::to_bits),
                wanted.map(f64::to_bits),
                "{kind:?}"
            );
        }
    }

    fn value(tensor: &Tensor) -> f64 {
        tensor.double_value(&[])
    }

    #[test]
    fn smoothed_cross_entropy_equals_the_manual_result() {
        // Scores 0 and ln 3 give the probabilities 1/4 and 3/4.
        let scores = Tensor::from_slice(&[0.0, 3.0_f64.ln()]).reshape([1, 2]);
        let loss = of_classes(&scores, &Tensor::from_slice(&[1_i64]), 0.2).unwrap();
        let by_hand = -(0.9 * 0.75_f64.ln() + 0.1 * 0.25_f64.ln());
        assert!((value(&loss) - by_hand).abs() < 1e-12, "{loss:?}");
    }

    #[test]
    fn sequence_loss_is_the_mean_over_its_targets() {
        let scores = Tensor::from_slice(&[0.0_f32, 0.0, 0.0, 3.0_f32.ln()]).reshape([2, 2]);
        let scores = Tensor::cat(&[&scores, &scores], 0);
        let targets = Tensor::from_slice(&[0, IGNORED, 0, 1]).reshape([2, 2]);
        let loss = of_sequences(&scores, &targets, 0.0).unwrap();
        let (half, most) = (-0.5_f64.ln(), -0.75_f64.ln());
        assert!(
            (value(&loss) - (half + f64::midpoint(half, most))).abs() < 1e-6,
            "{loss:?}"
        );
        let counts = count_tokens(&scores, &targets).unwrap();
        assert_eq!((counts[0].0, counts[1].0), ("nll", "tokens"));
        assert!((value(&counts[0].1) - (2.0 * half + most)).abs() < 1e-6);
        assert_eq!(counts[1].1.int64_value(&[]), 3);
    }

    #[test]
    fn sequence_without_targets_has_loss_zero() {
        let scores = Tensor::from_slice(&[1.0_f32, 2.0]).reshape([1, 2]);
        let targets = Tensor::from_slice(&[IGNORED]).reshape([1, 1]);
        assert!(value(&of_sequences(&scores, &targets, 0.1).unwrap()).abs() < f64::EPSILON);
    }

    #[test]
    fn top1_and_top5_count_correct_samples() {
        let counts = |scores: &[f32], classes: i64, targets: &[i64]| {
            let scores = Tensor::from_slice(scores).reshape([-1, classes]);
            let counts = count_classes(&scores, &Tensor::from_slice(targets)).unwrap();
            [counts[0].1.int64_value(&[]), counts[1].1.int64_value(&[])]
        };
        assert_eq!(
            counts(&[1.0, 2.0, 2.0, 1.0, 0.0, 1.0], 2, &[1, 1, 1]),
            [2, 3]
        );
        assert_eq!(counts(&[9.0, 8.0, 7.0, 6.0, 5.0, 4.0], 6, &[4]), [0, 1]);
        assert_eq!(counts(&[9.0, 8.0, 7.0, 6.0, 5.0, 4.0], 6, &[5]), [0, 0]);
    }
}
