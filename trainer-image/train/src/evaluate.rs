//! An evaluation, computed by all ranks together: each takes its own part, so no sample counts twice.

use roundhouse_elastic::Permutation;
use roundhouse_elastic::micro::micro_batches;
use roundhouse_elastic::shard::shard;
use roundhouse_member::report::Evaluation;
use roundhouse_member::{Group, World, faults};

use crate::failure::Failure;
use crate::source::Source;
use crate::task::{Mode, Task};

/// Most samples of one forward pass when the configuration sets no bound.
const DEFAULT_PIECE: u32 = 1_024;

/// Evaluates a task. A collective: every rank calls it at the same step. `None` when a rank has broken it off,
/// because its `is_over` became true between two batches.
///
/// # Errors
/// [`Failure::PeerLost`] when a rank is gone, or the wait for it was given up.
pub fn evaluate<G: Group>(
    task: &dyn Task,
    source: &mut dyn Source,
    world: &World<G>,
    micro_batch_size: Option<u32>,
    is_over: impl Fn() -> bool,
) -> Result<Option<Evaluation>, Failure> {
    let num_samples = source.num_samples();
    let order = Permutation::in_order(num_samples);
    let part = shard(&(0..num_samples), world.rank(), world.size());
    let piece_size = micro_batch_size.unwrap_or(DEFAULT_PIECE);
    let mut num_right = 0.0;
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
        let batch = source.fetch(piece, &order)?;
        let sums = task.loss(&batch, Mode::Evaluate)?;
        losses += sums.loss.f_double_value(&[])?;
        for (name, count) in &sums.counts {
            if *name == "top1" {
                num_right += count.f_double_value(&[])?;
            }
        }
    }
    // Only numbers can be summed; what is none is counted.
    let (losses, not_finite) = if losses.is_finite() {
        (losses, 0.0)
    } else {
        (0.0, 1.0)
    };
    let sums = world.sum_signed(&[num_right, losses, not_finite, broken_off])?;
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
