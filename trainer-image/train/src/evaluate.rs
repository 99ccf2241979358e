//! An evaluation, computed by all ranks together: each takes its own part, so no sample counts twice.

use roundhouse_contract::trainer::Precision;
use roundhouse_elastic::Permutation;
use roundhouse_elastic::micro::micro_batches;
use roundhouse_elastic::shard::shard;
use roundhouse_member::report::Evaluation;
use roundhouse_member::{Group, World, faults};

use crate::failure::Failure;
use crate::gradients::loss;
use crate::source::Source;
use crate::task::{Mode, Task};

/// What tasks count, and an evaluation makes something of.
const COUNTS: [&str; 4] = ["top1", "top5", "nll", "tokens"];

/// Evaluates a task in passes of at most `piece_size` samples, in the precision in which it is trained. A collective:
/// every rank calls it at the same step. `None` when a rank has broken it off, because its `is_over` became true between two batches.
///
/// # Errors
/// [`Failure::PeerLost`] when a rank is gone, or the wait for it was given up.
pub fn evaluate<G: Group>(
    task: &dyn Task,
    source: &mut dyn Source,
    world: &World<G>,
    piece_size: u32,
    precision: Precision,
    is_over: impl Fn() -> bool,
) -> Result<Option<Evaluation>, Failure> {
    let num_samples = source.num_samples();
    let order = Permutation::in_order(num_samples);
    let part = shard(&(0..num_samples), world.rank(), world.size());
    let mut counts = [0.0; COUNTS.len()];
    let (mut losses, mut num_labelled) = (0.0, 0_u64);
    let mut broken_off = 0.0;
    let _guard = tch::no_grad_guard();
    let mut pieces = micro_batches(&part, Some(piece_size));
    pieces.retain(|piece| !piece.is_empty());
    let coming = pieces.iter().map(|piece| (piece.clone(), order.clone()));
    source.expect(&coming.collect::<Vec<_>>());
    for piece in pieces {
        if is_over() {
            broken_off = 1.0;
            break;
        }
        world.check()?;
        faults::slow_evaluation_down();
        let batch = source.fetch(piece, &order)?;
        let sums = loss(task, &batch, precision, Mode::Evaluate)?;
        losses += sums.loss.f_double_value(&[])?;
        for (name, count) in &sums.counts {
            if let Some(place) = COUNTS.iter().position(|known| known == name) {
                counts[place] += count.f_double_value(&[])?;
            }
        }
        num_labelled += u64::from(sums.counts.iter().any(|(name, _)| *name == "top1"));
    }
    let [top1, top5, nll, tokens] = counts;
    // Only finite numbers can be summed. A rank that has others says so.
    let not_finite = f64::from(u8::from(!(losses.is_finite() && nll.is_finite())));
    let [losses, nll] = [losses, nll].map(|sum| if sum.is_finite() { sum } else { 0.0 });
    let own = [
        top1,
        top5,
        nll,
        tokens,
        num_labelled as f64,
        losses,
        not_finite,
        broken_off,
    ];
    let sums = world.sum_signed(&own)?;
    let [
        top1,
        top5,
        nll,
        tokens,
        num_labelled,
        losses,
        not_finite,
        broken_off,
    ] = sums[..]
    else {
        return Err(Failure::internal("a sum of other numbers"));
    };
    if broken_off > 0.0 {
        return Ok(None);
    }
    let total = num_samples.max(1) as f64;
    let finite = |value: f64| if not_finite > 0.0 { f64::NAN } else { value };
    let share = |count: f64| (num_labelled > 0.0).then_some(count / total);
    Ok(Some(Evaluation {
        accuracy: share(top1),
        top5: share(top5),
        perplexity: (tokens > 0.0).then(|| finite((nll / tokens).exp())),
        loss: finite(losses / total),
        num_samples,
    }))
}

#[cfg(test)]
mod tests;
