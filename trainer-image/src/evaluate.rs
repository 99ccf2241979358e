//! Accuracy and loss on the test split, computed by all ranks together: each takes its own part,
//! so no sample counts twice.

use roundhouse_elastic::micro::micro_batches;
use roundhouse_elastic::shard::shard;
use roundhouse_member::report::Evaluation;
use roundhouse_member::{Group, World, faults};
use tch::Kind;

use crate::data::Split;
use crate::failure::Failure;
use crate::model::Model;
use crate::strategy::loss_sum;

/// Most samples of one forward pass when the configuration sets no bound.
const DEFAULT_PIECE: u32 = 1_024;

/// Evaluates a model. A collective: every rank calls it at the same step. `None` when a rank has broken it off,
/// because its `is_over` became true between two batches.
///
/// # Errors
/// [`Failure::PeerLost`] when a rank is gone, or the wait for it was given up.
pub fn evaluate<G: Group>(
    model: &dyn Model,
    split: &Split,
    world: &World<G>,
    micro_batch_size: Option<u32>,
    is_over: impl Fn() -> bool,
) -> Result<Option<Evaluation>, Failure> {
    let num_samples = split.num_samples();
    let part = shard(&(0..num_samples), world.rank(), world.size());
    let piece_size = micro_batch_size.unwrap_or(DEFAULT_PIECE);
    let mut num_right = 0;
    let mut losses = 0.0;
    let mut broken_off = 0.0;
    let _guard = tch::no_grad_guard();
    for piece in micro_batches(&part, Some(piece_size)) {
        if piece.is_empty() {
            continue;
        }
        if is_over() {
            broken_off = 1.0;
            break;
        }
        world.check()?;
        faults::slow_evaluation_down();
        let samples = split.range(&piece)?;
        let scores_bc = model.forward(&samples.images_bchw)?;
        let right_b = scores_bc
            .f_argmax(1, false)?
            .f_eq_tensor(&samples.labels_b)?;
        num_right += right_b.f_sum(Kind::Int64)?.f_int64_value(&[])?;
        losses += loss_sum(&scores_bc, &samples.labels_b)?.f_double_value(&[])?;
    }
    // Only numbers can be summed; what is none is counted.
    let (losses, not_finite) = if losses.is_finite() {
        (losses, 0.0)
    } else {
        (0.0, 1.0)
    };
    let sums = world.sum_signed(&[num_right as f64, losses, not_finite, broken_off])?;
    if sums[3] > 0.0 {
        return Ok(None);
    }
    let total = num_samples.max(1) as f64;
    Ok(Some(Evaluation {
        accuracy: sums[0] / total,
        loss: if sums[2] > 0.0 {
            f64::NAN
        } else {
            sums[1] / total
        },
        num_samples,
    }))
}

#[cfg(test)]
mod tests {
    use tch::{TchError, Tensor};

    use super::*;
    use crate::data::Shape;
    use crate::group::C10dGroup;
    use crate::model::Parameters;

    /// Scores its two pixels as two classes.
    #[derive(Debug, Default)]
    struct Identity(Parameters);

    impl Model for Identity {
        fn forward(&self, images_bchw: &Tensor) -> Result<Tensor, TchError> {
            images_bchw.f_flatten(1, -1)
        }
        fn parameters(&self) -> &Parameters {
            &self.0
        }
        fn parameters_mut(&mut self) -> &mut Parameters {
            &mut self.0
        }
    }

    fn three_samples() -> Split {
        let shape = Shape {
            num_channels: 1,
            height: 1,
            width: 2,
            num_classes: 2,
        };
        Split::new(&[255, 0, 0, 255, 255, 0], &[0, 1, 1], &shape).unwrap()
    }

    #[test]
    fn accuracy_and_loss_are_those_computed_by_hand() {
        let split = three_samples();
        let (model, world) = (Identity::default(), World::<C10dGroup>::alone());
        for bound in [None, Some(1), Some(2)] {
            let found = evaluate(&model, &split, &world, bound, || false).unwrap();
            let found = found.unwrap();
            assert!((found.accuracy - 2.0 / 3.0).abs() < 1e-9);
            let right = (1.0 + (-1.0_f64).exp()).ln();
            let expected = (2.0 * right + right + 1.0) / 3.0;
            assert!((found.loss - expected).abs() < 1e-6, "{found:?}");
        }
    }

    #[test]
    fn an_evaluation_that_is_broken_off_says_nothing() {
        let split = three_samples();
        let num_batches = std::cell::Cell::new(0);
        let is_over = || num_batches.replace(num_batches.get() + 1) == 2;
        let model = Identity::default();
        let found = evaluate(
            &model,
            &split,
            &World::<C10dGroup>::alone(),
            Some(1),
            is_over,
        )
        .unwrap();
        assert_eq!((found, num_batches.get()), (None, 3));
    }
}
